"""Layers of both sides as units that can be told apart or not: their variables, shapes and places in the graph."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from anyrig.mapping.canonical import Parts, in_common_words, is_wrapper, layer_of, parts_of, skeleton_of
from anyrig.mapping.result import Stored
from anyrig.state.automatic import snake_case
from anyrig.state.wanted import Wanted

Shape = tuple[int, ...]
_Item = TypeVar("_Item", Stored, Wanted)
Signature = frozenset[tuple[Parts, Shape]]
_ALONG_GRAPH = re.compile(r"layer_with_weights-\d+|.+\.\d+")
_RECURRENT = {"kernel", "recurrent_kernel", "bias"}


@dataclass(frozen=True, slots=True)
class StoredUnit:
    """A layer of the file. `positions` are those in its path, `place` is that of its first tensor in the file."""

    path: Parts
    skeleton: Parts
    numbers: tuple[int, ...]
    positions: Parts
    place: int
    leaves: dict[Parts, Stored] = field(default_factory=dict)

    @property
    def listed(self) -> bool:
        """Whether its variables are known by their order (`vars/0`) and not by names."""
        return all(leaf[-2:-1] == ("vars",) for leaf in self.leaves)

    @property
    def kind(self) -> str:
        """The class that its path says it is of, in snake case; "" where the path does not say."""
        last = self.skeleton[-1] if self.skeleton else ""
        return last[1:] if last.startswith("#") else ""

    @property
    def named(self) -> Parts:
        """The parts of its path that somebody chose."""
        return tuple(part for part in self.skeleton if not part.startswith("#") and not is_wrapper(part))


@dataclass(frozen=True, slots=True)
class WantedUnit:
    """A layer of the model."""

    path: Parts
    skeleton: Parts
    leaves: dict[Parts, Wanted] = field(default_factory=dict)

    @property
    def any(self) -> Wanted:
        """One of its variables."""
        return next(iter(self.leaves.values()))

    @property
    def kind(self) -> str:
        """Its class in snake case."""
        return snake_case(self.any.layer_class)

    @property
    def listed(self) -> dict[Parts, Wanted]:
        """Its variables by their order, as Keras 3 stores them."""
        return {(*leaf[:-1], "vars", str(item.index)): item for leaf, item in self.leaves.items()}

    @property
    def named(self) -> Parts:
        """The parts of its path that somebody chose."""
        return tuple(part for part in self.skeleton if not part.startswith("#"))

    def leaves_like(self, unit: StoredUnit, foreign: bool) -> dict[Parts, Wanted]:
        """Return its variables under such names as `unit` has for them."""
        return self.listed if unit.listed else in_words(self.leaves, foreign)


def stored_units(stored: Iterable[Stored], classes: frozenset[str]) -> list[StoredUnit]:
    """Group tensors into layers."""
    units: dict[Parts, StoredUnit] = {}
    for place, item in enumerate(stored):
        path, leaf = layer_of(parts_of(item.name), classes)
        unit = units.get(path)
        if unit is None:
            unit = units[path] = StoredUnit(path, *skeleton_of(path, classes), place)
        unit.leaves[leaf] = item
    return list(units.values())


def wanted_units(wanted: Iterable[Wanted], classes: frozenset[str]) -> list[WantedUnit]:
    """Group variables into layers."""
    units: dict[str, WantedUnit] = {}
    for item in wanted:
        path = tuple(item.layer.split("/"))
        unit = units.setdefault(item.layer, WantedUnit(path, skeleton_of(path, classes)[0]))
        unit.leaves[tuple(part.lstrip("_") or part for part in item.leaf.split("/"))] = item
    return list(units.values())


def classes_of(wanted: Iterable[Wanted]) -> frozenset[str]:
    """Return the snake-case names of the classes that positions in names may stand for."""
    found = set()
    for item in wanted:
        found.add(snake_case(item.layer_class))
        parts = item.layer.split("/")
        found.update(part.rpartition(".")[0] for part in parts if part.rpartition(".")[2].isdecimal())
    return frozenset(found - {""}) | ({"model"} if "functional" in found else frozenset())


def signature(leaves: dict[Parts, _Item], foreign: bool) -> Signature:
    """Return what can be said of a layer without names: its variables and their shapes.

    The bias of a recurrent layer counts without its shape, which differs between versions; a scalar is like [1].
    """
    named = in_words(leaves, foreign)
    recurrent = {leaf[-1] for leaf in named} == _RECURRENT
    return frozenset(
        (leaf, () if item.shape == (1,) or (recurrent and leaf[-1] == "bias") else item.shape)
        for leaf, item in named.items()
    )


def in_order(stored: Sequence[StoredUnit], wanted: Sequence[WantedUnit], ordered: bool) -> bool:
    """Tell whether both sides have an order that is the graph's and no accident, so that n-th means n-th.

    On the side of the file that is where a format counts layers along the graph (`layer_with_weights-3`, `vars/0`, this
    project's `dense.3`), or lists them so (`ordered`); a mere counter of names (`dense_7`) is none. On the side of the
    model it is where each layer comes before the next whatever order they were made in.
    """
    if len({unit.skeleton for unit in stored}) != 1 or not all(unit.numbers for unit in stored):
        return False
    if not all(_counts_along_graph(unit) or (ordered and len(unit.path) == 1) for unit in stored):
        return False
    ranked = sorted(wanted, key=lambda unit: unit.any.rank)
    return all(
        before.any.rank in after.any.before and after.any.rank not in before.any.before
        for before, after in pairwise(ranked)
    )


def order_key(unit: StoredUnit, ordered: bool) -> tuple[int, ...]:
    """Return what sorts stored layers for which `in_order` holds."""
    return unit.numbers if _counts_along_graph(unit) or not ordered else (unit.place,)


def _counts_along_graph(unit: StoredUnit) -> bool:
    return unit.listed or all(_ALONG_GRAPH.fullmatch(part) for part in unit.positions)


def in_words(leaves: dict[Parts, _Item], foreign: bool) -> dict[Parts, _Item]:
    """Return variables under the words that all libraries share, if some are called as others do."""
    return {in_common_words(leaf) if foreign else leaf: item for leaf, item in leaves.items()}
