"""What a model takes: shape and dtype of each input, as its checkpoint records them, its data has them, or it says.

Inputs are one `InputSpec`, or lists and dicts of them, nested as x is. Nothing here imports Keras.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anyrig.errors import UsageError

_AROUND = re.compile(
    r"\s*(Exception encountered when calling|Graph execution error|Detected at node|Stack trace|File \"|<)"
)
Inputs = Any  # InputSpec | list[Inputs] | dict[str, Inputs]


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input; `shape` begins with the rows (None), and None means any size elsewhere too."""

    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        sizes = " x ".join("any" if size is None else str(size) for size in self.shape[1:])
        return f"{sizes or 'one value'} ({self.dtype})"


def recorded_inputs(record: Mapping[str, Any]) -> Inputs | None:
    """Return the inputs that a checkpoint's record tells; None in those that were written before it did."""
    stored = record.get("inputs")
    return None if stored is None else _parsed(stored)


def inputs_of_rows(x: Any) -> Inputs:
    """Return the inputs that the rows `x` (arrays, nested) are; float64 reaches a model as float32, as in Keras."""
    if isinstance(x, dict):
        return {name: inputs_of_rows(part) for name, part in x.items()}
    if isinstance(x, list | tuple):
        return [inputs_of_rows(part) for part in x]
    dtype = str(x.dtype)
    return InputSpec((None, *x.shape[1:]), "float32" if dtype == "float64" else dtype)


def inputs_of(model: Any, record: Mapping[str, Any]) -> Inputs | None:
    """Return what `model` takes; several inputs of a functional model by their names; None where nobody tells.

    A model's own word is preferred for a single input, because it knows which sizes are free.
    """
    recorded, own = recorded_inputs(record), getattr(model, "inputs", None)
    if isinstance(recorded, dict) or not own:
        return recorded
    named = {tensor.name: InputSpec(tuple(tensor.shape), str(tensor.dtype)) for tensor in own}
    return named if len(own) > 1 else next(iter(named.values()))


def build_for(model: Any, inputs: Inputs, *, name: str, hint: str = "correct its call(), or the data") -> None:
    """Create the variables of a model that waits for its first data, which are `inputs`.

    `name` and `hint` are for the message of ANY-RECIPE-023, when the model cannot be called with them.
    """
    from anyrig.train.step.binding import bind_to_predict

    try:
        bind_to_predict(model, (inputs, None, None))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(
            "ANY-RECIPE-023",
            f"model: {name} cannot be called with its inputs, {describe_inputs(inputs)}: {first_line(error)}",
            hint=f"{hint}; --debug shows the whole traceback",
        ) from error


def describe_inputs(inputs: Inputs) -> str:
    """Return "8 x 8 x 1 (float32)", "user: one value (int64), item: one value (int64)"."""
    if isinstance(inputs, dict):
        return ", ".join(f"{name}: {describe_inputs(part)}" for name, part in inputs.items())
    if isinstance(inputs, list):
        return f"[{', '.join(map(describe_inputs, inputs))}]"
    return str(inputs)


def first_line(error: Exception) -> str:
    """Return "ValueError: what happened": the first line that says it, without what Keras and TensorFlow put around."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines()
    telling = [line.strip() for line in lines if line.strip() and not _AROUND.match(line)]
    return f"{type(error).__name__}: {telling[0]}" if telling else type(error).__name__


def _parsed(stored: Any) -> Inputs:
    if isinstance(stored, list):
        return [_parsed(part) for part in stored]
    if isinstance(stored.get("shape"), list):
        return InputSpec(tuple(stored["shape"]), stored["dtype"])
    return {name: _parsed(part) for name, part in stored.items()}
