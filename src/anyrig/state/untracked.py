"""What a user's layer keeps beside Keras: TensorFlow's own variables, modules and tables, which no Keras file holds.

`model.variables` does not list them, so neither a checkpoint nor a file of Keras has them, and a model that is loaded
goes on with the values that they were made with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import tensorflow as tf
from tensorflow.python.ops.lookup_ops import LookupInterface

from anyrig import names
from anyrig.state.tree import Held, PlacedLayer, own_objects

_OF_KERAS = ("keras.", "keras_hub.")


def untracked(layers: Sequence[PlacedLayer]) -> list[str]:
    """Return "tf.Variable 'block/scale'" for each object with state of its own that a user's layer holds aside."""
    return [f"{kind} {name!r}" for placed in layers for kind, name in _of(placed)]


def _of(placed: PlacedLayer) -> Iterator[tuple[str, str]]:
    if type(placed.layer).__module__.startswith(_OF_KERAS):
        return
    for held in own_objects(placed.layer, (tf.Variable, tf.Module, LookupInterface)):
        if kind := _kind(held):
            yield kind, names.join(*placed.path, *held.path)


def _kind(held: Held) -> str | None:
    if isinstance(held.value, tf.Variable):
        return "tf.Variable"
    if isinstance(held.value, tf.Module):
        return "tf.Module" if held.value.variables else None
    return "lookup table"
