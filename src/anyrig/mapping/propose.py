"""Proposes which stored tensor fills which variable: `propose(stored, wanted) -> Mapping`.

    mapping = propose(read_any(path).tensors, wanted_by(model))
    if mapping.complete: values = dict(anyrig.mapping.apply.arrays(mapping))      {wanted name: ndarray}

In this order: the very name, a further name, the name without decorations, without wrappers, in common words, under
another prefix, then the layer's variables and shapes. What a name says is taken as said where somebody chose the name.
Where a part of it is a position or a counter that Keras made (`dense_7`), it says nothing about layers with the same
variables and shapes: those are paired only if both sides have the order of the graph, and else are ambiguous.
No value is read, and nothing is guessed: what cannot be decided is in `Mapping.ambiguous` with all candidates.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from anyrig.formats.contents import FileTensor
from anyrig.mapping.canonical import in_common_words, parts_of, speaks_foreign, without_wrappers
from anyrig.mapping.fit import cause_of_misfit, cudnn_steps, fitted
from anyrig.mapping.layout import Step
from anyrig.mapping.prefixes import moved_prefixes
from anyrig.mapping.recurrent import as_cudnn
from anyrig.mapping.result import Ambiguous, Mapping, Misfit, Pair, Stored
from anyrig.mapping.sides import stored_side
from anyrig.mapping.slots import is_training_state, slot_pairs
from anyrig.mapping.units import (
    StoredUnit,
    WantedUnit,
    classes_of,
    in_order,
    in_words,
    order_key,
    signature,
    stored_units,
    wanted_units,
)
from anyrig.state.wanted import Wanted

_Item = TypeVar("_Item", Stored, Wanted)


def propose(
    stored: Iterable[FileTensor] | Sequence[Stored],
    wanted: Iterable[Wanted],
    *,
    ordered: bool = False,
    accept_order: bool = False,
) -> Mapping:
    """Return the mapping of stored tensors to variables, each pair with its rule, its reason and a confidence.

    `ordered`: the format lists layers in the order of the graph (legacy HDF5 files do). `accept_order`: layers that
    nothing but their order tells apart are paired in order, because the user said that the same code made both sides.
    """
    given = list(stored)
    items = [item for item in given if isinstance(item, Stored)] or stored_side(given)  # type: ignore[arg-type]
    wants = list(wanted)
    names = {item.name for item in items}
    training = [item for item in items if is_training_state(item, names)]
    search = _Search(
        stored={item.name: item for item in items if not is_training_state(item, names)},
        wanted={item.name: item for item in wants if item.role == "weight"},
        ordered=ordered,
        accept_order=accept_order,
    )
    search.by_names()
    search.by_structure()
    search.what_is_left()
    return _mapping(search, training, [item for item in wants if item.role != "weight"])


def _mapping(search: _Search, training: list[Stored], others: list[Wanted]) -> Mapping:
    search.pairs, search.misfits = as_cudnn(search.pairs, search.misfits)
    direct = _same_names(training, others)
    taken = {pair.wanted.name for pair in direct}
    slots = direct + slot_pairs(training, [item for item in others if item.name not in taken], search.pairs)
    used, filled = {pair.stored.name for pair in slots}, {pair.wanted.name for pair in slots}
    return Mapping(
        pairs=tuple(search.pairs + slots),
        ambiguous=tuple(search.ambiguous),
        misfits=tuple(search.misfits),
        missing=(*search.wanted.values(), *(item for item in others if item.name not in filled)),
        unused=(*search.stored.values(), *(item for item in training if item.name not in used)),
    )


def _same_names(training: Iterable[Stored], others: Iterable[Wanted]) -> list[Pair]:
    known = {item.name: item for item in training}
    return [
        Pair(known[want.name], want, "name", "both have this name", 1.0)
        for want in others
        if want.name in known and known[want.name].shape == want.shape and not want.automatic
    ]


@dataclass(slots=True)
class _Search:
    """What is open on both sides, and what has been found."""

    stored: dict[str, Stored]
    wanted: dict[str, Wanted]
    ordered: bool
    accept_order: bool
    pairs: list[Pair] = field(default_factory=list)
    ambiguous: list[Ambiguous] = field(default_factory=list)
    misfits: list[Misfit] = field(default_factory=list)

    def by_names(self) -> None:
        """Pair what is called the same by somebody's choice."""
        for rule, why, confidence, keys_of in _NAME_RULES:
            candidates = list(self.wanted.values()) if rule in _WITH_PLACE else self._chosen()
            for item, want in _only_ones(_by_key(self.stored.values(), keys_of), _by_key(candidates, keys_of)):
                self.take(item, want, rule, why, confidence)
        for item, want, why in moved_prefixes(list(self.stored.values()), self._chosen()):
            self.take(item, want, "prefix", why, 0.9)

    def _chosen(self) -> list[Wanted]:
        return [item for item in self.wanted.values() if not item.automatic]

    def take(
        self,
        item: Stored,
        want: Wanted,
        rule: str,
        why: str,
        confidence: float,
        steps: tuple[Step, ...] | None = None,
    ) -> None:
        """Pair two that belong together, if one layout fits; else say why not."""
        del self.stored[item.name], self.wanted[want.name]
        if steps is not None:
            self.pairs.append(Pair(item, want, rule, why, confidence, steps))
            return
        found = fitted(item, want)
        if len(found.ways) == 1:
            reason = f"{why}; {found.why}" if found.why else why
            sure = confidence if not found.ways[0] else min(confidence, 0.9)
            self.pairs.append(Pair(found.stored, want, rule, reason, sure, found.ways[0]))
        elif found.ways:
            reason = f"{found.why}: the shape {list(item.shape)} fits turned and as it is, and does not say which"
            self.ambiguous.append(Ambiguous((want,), (item,), reason))
        else:
            self.misfits.append(Misfit(item, want, *cause_of_misfit(item, want)))

    def by_structure(self) -> None:
        """Pair layers that their variables and shapes, or the order of the graph, tell apart from all others."""
        classes = classes_of([*self.wanted.values(), *(pair.wanted for pair in self.pairs)])
        foreign = speaks_foreign(parts_of(name) for name in self.stored)
        have = stored_units(self.stored.values(), classes)
        want = wanted_units(self.wanted.values(), classes)
        wordless = _wordless_shapes(have, want, foreign)
        for group in _groups(have, want, foreign):
            if wordless.isdisjoint(item.shape for unit in group.stored for item in unit.leaves.values()):
                self._pair_group(group, foreign)
            else:
                self._undecided(group, _WORDLESS)

    def _pair_group(self, group: _Group, foreign: bool) -> None:
        have, want = group.stored, group.wanted
        if len(have) == len(want) == 1:
            if _names_disagree(have[0], want[0]) and self.pairs:
                self._undecided(group, _RENAMED)
            else:
                self._pair_units(have[0], want[0], foreign, "structure", group.why, 0.9)
        elif len(have) == len(want) and in_order(have, want, self.ordered):
            self._in_turn(group, foreign, "order", "the n-th of its kind along the graph on both sides", 0.9)
        elif len(have) == len(want) and self.accept_order and len({unit.skeleton for unit in have}) == 1:
            self._in_turn(group, foreign, "accepted order", "the n-th of its kind; the order was accepted", 0.5)
        else:
            self._undecided(group, _SAME_SHAPES)

    def _in_turn(self, group: _Group, foreign: bool, rule: str, why: str, confidence: float) -> None:
        have = sorted(group.stored, key=lambda unit: order_key(unit, self.ordered))
        want = sorted(group.wanted, key=lambda unit: unit.any.rank)
        for unit, layer in zip(have, want, strict=True):
            self._pair_units(unit, layer, foreign, rule, why, confidence)

    def _pair_units(
        self, unit: StoredUnit, layer: WantedUnit, foreign: bool, rule: str, why: str, confidence: float
    ) -> None:
        wanted = layer.leaves_like(unit, foreign)
        stored = in_words(unit.leaves, foreign)
        named = {leaf: tuple(item.leaf.split("/")) for leaf, item in wanted.items()}
        steps = cudnn_steps(
            {named[leaf]: item for leaf, item in stored.items()}, {named[leaf]: w for leaf, w in wanted.items()}
        )
        if steps is not None:
            why = f"{why}; its bias shows that it was a CuDNN layer, whose kernels are laid out otherwise"
        for leaf, item in stored.items():
            self.take(item, wanted[leaf], rule, why, confidence, steps[named[leaf]] if steps else None)

    def _undecided(self, group: _Group, why: str) -> None:
        """List what could be what, variable by variable, and pair nothing."""
        slots: dict[Hashable, tuple[list[Wanted], list[Stored]]] = defaultdict(lambda: ([], []))
        for layer in group.wanted:
            for leaf, item in layer.leaves_like(group.stored[0], group.foreign).items():
                slots[leaf][0].append(item)
        for unit in group.stored:
            for leaf, tensor in in_words(unit.leaves, group.foreign).items():
                slots[leaf][1].append(tensor)
        for wanted, stored in slots.values():
            self._list_undecided(wanted, stored, why)

    def _list_undecided(self, wanted: Iterable[Wanted], stored: Iterable[Stored], why: str) -> None:
        found = Ambiguous(tuple(wanted), tuple(stored), why)
        self.ambiguous.append(found)
        for item in found.wanted:
            del self.wanted[item.name]
        for tensor in found.stored:
            del self.stored[tensor.name]

    def what_is_left(self) -> None:
        """Single tensors under names that say nothing: by shape, where all that is left agrees; else misfits."""
        have = _by_key(self.stored.values(), lambda item: [item.shape])
        want = _by_key(self.wanted.values(), lambda item: [item.shape])
        agree = bool(have) and {k: len(v) for k, v in have.items()} == {k: len(v) for k, v in want.items()}
        nothing_known = not self.pairs and not self.ambiguous
        halves = self._halves()
        for shape in list(want):
            if shape not in have or all((a.name, b.name) in halves for a in have[shape] for b in want[shape]):
                continue
            if len(have[shape]) == len(want[shape]) == 1 and agree and nothing_known:
                why = "the only tensor of this shape; all shapes agree"
                self.take(have[shape][0], want[shape][0], "shape", why, 0.7)
            else:
                self._list_undecided(want[shape], have[shape], _SAME_SHAPES if len(want[shape]) > 1 else _RENAMED)
        self._heads()

    def _halves(self) -> set[tuple[str, str]]:
        """Return pairs of one shape in layers with the same variables, of which others have another shape.

        Such a layer is another one: nobody is asked whether a half of it was renamed.
        """
        classes = classes_of([*self.wanted.values(), *(pair.wanted for pair in self.pairs)])
        found = set()
        for unit in stored_units(self.stored.values(), classes):
            for layer in wanted_units(self.wanted.values(), classes):
                same = {leaf: (item, layer.leaves[leaf]) for leaf, item in unit.leaves.items() if leaf in layer.leaves}
                if len(same) == len(unit.leaves) == len(layer.leaves):
                    fit = [(a.name, b.name) for a, b in same.values() if a.shape == b.shape]
                    found |= set(fit) if len(fit) < len(same) else set()
        return found

    def _heads(self) -> None:
        """Of a class of layers, one is left on each side with the same variables in other shapes: say what differs."""
        classes = classes_of([*self.wanted.values(), *(pair.wanted for pair in self.pairs)])
        have, want = stored_units(self.stored.values(), classes), wanted_units(self.wanted.values(), classes)
        for unit in have:
            others = [u for u in have if u.kind == unit.kind and u.leaves.keys() == unit.leaves.keys()]
            layers = [
                w for w in want if w.kind == unit.kind and w.leaves_like(unit, False).keys() == unit.leaves.keys()
            ]
            if len(layers) == len(others) == 1:
                wanted = layers[0].leaves_like(unit, False)
                for leaf, item in unit.leaves.items():
                    del self.stored[item.name], self.wanted[wanted[leaf].name]
                    self.misfits.append(Misfit(item, wanted[leaf], *cause_of_misfit(item, wanted[leaf])))


