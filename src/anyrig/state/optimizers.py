"""The optimizers of a model by their keys in a checkpoint: `main` for the compiled one, else the attribute's name.

A model with its own `train_step` may hold several (`self.generator_optimizer`, a dictionary of them). They are found in
the attributes of the model and of the models below it; an optimizer that two attributes hold keeps its first key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from anyrig.state.tree import PlacedLayer, own_objects, walk_layers

MAIN = "main"


def optimizers(model: keras.Model, layers: Sequence[PlacedLayer]) -> dict[str, keras.optimizers.Optimizer]:
    """Return every optimizer of `model` once that training uses, by its key; `layers` is `walk_layers(model)`.

    The compiled optimizer is built here, if Keras's own training step will use it: a state taken before the first step
    then has the same names as one taken after it.
    """
    main = vars(model).get("optimizer")
    if main is not None and not main.built and type(model).train_step is keras.Model.train_step:
        main.build(model.trainable_variables)
    found = held_optimizers(model, layers)
    if main is not None and not main.built:
        del found[MAIN]
    return found


def held_optimizers(
    model: keras.Model, layers: Sequence[PlacedLayer] | None = None
) -> dict[str, keras.optimizers.Optimizer]:
    """Return every optimizer that `model` holds once, by its key, built or not."""
    main = vars(model).get("optimizer")
    found: dict[int, tuple[str, Any]] = {} if main is None else {id(main): (MAIN, main)}
    for placed in walk_layers(model) if layers is None else layers:
        for held in own_objects(placed.layer, keras.optimizers.Optimizer):
            found.setdefault(id(held.value), (".".join((*placed.path, *held.path)), held.value))
    return dict(found.values())


def optimizer_classes(found: Mapping[str, keras.optimizers.Optimizer]) -> dict[str, str]:
    """Return what decides whether the slots of two optimizers mean the same: the class of each, by key."""
    return {key: _class_of(optimizer) for key, optimizer in found.items()}


def _class_of(optimizer: Any) -> str:
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return _class_of(optimizer.inner_optimizer)
    inner = [_class_of(part) for part in getattr(optimizer, "_inner_optimizers", ())]
    name = keras.saving.get_registered_name(type(optimizer))
    return f"{name}({', '.join(inner)})" if inner else str(name)
