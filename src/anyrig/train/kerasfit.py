"""What Keras's `fit` knows and tells no callback: whether an epoch was to be validated, how the optimizer was set.

It looks and compares; nothing is changed here.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from anyrig.state.optimizers import held_optimizers

_RATE = "learning_rate"


def to_be_validated(model: Any, epoch: int) -> bool:
    """Tell whether `epoch` (from 1) should have validation metrics; also True where no epoch will ever have any.

    To be called by a callback: Keras hands it neither the validation data nor how often they are used, so the calling
    `fit` is asked. False where no `fit` of Keras is calling.
    """
    frame: Any = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is model:
            asked = frame.f_locals
            if "validation_freq" in asked and "validation_data" in asked:
                without = asked["validation_data"] is None
                return without or bool(model._should_eval(epoch - 1, asked["validation_freq"]))
        frame = frame.f_back
    return False


def optimizer_settings(model: Any) -> dict[str, str]:
    """Return every setting of the model's optimizers as text, by "key.setting"; a learning rate is the present one."""
    return {
        f"{key}.{name}": f"{value:.6g}" if isinstance(value, float) else json.dumps(value, default=str)
        for key, optimizer in held_optimizers(model).items()
        for name, value in keras.saving.serialize_keras_object(_plain(optimizer))["config"].items()
        if name != "name"
    }


def kept_settings(first: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return what is to be stored of a run that goes on: `now`, with the learning rates that it was begun with."""
    return {**now, **{name: value for name, value in first.items() if name in now and name.endswith(_RATE)}}


def changed_settings(first: Mapping[str, str], now: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """Say in one line what of the optimizer is not as the run was begun with it; None if nothing is to be said.

    `first` was stored, `now` is set in the program, `after` is in force with the stored state.
    """
    lines = list(_changes(first, now, after))
    return f"optimizer: {'; '.join(lines)}" if lines else None


def _changes(first: Mapping[str, str], now: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name, value in now.items():
        shown = name.removeprefix("main.")
        if first.get(name) == value:
            continue
        if after.get(name) != value:
            yield (
                f"{shown} {value} is not used, the run goes on with the stored {after.get(name)} "
                "(a LearningRateScheduler changes it)"
            )
        elif name in first and (not name.endswith(_RATE) or value.startswith("{")):  # a plain rate moves in training
            yield f"{shown} was {first[name]} and is {value} from here on"


def _plain(optimizer: Any) -> Any:
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return _plain(optimizer.inner_optimizer) if scales else optimizer