_SAME_SHAPES = "they have the same shapes, and their names are positions or say nothing: order alone would decide"
_WORDLESS = "other tensors, whose names say nothing at all, have the same shapes"
_RENAMED = "the names differ by choice: it may have been renamed, or be another layer of the same shape"


def _wordless_shapes(have: Sequence[StoredUnit], want: Sequence[WantedUnit], foreign: bool) -> set[tuple[int, ...]]:
    """Return the shapes of stored tensors of whose names not even the last part is known to the model.

    In a file that numbers the variables of some layers and names those of others, the numbered ones count as such.
    """
    mixed = len({unit.listed for unit in have}) > 1
    words = {leaf[-1] for layer in want for leaf in in_words(layer.leaves, foreign)}
    return {
        item.shape
        for unit in have
        for leaf, item in in_words(unit.leaves, foreign).items()
        if (mixed if unit.listed else leaf[-1] not in words)
    }


def _names_disagree(unit: StoredUnit, layer: WantedUnit) -> bool:
    return bool(unit.named and layer.named) and unit.named[-1:] != layer.named[-1:]


@dataclass(frozen=True, slots=True)
class _Group:
    """Layers of both sides with the same variables and shapes."""

    stored: list[StoredUnit]
    wanted: list[WantedUnit]
    foreign: bool
    why: str = "the only layer with these variables and shapes on both sides"


