"""Pairs the variables of a model with those of a file of objects of Keras 2, by attributes of layers.

Such a file names a variable by the way to it: `layer_with_weights-1/cell/kernel`. The same way is gone in the model of
today: the second of its layers with weights, its cell, the variable of that name. Nothing but attributes, items of
lists and variables' names is looked up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras

from anyrig.exchange.file_order import children_in_order
from anyrig.formats.contents import FileTensor
from anyrig.mapping.fit import fitted
from anyrig.mapping.result import Pair
from anyrig.mapping.sides import stored_side
from anyrig.state.wanted import Wanted

_NUMBERED = re.compile(r"(layer_with_weights|layer)-(\d+)$")
_OTHER_NAMES = {"depthwise_kernel": "kernel"}
_WHY = "the same attributes of the same layers lead to both"


def pairs_by_attributes(
    model: keras.Model,
    tensors: Iterable[FileTensor],
    wanted: Mapping[int, Wanted],
    config: Mapping[str, Any] | None,
    renamed: Mapping[str, str],
) -> list[Pair]:
    """Return a pair for every variable in `wanted` (facts by `id`), if each has exactly one tensor; else none.

    `config` describes the model in the file, and gives the order of its layers; without it they are in the model's.
    """
    found: dict[int, Pair] = {}
    for item in stored_side(tensor for tensor in tensors if tensor.role == "weight"):
        ways = {id(v): v for path in (item.name, *item.aliases) if (v := _at(model, path, config, renamed)) is not None}
        if len(ways) != 1 or (number := next(iter(ways))) not in wanted:
            continue
        shapes = ((),) if item.shape == wanted[number].shape else fitted(item, wanted[number]).ways
        if number in found or len(shapes) != 1:
            return []
        found[number] = Pair(item, wanted[number], "object", _WHY, 1.0, shapes[0])
    return list(found.values()) if found.keys() == wanted.keys() else []


def _at(model: keras.Model, path: str, config: Mapping[str, Any] | None, renamed: Mapping[str, str]) -> Any:
    *steps, leaf = path.split("/")
    here: Any = model
    for step in steps:
        numbered = _NUMBERED.match(step)
        if numbered and isinstance(here, keras.Model):
            children = _children(here, config, renamed)
            if numbered[1] == "layer_with_weights":
                children = [child for child in children if _has_weights(child[0])]
            if int(numbered[2]) >= len(children):
                return None
            here, config = children[int(numbered[2])]
        elif step.isdigit() and isinstance(here, Sequence):
            here = here[int(step)] if int(step) < len(here) else None
        else:
            here, config = vars(here).get(step) if isinstance(here, keras.Layer) else None, None
    return _variable(here, leaf) if isinstance(here, keras.Layer) else None


def _children(
    model: keras.Model, config: Mapping[str, Any] | None, renamed: Mapping[str, str]
) -> list[tuple[Any, Mapping[str, Any] | None]]:
    listed = list(children_in_order(model, config, renamed)) if config is not None else []
    return listed if len(listed) == len(model.layers) else [(layer, None) for layer in model.layers]


def _has_weights(layer: Any) -> bool:
    return any("seed_generator" not in variable.path for variable in layer.weights)


def _variable(layer: Any, leaf: str) -> Any:
    own = {v.name: v for v in (*layer._trainable_variables, *layer._non_trainable_variables)}
    return own.get(leaf, own.get(_OTHER_NAMES.get(leaf, leaf)))
