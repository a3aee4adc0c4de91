"""The seed generators of a model: the random state that must not be lost (Dropout masks after a resume)."""

from __future__ import annotations

import keras

from anyrig import names
from anyrig.state.tree import Held, Path, distinct, held_objects, walk_layers


def seed_generators(model: keras.Model) -> list[tuple[str, keras.random.SeedGenerator]]:
    """Return every seed generator below `model` once, with its path (`dropout.0/seed_generator`).

    Its state is the tensor `model/<path>/state`. Keras's global generator belongs to no model and is not here.
    """
    found: dict[int, tuple[str, keras.random.SeedGenerator]] = {}
    for placed in walk_layers(model):
        for held in own_seed_generators(placed.layer):
            found.setdefault(id(held.value), (names.join(*placed.path, *held.path), held.value))
    return list(found.values())


def own_seed_generators(layer: keras.Layer) -> list[Held]:
    """Return the generators that `layer` itself holds, those no attribute names at `seed_generators/<i>`."""
    held = [item for item in held_objects(layer) if isinstance(item.value, keras.random.SeedGenerator)]
    reached = {id(item.value) for item in held}
    rest = [generator for generator in layer._seed_generators if id(generator) not in reached]
    leftover: list[tuple[Path, keras.random.SeedGenerator]] = [
        (("seed_generators", str(index)), generator) for index, generator in enumerate(rest)
    ]
    return distinct(held + [Held(path, generator) for path, generator in leftover])