def _groups(have: Sequence[StoredUnit], want: Sequence[WantedUnit], foreign: bool) -> list[_Group]:
    """Put together what has the same variables and shapes.

    What stands under the same chosen name on both sides comes first, then what is of one class as far as each of them
    says its class, then the rest.
    """
    groups: list[_Group] = []
    left, layers = list(have), list(want)
    for key_of, is_group in _GROUPINGS:
        for units in _by_unit_key(left, key_of, foreign):
            key = key_of(units[0], foreign)
            fitting = [layer for layer in layers if key_of(layer, foreign, units[0]) == key]
            if fitting and is_group(units, fitting, left, foreign):
                groups.append(_Group(units, fitting, foreign))
                left = [unit for unit in left if unit not in units]
                layers = [layer for layer in layers if layer not in fitting]
    return groups


_KeyOf = Callable[..., Hashable]


def _by_unit_key(units: Sequence[StoredUnit], key_of: _KeyOf, foreign: bool) -> list[list[StoredUnit]]:
    found: dict[Hashable, list[StoredUnit]] = defaultdict(list)
    for unit in units:
        found[key_of(unit, foreign)].append(unit)
    return list(found.values())


def _under_chosen_names(
    units: Sequence[StoredUnit], fitting: Sequence[WantedUnit], left: Sequence[StoredUnit], foreign: bool
) -> bool:
    return bool(units[0].named) and len(units) == len(fitting)


