"""Names from the object graph of `tf.train.Checkpoint`: which object a stored tensor belongs to, and by which paths.

The key under which a tensor is stored is one path from the root to its object, and gives its name. The graph gives the
further paths (a shared variable, `layer-1` beside `layer_with_weights-0`), the variable's own name, and the slots of
optimizers. It may have cycles; no path goes twice through an object, and few are kept of each.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anyrig.formats.contents import Role
from anyrig.formats.protobuf import Message

_ATTRIBUTES = "/.ATTRIBUTES/"
_VALUE = "VARIABLE_VALUE"
_MOST_PATHS = 4
_MOST_DEPTH = 64
# Children that only the optimizers of Keras have, and those by which they hold what is not their own.
_OPTIMIZER_SIGNS = frozenset(
    {
        *("_iterations", "_learning_rate", "_current_learning_rate", "_trainable_variables"),
        *("iter", "beta_1", "learning_rate"),
    }
)
_NOT_ITS_OWN = frozenset({"_trainable_variables", "_distribution_strategy", "_all_models"})
_LISTS_OF_ALL = frozenset({"variables", "trainable_variables", "non_trainable_variables", "keras_api"})
_VARIABLES_OF_SLOTS = "_trainable_variables"
_NO_SLOTS = frozenset({_VARIABLES_OF_SLOTS, "_variables"})
_COUNTERS = frozenset({"save_counter"})
_RANDOM = re.compile(r"(^|/)_random_generator/")
_METRICS = re.compile(r"(^|/)(metrics|_metrics|_compile_metrics|_loss_tracker|loss_tracker|_metric)(/|$)")


class Attribute(NamedTuple):
    """A stored tensor of an object: `name` of the attribute, the variable's own name, and the key in the checkpoint."""

    name: str
    full_name: str
    key: str


class SlotReference(NamedTuple):
    """A slot: the nodes of the variable and of the slot, and its name."""

    variable: int
    name: str
    slot: int


