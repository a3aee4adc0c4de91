"""The optimizers of a model by their keys in a checkpoint: `main` for the compiled one, else the attribute's name.

A model with its own `train_step` may hold several (`self.generator_optimizer`, a dictionary of them). They are found in
the attributes of the model and of the models below it; an optimizer that two attributes hold keeps its first key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras

from anyrig.state.tree import PlacedLayer, own_objects

MAIN = "main"


def optimizers(model: keras.Model, layers: Sequence[PlacedLayer]) -> dict[str, keras.optimizers.Optimizer]:
    """Return every optimizer of `model` once, each with its slots as they are; `layers` is `walk_layers(model)`.

    The compiled optimizer is built here, if a training step of Keras will use it: a state taken before the first step
    then has the same names as one taken after it.
    """
    found: dict[int, tuple[str, Any]] = {}
    main = vars(model).get("optimizer")
    if main is not None and not main.built and uses_main(model):
        main.build(model.trainable_variables)
    if main is not None and main.built:
        found[id(main)] = (MAIN, main)
    for key, optimizer in _held(layers):
        if optimizer is not main:
            found.setdefault(id(optimizer), (key, optimizer))
    return dict(found.values())


def uses_main(model: keras.Model) -> bool:
    """Tell whether Keras's own training step, which applies the compiled optimizer, is the model's."""
    return type(model).train_step is keras.Model.train_step


def _held(layers: Sequence[PlacedLayer]) -> Iterator[tuple[str, Any]]:
    for placed in layers:
        for held in own_objects(placed.layer, keras.optimizers.Optimizer):
            yield ".".join((*placed.path, *held.path)), held.value