def _of_one_class(
    units: Sequence[StoredUnit], fitting: Sequence[WantedUnit], left: Sequence[StoredUnit], foreign: bool
) -> bool:
    key = _key(units[0], foreign)
    return all(unit.kind for unit in left if _key(unit, foreign) == key)


def _always(*_: object) -> bool:
    return True


def _key(unit: StoredUnit | WantedUnit, foreign: bool, like: StoredUnit | None = None) -> Hashable:
    if isinstance(unit, StoredUnit):
        return signature(unit.leaves, foreign)
    return signature(unit.listed if like is not None and like.listed else unit.leaves, foreign)


def _key_with_kind(unit: StoredUnit | WantedUnit, foreign: bool, like: StoredUnit | None = None) -> Hashable:
    return unit.kind, _key(unit, foreign, like)


def _key_with_names(unit: StoredUnit | WantedUnit, foreign: bool, like: StoredUnit | None = None) -> Hashable:
    return unit.named, _key(unit, foreign, like)


def _only_ones(have: dict[Hashable, list[Stored]], want: dict[Hashable, list[Wanted]]) -> list[tuple[Stored, Wanted]]:
    """Return what one key alone, and no other key, puts together."""
    found = {
        (have[key][0].name, want[key][0].name): (have[key][0], want[key][0])
        for key in want
        if key in have and len(have[key]) == len(want[key]) == 1
    }
    stored, wanted = Counter(a for a, _ in found), Counter(b for _, b in found)
    return [pair for (a, b), pair in found.items() if stored[a] == wanted[b] == 1]


def _by_key(items: Iterable[_Item], keys_of: Callable[[_Item], Sequence[Hashable]]) -> dict[Hashable, list[_Item]]:
    found: dict[Hashable, list[_Item]] = defaultdict(list)
    for item in items:
        for key in dict.fromkeys(keys_of(item)):
            found[key].append(item)
    return found


def _names(item: Stored | Wanted) -> list[Hashable]:
    return [item.name]


def _all_names(item: Stored | Wanted) -> list[Hashable]:
    return [item.name, *item.aliases]


def _places(item: Stored | Wanted) -> list[Hashable]:
    return [(item.place, parts_of(item.name)[-1])] if item.place else []


def _named_places(item: Stored | Wanted) -> list[Hashable]:
    return [(item.place, item.name)] if item.place else []


def _paths(item: Stored | Wanted) -> list[Hashable]:
    return [parts_of(name) for name in (item.name, *item.aliases)]


def _unwrapped(item: Stored | Wanted) -> list[Hashable]:
    return [without_wrappers(parts_of(name)) for name in (item.name, *item.aliases)]


def _in_words(item: Stored | Wanted) -> list[Hashable]:
    return [in_common_words(without_wrappers(parts_of(name))) for name in (item.name, *item.aliases)]


_GROUPINGS: tuple[tuple[_KeyOf, Callable[..., bool]], ...] = (
    (_key_with_names, _under_chosen_names),
    (_key_with_kind, _of_one_class),
    (_key, _always),
)

_WITH_PLACE = ("name and place", "place")
_KeysOf = Callable[[Any], Sequence[Hashable]]
# The rule, why, its confidence, and the keys under which a stored tensor and a variable are known to it.
_NAME_RULES: tuple[tuple[str, str, float, _KeysOf], ...] = (
    ("name and place", "the same name at the same place in the graph", 1.0, _named_places),
    ("place", "the same place in the graph", 0.95, _places),
    ("name", "both have this name", 1.0, _names),
    ("alias", "one is a further name of the other", 1.0, _all_names),
    ("path", "the same name without the decorations of the format", 0.95, _paths),
    ("wrapper", "the same name without what was put around the model", 0.9, _unwrapped),
    ("words", "the same name in the words of another library", 0.9, _in_words),
)
