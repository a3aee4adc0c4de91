"""A model made ready for one phase after the other: layers frozen and unfrozen, the optimizer made anew."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Sequence
from typing import Any

import keras

from anyrig import names
from anyrig.errors import UsageError
from anyrig.state.tree import PlacedLayer, walk_layers
from anyrig.train.phases import Phase
from anyrig.train.step.binding import require_compiled

_SHOWN = 20  # layers in an error


class PhasedModel:
    """A compiled model as its builder left it, which every phase starts from.

    Raises UsageError for a model that is not compiled, or whose own `compile` takes what is not known here.
    """

    def __init__(self, model: keras.Model) -> None:
        require_compiled(model)
        _refuse_own_compile(model)
        self.model = model
        self._layers = walk_layers(model)
        self._trainable = [placed.layer.trainable for placed in self._layers]
        self._compiled = dict(model._compile_config.config)
        self._optimizer = keras.optimizers.serialize(keras.optimizers.get(self._compiled["optimizer"]))

    def enter(self, phase: Phase) -> None:
        """Freeze and unfreeze layers, and compile the model with a fresh optimizer.

        Raises UsageError for a pattern that fits no layer.
        """
        for placed, trainable in zip(self._layers, self._trainable, strict=True):
            placed.layer.trainable = trainable
        for patterns, trainable in ((phase.unfreeze, True), (phase.freeze, False)):
            for pattern in patterns:
                for placed in _fitting(self._layers, pattern, phase.name):
                    placed.layer.trainable = trainable
        config = copy.deepcopy(self._optimizer)  # Keras takes it apart
        if phase.learning_rate is not None:
            _innermost(config)["config"]["learning_rate"] = phase.learning_rate
        self.model.compile(**{**self._compiled, "optimizer": keras.optimizers.deserialize(config)})


def _innermost(optimizer: dict[str, Any]) -> dict[str, Any]:
    inner = optimizer["config"].get("inner_optimizer")  # of a LossScaleOptimizer
    return optimizer if inner is None else _innermost(inner)


def _refuse_own_compile(model: keras.Model) -> None:
    if type(model).compile is not keras.Model.compile:
        raise UsageError(
            "ANY-RUN-038",
            f"{type(model).__name__} has its own compile, so it cannot be compiled anew for each phase",
            hint='compile it yourself before each: rig.fit(model, x, y, phase="head", callbacks=[...])',
        )


def _fitting(layers: Sequence[PlacedLayer], pattern: str, phase: str) -> list[PlacedLayer]:
    found = [
        placed
        for placed in layers
        if fnmatch.fnmatchcase(names.join(*placed.path), pattern) or fnmatch.fnmatchcase(placed.layer.name, pattern)
    ]
    if not found:
        known = [names.join(*placed.path) for placed in layers if placed.path]
        raise UsageError(
            "ANY-RUN-031",
            f"phase {phase}: no layer is called {pattern}; there are {', '.join(known[:_SHOWN])}"
            + (f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""),
            hint="give the path of a layer, or a pattern such as blocks/*",
        )
    return found
