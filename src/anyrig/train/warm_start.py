"""A warm start: the weights of something trained before, and nothing else of it, for a model that is new."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import keras

from anyrig.errors import UsageError
from anyrig.locations import on_this_machine
from anyrig.state.capture import capture
from anyrig.state.report import LoadReport
from anyrig.state.restore import restore
from anyrig.state.values import assign
from anyrig.state.walk import model_variables
from anyrig.train.recipe.source import open_sound


def warm_start(model: keras.Model, source: str | os.PathLike[str]) -> tuple[str, LoadReport | None]:
    """Give the built `model` the weights of `source`; return a sentence that says so and, of a checkpoint, a report.

    `source`: a run or checkpoint, matched by name, or a `.keras` or `.weights.h5` file. All weights must be there;
    optimizer, step and metrics are not taken. Raises UsageError (ANY-RUN-035) for what does not fit; the model is then
    as it was.
    """
    path = on_this_machine(source)
    if path.suffix in (".keras", ".h5"):
        _from_keras(model, path)
        return f"starting from the weights of {path}", None
    checkpoint, passed_over = open_sound(path)
    report = restore(checkpoint, model, weights_only=True)
    message = "\n".join([*passed_over, f"starting from the weights of {checkpoint.path}"])
    return message, replace(report, source=str(checkpoint.path), step=checkpoint.step)


def _from_keras(model: keras.Model, path: Path) -> None:
    before = [
        (item.variable, array.array)
        for item, array in zip(
            model_variables(model), capture(model, optimizer=False, metrics=False).tensors, strict=True
        )
    ]
    optimizer, vars(model)["optimizer"] = model.optimizer, None  # Keras would load that, too, and fail if it differs
    try:
        model.load_weights(path)
    except Exception as error:
        for variable, array in before:
            assign(variable, array)
        raise UsageError(
            "ANY-RUN-035",
            f"init_from: the weights of {path} do not fit the model: {str(error).strip().partition(chr(10))[0]}",
            hint="give the file of a model with the same layers",
        ) from error
    finally:
        vars(model)["optimizer"] = optimizer
