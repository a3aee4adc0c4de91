"""What is in other pieces on the two sides of a mapping: parts lost, kernels fused, a BatchNormalization folded."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from anyrig.mapping.canonical import in_common_words, parts_of
from anyrig.mapping.result import Mapping, Stored
from anyrig.state.wanted import Wanted

_Item = TypeVar("_Item", Stored, Wanted)
_PART = re.compile(r"(.+)/part_(\d+)(/.+)?")
_FUSED = (3, 4)  # query, key, value; the gates of an LSTM
_STATISTIC = "moving_variance"


@dataclass(frozen=True, slots=True)
class Parted:
    """A cause of the catalogue, its evidence, and the names on both sides that it accounts for."""

    cause: str
    evidence: tuple[str, ...]
    stored: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()


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
            line = f"{name}: it has the parts {have}, and not {', '.join(map(str, lost))}"
            yield Parted("incomplete", (line,), tuple(numbers.values()), wanted)


def _fused(unused: Sequence[Stored], missing: Sequence[Wanted]) -> Iterator[Parted]:
    """Several of one shape, side by side, and one on the other side that is as large as all of them along one axis."""
    for want in missing:
        for many in _side_by_side(unused):
            if _times(many[0].shape, want.shape) == len(many):
                stored = tuple(item.name for item in many)
                line = f"{', '.join(stored)} {list(many[0].shape)} each -> {want.name} {list(want.shape)}"
                yield Parted("fused", (line,), stored, (want.name,))
    for item in unused:
        for wants in _side_by_side(missing):
            if _times(wants[0].shape, item.shape) == len(wants):
                wanted = tuple(want.name for want in wants)
                line = f"{item.name} {list(item.shape)} -> {', '.join(wanted)} {list(wants[0].shape)} each"
                yield Parted("fused", (line,), (item.name,), wanted)


def _side_by_side(items: Sequence[_Item]) -> list[list[_Item]]:
    groups: dict[tuple[object, ...], list[_Item]] = defaultdict(list)
    for item in items:
        parts = parts_of(item.name)
        groups[parts[:-2], parts[-1], item.shape].append(item)
    return [group for group in groups.values() if len(group) in _FUSED]


def _times(one: tuple[int, ...], whole: tuple[int, ...]) -> int:
    """Return how many of `one` make `whole` along a single axis; 0 if none do."""
    differing = [(a, b) for a, b in zip(one, whole, strict=False) if a != b]
    if len(one) != len(whole) or len(differing) != 1 or differing[0][1] % differing[0][0]:
        return 0
    return differing[0][1] // differing[0][0]


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
