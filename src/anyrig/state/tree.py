"""A Keras model as a tree of layers with stable paths: the names of the file format.

What drives it: a path is for ever, so it is made only of what the user wrote and of structure, never of Keras's
process-wide name counters, never of trainable flags, never of the order in which objects were created.

* A child of a Functional or Sequential model is called by its `name` if the user gave one. An automatic name (the
  snake-case class name, with or without `_N`) is replaced by `<snake class>.<i>`, `i` counting the automatically named
  siblings of that class in the parent's own order: `dense.0`, `dense.1`. Functional order is that of the graph walked
  from the outputs, Sequential order that of the stack. The dot survives shells, globs, URLs and file systems.
* Every other child is called by where its parent holds it: attribute, list index, dictionary key, at any depth
  (`blocks/0/1`). Public attributes come before private ones, each in alphabetical order.
* Whatever Keras tracks but no attribute holds is called `layers/<snake class>.<i>`.
* A layer met twice keeps its first path; the others become aliases.
* Two children with one name in one parent: the later one gets `.1`, `.2`, ... appended.

It reads `vars()` and Keras's tracked stores, and never calls a property or method of the user's classes.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
from keras.src.models.functional import Functional

from anyrig.errors import AnyrigError
from anyrig.state.automatic import is_automatic, sibling_names
from anyrig.state.places import graph_places

Path = tuple[str, ...]

# Attributes in which Keras and TensorFlow keep their own books; what they hold is reached in other ways.
BOOKKEEPING = frozenset(
    [
        "_compile_loss",
        "_compile_metrics",
        "_compiled_trainable_state",
        "_functional",
        "_inbound_nodes",
        "_inputs",
        "_inputs_struct",
        "_layers",
        "_loss_tracker",
        "_losses",
        "_losses_override",
        "_metrics",
        "_nodes",
        "_nodes_by_depth",
        "_non_trainable_variables",
        "_operations",
        "_operations_by_depth",
        "_outbound_nodes",
        "_outputs",
        "_outputs_struct",
        "_seed_generators",
        "_tracked",
        "_tracker",
        "_trainable_variables",
        "optimizer",
    ]
)
_PLAIN = {type(None), bool, int, float, str, bytes, types.FunctionType, types.MethodType}


@dataclass(frozen=True, slots=True)
class Held:
    """A Keras object and the path at which its parent holds it."""

    path: Path
    value: Any


@dataclass(frozen=True, slots=True)
class PlacedLayer:
    """A layer, its path below the model, and the fingerprint of its place if position decided a part of the path."""

    path: Path
    layer: keras.Layer
    place: str | None
    aliases: list[Path] = field(default_factory=list)


def walk_layers(model: keras.Layer) -> list[PlacedLayer]:
    """Return `model` (path `()`) and every layer below it once, in a fixed order."""
    found: dict[int, PlacedLayer] = {}
    _visit(model, (), (), found)
    return list(found.values())


def held_objects(layer: keras.Layer) -> list[Held]:
    """Return the Keras objects that the attributes of `layer` hold, containers opened at any depth."""
    return own_objects(layer, (keras.Layer, keras.Variable, keras.random.SeedGenerator, keras.Metric))


def own_objects(layer: keras.Layer, kinds: Any) -> list[Held]:
    """Return the objects of `kinds` (a class or several) that the attributes of `layer` hold, at any depth."""
    attributes = vars(layer)
    held: list[Held] = []
    telling = [
        name
        for name, value in attributes.items()
        if type(value) not in _PLAIN and name not in BOOKKEEPING and not name.startswith("_self_")
    ]
    for name in sorted(telling, key=lambda name: (name.startswith("_"), name)):
        held.extend(_leaves(attributes[name], (name,), frozenset(), kinds))
    return held


def distinct(held: Iterable[Held]) -> list[Held]:
    """Return `held` with paths made unique; one object that is met again at its own path is dropped."""
    taken: dict[Path, int] = {}
    kept = []
    for item in held:
        path, n = item.path, 0
        while taken.get(path, id(item.value)) != id(item.value):
            n += 1
            path = (*item.path[:-1], f"{item.path[-1]}.{n}")
        if path not in taken:
            taken[path] = id(item.value)
            kept.append(Held(path, item.value))
    return kept


def _visit(layer: keras.Layer, path: Path, places: tuple[str, ...], found: dict[int, PlacedLayer]) -> None:
    if id(layer) in found:
        found[id(layer)].aliases.append(path)
        return
    found[id(layer)] = PlacedLayer(path, layer, "/".join(places) or None)
    where = graph_places(layer) if isinstance(layer, Functional) else {}
    for child in _children(layer):
        automatic = is_automatic(child.value.name, type(child.value).__name__)
        here = (where[id(child.value)],) if automatic and id(child.value) in where else ()
        _visit(child.value, path + child.path, places + here, found)


def _children(layer: keras.Layer) -> list[Held]:
    tracked = {id(child) for child in layer._layers}
    graph = graph_children(layer)
    held = [item for item in held_objects(layer) if isinstance(item.value, keras.Layer) and id(item.value) in tracked]
    reached = {id(item.value) for item in graph + held}
    rest = [child for child in layer._layers if id(child) not in reached]
    leftover = [Held(("layers", name), child) for name, child in zip(sibling_names(rest), rest, strict=True)]
    return distinct(graph + held + leftover)


def graph_children(layer: keras.Layer) -> list[Held]:
    """Return the layers of a Functional or Sequential model under the names they have there; of another, none."""
    if isinstance(layer, Functional):
        layers = [operation for operation in layer._operations if isinstance(operation, keras.Layer)]
    elif isinstance(layer, keras.Sequential):
        layers = list(layer._layers)
    else:
        layers = []
    return [Held((name,), child) for name, child in zip(sibling_names(layers), layers, strict=True)]


def _leaves(value: Any, path: Path, above: frozenset[int], kinds: Any) -> Iterator[Held]:
    if isinstance(value, kinds):
        yield Held(path, value)
    elif id(value) in above:
        return
    elif isinstance(value, (dict, list, tuple)):
        inside = above | {id(value)}
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if type(item) not in _PLAIN:
                yield from _leaves(item, (*path, str(key)), inside, kinds)
    elif isinstance(value, (set, frozenset)):
        yield from (held for held in _set_members(value, path) if isinstance(held.value, kinds))


def _set_members(members: set[Any] | frozenset[Any], path: Path) -> Iterator[Held]:
    layers = [item for item in members if isinstance(item, keras.Layer)]
    for layer in sorted(layers, key=lambda layer: str(layer.name)):
        if is_automatic(layer.name, type(layer).__name__):
            raise AnyrigError(
                "ANY-STATE-003",
                f"`{'.'.join(path)}` is a set that holds the unnamed layer {layer.name!r}: a set has no order",
                hint="keep the layers in a list or a dict, or give each a name=",
            )
        yield Held((*path, layer.name), layer)
