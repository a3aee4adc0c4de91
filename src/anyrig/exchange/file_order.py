"""The layers of a model in the order of the file that describes it, where Keras may put side branches in another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras


def trainable_in_order(model: keras.Model, config: Mapping[str, Any], renamed: Mapping[str, str]) -> list[Any]:
    """Return the trainable variables in the order in which Keras 2 lists them, each once."""
    found = {id(v): v for layer in layers_in_order(model, config, renamed) for v in layer.trainable_variables}
    return list(found.values())


def layers_in_order(model: keras.Model, config: Mapping[str, Any], renamed: Mapping[str, str]) -> Iterator[Any]:
    """Yield the layers, those of a model within the model in its place."""
    for layer, inner in children_in_order(model, config, renamed):
        if inner is None:
            yield layer
        else:
            yield from layers_in_order(layer, inner, renamed)


def children_in_order(
    model: keras.Model, config: Mapping[str, Any], renamed: Mapping[str, str]
) -> Iterator[tuple[Any, Mapping[str, Any] | None]]:
    """Yield each layer of a model itself, with its configuration if it is a model of layers."""
    stored = config.get("config", config)
    items = stored if isinstance(stored, list) else stored.get("layers", [])
    names = {layer.name: layer for layer in model.layers}
    for item in items:
        inner = item.get("config")
        name = item.get("name") or (inner.get("name") if isinstance(inner, Mapping) else None)
        layer = names.get(renamed.get(str(name), str(name)))
        if layer is not None:
            yield layer, item if isinstance(layer, keras.Model) else None
