"""What is in other pieces on the two sides of a mapping: parts lost, kernels fused, a BatchNormalization folded."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from anyrig.mapping.canonical import in_common_words, parts_of
from anyrig.mapping.layout import Step
from anyrig.mapping.result import Mapping, Stored
from anyrig.mapping.rule import line
from anyrig.state.wanted import Wanted

_Item = TypeVar("_Item", Stored, Wanted)
_PART = re.compile(r"(.+)/part_(\d+)(/.+)?")
_FUSED = (3, 4)  # query, key, value; the gates of an LSTM
_STATISTIC = "moving_variance"
_ORDER = "nothing shows the order in which they are joined: change it below if yours is another"


@dataclass(frozen=True, slots=True)
class Parted:
    """A cause of the catalogue, its evidence, the names on both sides it accounts for, and rules that settle it."""

    cause: str
    evidence: tuple[str, ...]
    stored: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


def parted(mapping: Mapping, unused: Sequence[Stored]) -> list[Parted]:
    """Return what the open ends of a mapping show; `unused` are its unused tensors that are weights."""
    return [*_lost_parts(unused, mapping.missing), *_fused(unused, mapping.missing), *_folded(mapping, unused)]


def _lost_parts(unused: Sequence[Stored], missing: Sequence[Wanted]) -> Iterator[Parted]:
    found: dict[str, dict[int, str]] = defaultdict(dict)
    for item in unused:
        if match := _PART.fullmatch(item.name):
            found[match[1] + (match[3] or "")][int(match[2])] = item.name
    for name, numbers in found.items():
        lost = sorted(set(range(max(numbers))) - numbers.keys())
        if lost:
            wanted = tuple(want.name for want in missing if _end(want.name) == _end(name))
            have = ", ".join(map(str, sorted(numbers)))
            told = f"{name}: it has the parts {have}, and not {', '.join(map(str, lost))}"
            yield Parted("incomplete", (told,), tuple(numbers.values()), wanted)


def _fused(unused: Sequence[Stored], missing: Sequence[Wanted]) -> Iterator[Parted]:
    """Several of one shape, side by side, and one on the other side that is as large as all of them along one axis."""
    for want in missing:
        for many in _side_by_side(unused):
            if (along := _along(many[0].shape, want.shape, len(many))) is not None:
                stored = tuple(item.name for item in many)
                told = f"{', '.join(stored)} {list(many[0].shape)} each -> {want.name} {list(want.shape)}"
                rule = line(stored, want.name, axis=along)
                yield Parted("fused", (told, _ORDER), stored, (want.name,), (rule,))
    for item in unused:
        for wants in _side_by_side(missing):
            if (along := _along(wants[0].shape, item.shape, len(wants))) is not None:
                wanted = tuple(want.name for want in wants)
                told = f"{item.name} {list(item.shape)} -> {', '.join(wanted)} {list(wants[0].shape)} each"
                rules = tuple(
                    line(item.name, name, Step("block", (along, index, len(wants))))
                    for index, name in enumerate(wanted)
                )
                yield Parted("fused", (told, _ORDER), (item.name,), wanted, rules)


def _side_by_side(items: Sequence[_Item]) -> list[list[_Item]]:
    groups: dict[tuple[object, ...], list[_Item]] = defaultdict(list)
    for item in items:
        parts = parts_of(item.name)
        groups[parts[:-2], parts[-1], item.shape].append(item)
    return [sorted(group, key=_usual_order) for group in groups.values() if len(group) in _FUSED]


def _usual_order(item: Stored | Wanted) -> int:
    """Query before key before value; others as they are listed."""
    first = parts_of(item.name)[-2:-1]
    return next((index for index, letter in enumerate("qkv") if first and first[0].lower().startswith(letter)), 3)


def _along(one: tuple[int, ...], whole: tuple[int, ...], count: int) -> int | None:
    """Return the axis along which `count` of `one` make `whole`; None if there is none."""
    if len(one) != len(whole):
        return None
    differing = [axis for axis, (a, b) in enumerate(zip(one, whole, strict=True)) if a != b]
    return differing[0] if len(differing) == 1 and one[differing[0]] * count == whole[differing[0]] else None


def _folded(mapping: Mapping, unused: Sequence[Stored]) -> Iterator[Parted]:
    """A model that normalizes, a file without any statistics, and biases in the file that nobody wants."""
    stored = [*unused, *(item for each in mapping.ambiguous for item in each.stored)]
    wanted = [*mapping.missing, *(want for each in mapping.ambiguous for want in each.wanted)]
    everything = [*stored, *(pair.stored for pair in mapping.pairs), *(item.stored for item in mapping.misfits)]
    if any(_word(item.name) == _STATISTIC for item in everything):
        return
    layers = {parts_of(want.name)[:-1]: want.shape for want in wanted if _word(want.name) == _STATISTIC}
    biases = [item for item in stored if parts_of(item.name)[-1] == "bias" and item.shape in layers.values()]
    if layers and biases:
        names = tuple(want.name for want in wanted if parts_of(want.name)[:-1] in layers)
        lines = (f"only in the file: {', '.join(b.name for b in biases[:3])}", f"only in the model: {names[0]} ...")
        yield Parted("bn-folded", lines, tuple(item.name for item in biases), names)


def _word(name: str) -> str:
    return in_common_words(parts_of(name))[-1]


def _end(name: str) -> tuple[str, ...]:
    return parts_of(name)[-2:]