@dataclass(frozen=True, slots=True)
class Node:
    """An object of the graph."""

    children: tuple[tuple[str, int], ...]
    attributes: tuple[Attribute, ...]
    slots: tuple[SlotReference, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """What the names say of a stored tensor."""

    name: str
    aliases: tuple[str, ...] = ()
    role: Role = "weight"
    of: str | None = None
    slot: str | None = None


def nodes_of(graph: Message) -> list[Node]:
    """Return the objects of a TrackableObjectGraph. Raises ANY-FORMAT-002 where one refers to what is not there."""
    nodes = [
        Node(
            children=tuple((child.text(2), child.integer(1)) for child in node.messages(1)),
            attributes=tuple(Attribute(one.text(1), one.text(2), one.text(3)) for one in node.messages(2)),
            slots=tuple(SlotReference(one.integer(1), one.text(2), one.integer(3)) for one in node.messages(3)),
        )
        for node in graph.messages(1)
    ]
    for node in nodes:
        referred = [*(number for _, number in node.children), *(n for s in node.slots for n in (s.variable, s.slot))]
        if any(number >= len(nodes) for number in referred):
            raise graph.damaged("an object refers to one that is not there")
    return nodes


def named(nodes: Sequence[Node], keys: Sequence[str]) -> dict[str, Named]:
    """Return what the graph says of each key of a checkpoint."""
    names = _names(keys)
    owners = {one.key: (number, one) for number, node in enumerate(nodes) for one in node.attributes}
    own_name = {number: names[one.key] for one_key, (number, one) in owners.items() if one_key in names}
    optimizers = _optimizers(nodes)
    slots = {slot.slot: slot for number in optimizers for slot in (*_listed_slots(nodes, number), *nodes[number].slots)}
    weights = _reachable(nodes, optimizers)
    paths = _paths(nodes)
    by_full_name = _by_full_name(nodes, own_name, weights)
    found = {}
    for key, name in names.items():
        number, attribute = owners.get(key, (-1, Attribute(key.rpartition(_ATTRIBUTES)[2], "", key)))
        aliases = [*paths.get(number, ()), *([attribute.full_name] if attribute.full_name else [])]
        role = _role(name, attribute, number, weights)
        of: str | None = None
        slot: str | None = None
        if number in slots:
            reference = slots[number]
            role, of, slot = "optimizer", own_name.get(reference.variable), reference.name
        elif role == "optimizer":
            of, slot = _slot_by_name(attribute.full_name, by_full_name)
        shown = tuple(dict.fromkeys(alias for alias in aliases if alias != name)) if attribute.name == _VALUE else ()
        found[key] = Named(name, shown, role, of, slot)
    return found


def _names(keys: Sequence[str]) -> dict[str, str]:
    """Return keys without their decorations, but with those that keep two apart."""
    plain = {key: key.removesuffix(_ATTRIBUTES + _VALUE).replace(_ATTRIBUTES, "/") for key in keys}
    counts: dict[str, int] = {}
    for name in plain.values():
        counts[name] = counts.get(name, 0) + 1
    return {key: name if counts[name] == 1 else key for key, name in plain.items()}


def _role(name: str, attribute: Attribute, number: int, weights: frozenset[int]) -> Role:
    if attribute.name != _VALUE or name in _COUNTERS or _METRICS.search(name) or _RANDOM.search(name):
        return "other"
    return "weight" if number in weights else "optimizer"


def _optimizers(nodes: Sequence[Node]) -> frozenset[int]:
    signs = (
        number
        for number, node in enumerate(nodes)
        if node.slots or len(_OPTIMIZER_SIGNS & {name for name, _ in node.children}) > 1
    )
    return frozenset(signs)


def _listed_slots(nodes: Sequence[Node], optimizer: int) -> Iterator[SlotReference]:
    """Yield the slots of an optimizer of Keras 3, which are lists beside that of its variables: `_momentums/0`."""
    lists = {name: dict(nodes[number].children) for name, number in nodes[optimizer].children}
    variables = lists.get(_VARIABLES_OF_SLOTS, {})
    for name, listed in lists.items():
        if name not in _NO_SLOTS:
            for place in variables.keys() & listed.keys():
                variable, slot = variables[place], listed[place]
                yield SlotReference(variable, _own_slot_name(nodes, variable, slot) or name.strip("_"), slot)


def _own_slot_name(nodes: Sequence[Node], variable: int, slot: int) -> str | None:
    """Return `momentum` of `adam/sequential_dense_kernel_momentum`, the slot of `sequential/dense/kernel`."""
    names = [(one.full_name, other.full_name) for one in nodes[variable].attributes for other in nodes[slot].attributes]
    for one, other in names:
        rest, start = other.rpartition("/")[2], one.replace("/", "_") + "_"
        if one and rest.startswith(start):
            return rest.removeprefix(start)
    return None


def _reachable(nodes: Sequence[Node], optimizers: frozenset[int]) -> frozenset[int]:
    """Return what is reached from the root, of optimizers only through what is not their own."""
    seen, waiting = {0}, deque([0])
    while waiting and nodes:
        number = waiting.popleft()
        for name, child in nodes[number].children:
            if child not in seen and (number not in optimizers or name in _NOT_ITS_OWN):
                seen.add(child)
                waiting.append(child)
    return frozenset(seen)


def _paths(nodes: Sequence[Node]) -> dict[int, list[str]]:
    """Return the shortest paths to each object that has tensors, from the root; through lists of all if need be."""
    return {**_walked(nodes, frozenset()), **_walked(nodes, _LISTS_OF_ALL)}


def _walked(nodes: Sequence[Node], without: frozenset[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    wanted = _leading_to_tensors(nodes)
    counts = [0] * len(nodes)
    waiting: deque[tuple[int, str, frozenset[int]]] = deque([(0, "", frozenset())] if nodes else [])
    while waiting:
        number, path, passed = waiting.popleft()
        if counts[number] == _MOST_PATHS or len(passed) > _MOST_DEPTH:
            continue
        counts[number] += 1
        if nodes[number].attributes:
            found.setdefault(number, []).append(path)
        for name, child in nodes[number].children:
            if child in wanted and child != number and child not in passed and name not in without:
                waiting.append((child, f"{path}/{_escaped(name)}" if path else _escaped(name), passed | {number}))
    return found


def _leading_to_tensors(nodes: Sequence[Node]) -> frozenset[int]:
    parents: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes):
        for _, child in node.children:
            parents[child].append(number)
    waiting = [number for number, node in enumerate(nodes) if node.attributes]
    seen = set(waiting)
    while waiting:
        for parent in parents[waiting.pop()]:
            if parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    return frozenset(seen)


def _escaped(name: str) -> str:
    """Return a local name as keys spell it."""
    return name.replace(".", "..").replace("/", ".S")


def _by_full_name(nodes: Sequence[Node], own_name: Mapping[int, str], weights: frozenset[int]) -> dict[str, str]:
    """Return the names of weights by their variables' own names, where only one has it."""
    found: dict[str, str | None] = {}
    for number in weights & own_name.keys():
        for attribute in nodes[number].attributes:
            if attribute.full_name:
                found[attribute.full_name] = None if attribute.full_name in found else own_name[number]
    return {full_name: name for full_name, name in found.items() if name is not None}


def _slot_by_name(full_name: str, by_full_name: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return variable and slot of a name like `Adam/m/dense/kernel`: optimizer, slot, variable."""
    _, _, rest = full_name.partition("/")
    slot, _, variable = rest.partition("/")
    return (by_full_name[variable], slot) if variable in by_full_name else (None, None)
