"""Make a model ready for virtual replicas, or say by name what in it cannot be divided."""

from __future__ import annotations

from typing import Any

import keras

from anyrig.errors import UsageError

_OWN_STEPS = ("train_step", "test_step", "predict_step")


def bind(model: keras.Model, sample: Any, virtual_replicas: int) -> tuple[Any, ...]:
    """Build what is not built yet, check that V can divide it, and return a key that changes when it must be retraced.

    `sample` is a batch (x, y, sample_weight) of the model's data.
    """
    if not model.compiled:
        raise UsageError(
            "ANY-TRAIN-007",
            f"the model {model.name!r} is not compiled",
            hint="call model.compile(optimizer, loss) in the model function",
        )
    _refuse_own_steps(model)
    model._symbolic_build(data_batch=sample)
    # Variables on several devices cannot be compiled into one XLA program, and XLA computes other last bits.
    model.jit_compile = False
    if virtual_replicas > 1:
        _refuse_undivided(model)
    trainable = tuple(id(v) for v in model.trainable_variables)
    return id(model.optimizer), id(model._compile_loss), id(model._compile_metrics), trainable


def _refuse_own_steps(model: keras.Model) -> None:
    for name in _OWN_STEPS:
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise UsageError(
                "ANY-TRAIN-008",
                f"{type(model).__name__} has its own {name}, which cannot be divided into virtual replicas",
                hint="move its work into call() and compute_loss()",
            )


def _refuse_undivided(model: keras.Model) -> None:
    if type(model).compute_loss is not keras.Model.compute_loss:
        raise UsageError(
            "ANY-TRAIN-009",
            f"{type(model).__name__} has its own compute_loss, and what it averages over is not known",
            hint="compile with a loss of one value per row, or use virtual_replicas=1",
        )
    for layer in model._flatten_layers():
        if getattr(layer, "synchronized", False) is True:
            raise UsageError(
                "ANY-TRAIN-010",
                f"{type(layer).__name__} {layer.name!r} has synchronized=True, but each virtual replica has "
                "statistics of its own",
                hint="set synchronized=False (the moving averages are merged after each step), or virtual_replicas=1",
            )
