"""Calls of layers as older Keras wrote them (`inbound_nodes`), in one form: arguments, with tensors by their place.

A node is a list of `[layer, call, output, arguments]`, one such entry by itself, or a mapping of them. Arguments hold
further tensors as `[layer, call, output]` and constants as `["_CONSTANT_VALUE", -1, value]`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_CONSTANT = "_CONSTANT_VALUE"


@dataclass(frozen=True, slots=True)
class Reference:
    """The output `output` of the call number `call` of a layer, numbered as in the file."""

    layer: str
    call: int
    output: int


@dataclass(frozen=True, slots=True)
class Call:
    """The first argument (a structure of values and references) and the others of a call."""

    first: Any
    others: Mapping[str, Any]


def call_of(node: Any, layers: Collection[str]) -> Call:
    """Return the call that a node describes; `layers` are the names that there are."""
    if isinstance(node, list) and node and isinstance(node[0], str):
        return Call(_entry(node, layers), _others(node, layers))
    if isinstance(node, Mapping):
        entries = [item for item in node.values() if isinstance(item, list)]
        return Call({key: _entry(item, layers) for key, item in node.items()}, _others(entries[0], layers))
    entries = list(_entries(node))
    others = next((_others(entry, layers) for entry in entries if len(entry) > 3), {})
    tensors = _structure(node, layers)
    return Call(tensors[0] if isinstance(tensors, list) and len(tensors) == 1 else tensors, others)


def references(value: Any) -> Iterator[Reference]:
    """Yield the references in a structure."""
    if isinstance(value, Reference):
        yield value
    elif isinstance(value, Mapping):
        yield from (found for item in value.values() for found in references(item))
    elif isinstance(value, list | tuple):
        yield from (found for item in value for found in references(item))


def filled(value: Any, tensor: Callable[[Reference], Any]) -> Any:
    """Return a structure with what `tensor` gives in place of each reference."""
    if isinstance(value, Reference):
        return tensor(value)
    if isinstance(value, Mapping):
        return {key: filled(item, tensor) for key, item in value.items()}
    return [filled(item, tensor) for item in value] if isinstance(value, list | tuple) else value


def structure(value: Any, layers: Collection[str]) -> Any:
    """Return the tensors that a model's `input_layers` or `output_layers` name."""
    return _structure(value, layers)


def _entries(node: Any) -> Iterator[list[Any]]:
    if isinstance(node, list) and node and isinstance(node[0], str):
        yield node
    elif isinstance(node, list):
        for item in node:
            yield from _entries(item)


def _structure(value: Any, layers: Collection[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _structure(item, layers) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], str):
        return _entry(value, layers)
    return [_structure(item, layers) for item in value] if isinstance(value, list) else value


def _entry(entry: Any, layers: Collection[str]) -> Any:
    if not isinstance(entry, list) or not 3 <= len(entry) <= 4:
        raise ValueError(f"a call with {entry!r}")
    if entry[0] == _CONSTANT:
        return entry[2]
    if entry[0] not in layers or not all(isinstance(number, int) and number >= 0 for number in entry[1:3]):
        raise ValueError(f"a call with {entry[:3]!r}, which is no layer of the model")
    return Reference(*entry[:3])


def _others(entry: list[Any], layers: Collection[str]) -> dict[str, Any]:
    found = entry[3] if len(entry) > 3 else {}
    return {key: _value(item, layers) for key, item in (found or {}).items()}


def _value(value: Any, layers: Collection[str]) -> Any:
    """Return an argument, in which a list that names a layer and two numbers is a tensor."""
    if isinstance(value, Mapping):
        return {key: _value(item, layers) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    named = len(value) in (3, 4) and isinstance(value[0], str) and type(value[1]) is int
    if named and (value[0] == _CONSTANT or (value[0] in layers and type(value[2]) is int)):
        return _entry(value, layers)
    return [_value(item, layers) for item in value]
