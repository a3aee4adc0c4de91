"""What a model wants to be filled with, as plain facts: names, shapes and what is known of their place in the graph.

Pure: `anyrig.state.wanting` makes it from a Keras model, `anyrig.mapping.sides` from the tensors of a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["weight", "optimizer", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A variable to be filled.

    `name` is its name in a checkpoint, `aliases` are further ones (Keras's path); `dtype` is in safetensors spelling.
    `layer` is the path of the layer that a position or a name stands for, and `leaf` the rest of the name below it;
    `index` is the variable's place in the order in which its own layer lists its variables. `automatic` says that a
    part of `layer` is no name of the user's but a position, so that another layer may have it tomorrow.

    `rank` counts the layers in the order of the graph and `before` has the ranks of those that certainly come before
    this one, whatever order they were made in; `place` is the fingerprint of its place in the graph. A slot of an
    optimizer has in `of` the weight's name and in `slot` its own.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    aliases: tuple[str, ...] = ()
    trainable: bool = True
    role: Role = "weight"
    layer: str = ""
    layer_class: str = ""
    leaf: str = ""
    index: int = 0
    automatic: bool = False
    rank: int = 0
    before: frozenset[int] = frozenset()
    place: str | None = None
    of: str | None = None
    slot: str | None = None
