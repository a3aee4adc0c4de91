"""A loss scale that only one side of a restore has, as between float32 or bfloat16 and float16.

`LossScaleOptimizer` wraps another optimizer, whose slots keep their plain names, so that all that one side can have
more than the other are the wrapper's own scalars. Stored ones are left out; those of the model get the values that they
begin with, and learn the scale anew within some steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras

from anyrig.state.values import assign, to_array

_FOLDER = "loss_scale"
_SCALARS = ("iterations", "learning_rate", "step_counter", "dynamic_scale")


def one_sided(stored: Iterable[str], wanted: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the names of loss scales that only the checkpoint has, and of those that only the model wants."""
    have, want = set(filter(_is_scale, stored)), set(filter(_is_scale, wanted))
    both = set(map(_folder, have)) & set(map(_folder, want))
    return {name for name in have if _folder(name) not in both}, {name for name in want if _folder(name) not in both}


def start_again(optimizer: Any, variables: Iterable[keras.Variable]) -> None:
    """Give those of `variables` that are a loss scale within `optimizer` the values that it begins with."""
    chosen = {id(variable) for variable in variables}
    for wrapper in _wrappers(optimizer):
        for variable, value in ((wrapper.dynamic_scale, wrapper.initial_scale), (wrapper.step_counter, 0)):
            if id(variable) in chosen:
                assign(variable, to_array(variable) * 0 + value)


def _wrappers(optimizer: Any) -> Iterator[keras.optimizers.LossScaleOptimizer]:
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        yield optimizer
        yield from _wrappers(optimizer.inner_optimizer)
    for inner in getattr(optimizer, "_inner_optimizers", ()):
        yield from _wrappers(inner)


def _is_scale(name: str) -> bool:
    *_, folder, scalar = name.split("/")
    return name.startswith("optimizer/") and folder == _FOLDER and scalar in _SCALARS


def _folder(name: str) -> str:
    return name.rpartition("/")[0]
