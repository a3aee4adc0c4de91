"""Compare what a checkpoint holds with what a model wants, before anything is assigned. Pure: names and specs only."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from anyrig.errors import AnyrigError

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor as one side has it. `shape` and `dtype` are None where only the layer that loads it can say."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str | None
    place: str | None = None
    aliases: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}  {self.dtype or 'any type'} {list(self.shape) if self.shape is not None else 'any shape'}"


def refuse_differences(stored: Sequence[Spec], wanted: Sequence[Spec], hints: Iterable[str] = ()) -> None:
    """Raise ANY-STATE-005 with every name, shape and type that one side has and the other has not."""
    have, want = {spec.name: spec for spec in stored}, {spec.name: spec for spec in wanted}
    lines = [*_mismatched(have, want), *_missing(have, want), *_unwanted(have, want)]
    if lines:
        more = [f"  ... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        raise AnyrigError(
            "ANY-STATE-005",
            "the checkpoint does not fit the model; nothing was changed\n" + "\n".join(lines[:_SHOWN] + more),
            hint="; ".join([*hints, "build and compile the model as it was when saved"]),
        )


def refuse_ambiguous(stored: Sequence[Spec], wanted: Sequence[Spec]) -> None:
    """Raise ANY-STATE-006 if only the order of unnamed layers would decide which of them gets which values.

    That is so where a name holds a position, another tensor of the same shape differs from it in positions only, and
    the fingerprint of the place in the graph is not the stored one.
    """
    have = {spec.name: spec for spec in stored}
    group_of = {spec.name: (re.sub(r"\.\d+(?=/)", ".#", spec.name), spec.shape) for spec in wanted}
    counts = Counter(group_of.values())
    moved = [spec for spec in wanted if spec.place != have[spec.name].place and counts[group_of[spec.name]] > 1]
    if moved:
        raise AnyrigError("ANY-STATE-006", _ambiguity(moved, stored, wanted, group_of), hint=_NAME_THEM)


_NAME_THEM = "give the layers names (name=...) in the code that saves and the code that loads, and save again"


def _ambiguity(
    moved: Sequence[Spec], stored: Sequence[Spec], wanted: Sequence[Spec], group_of: Mapping[str, object]
) -> str:
    first = moved[0]
    siblings = [spec.name for spec in wanted if group_of[spec.name] == group_of[first.name] and spec is not first]
    twins = [spec.name for spec in stored if spec.place == first.place and spec.name in siblings]
    other = (twins or siblings)[0]
    same = f"; the model's place of {first.name} is the checkpoint's {other}" if twins else ""
    return (
        f"unnamed layers of equal shape have moved in the graph since the save: {first.name} and {other} can "
        f"only be told apart by their order, which does not fit{same}; nothing was changed ({len(moved)} such tensors)"
    )


def _mismatched(have: Mapping[str, Spec], want: Mapping[str, Spec]) -> list[str]:
    lines = []
    for name in want:
        if name in have and not _fits(have[name], want[name]):
            lines.append(f"  stored  {have[name]}\n  wanted  {want[name]}")
    return lines


def _fits(have: Spec, want: Spec) -> bool:
    return want.shape in (None, have.shape) and want.dtype in (None, have.dtype)


def _missing(have: Mapping[str, Spec], want: Mapping[str, Spec]) -> list[str]:
    spare = {name: spec for name, spec in have.items() if name not in want}
    return [f"  stored  {_nearest(spec, spare)}\n  wanted  {spec}" for name, spec in want.items() if name not in have]


def _unwanted(have: Mapping[str, Spec], want: Mapping[str, Spec]) -> list[str]:
    spare = {name: spec for name, spec in want.items() if name not in have}
    return [f"  stored  {spec}\n  wanted  {_nearest(spec, spare)}" for name, spec in have.items() if name not in want]


def _nearest(spec: Spec, spare: Mapping[str, Spec]) -> str:
    """Return `nothing`, with the name on the other side that is likely meant."""
    same_alias = [name for name, other in spare.items() if {spec.name, *spec.aliases} & {name, *other.aliases}]
    group = spec.name.partition("/")[0]
    close = same_alias or difflib.get_close_matches(
        spec.name, [name for name in list(spare)[:2000] if name.startswith(group + "/")], n=1
    )
    return f"nothing (nearest: {spare[close[0]]})" if close else "nothing"
