"""Fingerprints of where a layer stands in the graph of a Functional model.

A layer without a name of its own is called by its position among its siblings. The fingerprint tells whether the same
position still means the same place: it is a hash of the classes, weight shapes and user-given names of everything
upstream and downstream with argument positions, and of the model's inputs and outputs by index.
Two layers have one fingerprint only if nothing in the graph tells them apart.

It never sees configuration (rates, activations, regularisers), automatic names, trainable flags or values.
"""

from __future__ import annotations

import hashlib
from typing import Any

import keras

from anyrig.state.automatic import is_automatic, snake_case

Edges = dict[Any, list[tuple[Any, ...]]]


def graph_places(model: Any) -> dict[int, str]:
    """Return the fingerprint of each operation of the Functional `model`, by `id`."""
    nodes = _nodes_in_order(model)
    parents, consumers = _edges(model, nodes)
    labels = {node: _label(node.operation) for node in nodes}
    colours = _colours(nodes, parents, consumers, labels)
    # A second round, so that a layer called several times is one thing also for its neighbours.
    labels = {node: _digest(labels[node], colours[id(node.operation)]) for node in nodes}
    return _colours(nodes, parents, consumers, labels)


def _nodes_in_order(model: Any) -> list[Any]:
    by_depth = model._nodes_by_depth
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]


def _edges(model: Any, nodes: list[Any]) -> tuple[Edges, Edges]:
    """Return what each node takes, in argument order, and who takes what it makes."""
    inputs = {id(tensor): index for index, tensor in enumerate(model._inputs)}
    parents: Edges = {node: [] for node in nodes}
    consumers: Edges = {node: [] for node in nodes}
    for node in nodes:
        for tensor in node.outputs:
            if id(tensor) in inputs:
                parents[node].append(("input", inputs[id(tensor)]))
        for position, tensor in enumerate(node.input_tensors):
            maker, index = _maker(tensor)
            if maker in consumers and not node.is_input:
                parents[node].append((maker, index))
                consumers[maker].append((node, position, index))
    for position, tensor in enumerate(model._outputs):
        maker, index = _maker(tensor)
        if maker in consumers:
            consumers[maker].append(("output", position, index))
    return parents, consumers


def _maker(tensor: Any) -> tuple[Any, int]:
    operation, node_index, tensor_index = tensor._keras_history
    return (operation._inbound_nodes[node_index] if operation else None), tensor_index


def _colours(nodes: list[Any], parents: Edges, consumers: Edges, labels: dict[Any, str]) -> dict[int, str]:
    up: dict[Any, str] = {}
    for node in nodes:
        up[node] = _digest(labels[node], [_seen(edge, up) for edge in parents[node]])
    down: dict[Any, str] = {}
    for node in reversed(nodes):
        down[node] = _digest(labels[node], sorted(_seen(edge, down) for edge in consumers[node]))
    calls: dict[int, list[str]] = {}
    for node in nodes:
        calls.setdefault(id(node.operation), []).append(_digest(up[node], down[node]))
    return {operation: _digest(sorted(colours)) for operation, colours in calls.items()}


def _seen(edge: tuple[Any, ...], colours: dict[Any, str]) -> str:
    first, *rest = edge
    return repr((colours.get(first, first) if not isinstance(first, str) else first, *rest))


def _label(operation: Any) -> str:
    kind = type(operation).__name__
    name = None if is_automatic(operation.name, kind) else operation.name
    return _digest(snake_case(kind), name, sorted(_weight_shapes(operation)))


def _weight_shapes(operation: Any) -> list[str]:
    if not isinstance(operation, keras.Layer):
        return []
    own = operation._trainable_variables + operation._non_trainable_variables
    below = [shape for child in operation._layers for shape in _weight_shapes(child)]
    return [str(tuple(variable.shape)) for variable in own] + below


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
