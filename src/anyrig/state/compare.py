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


_AS_SAVED = "build and compile the model as it was when saved"


def refuse_differences(stored: Sequence[Spec], wanted: Sequence[Spec], hints: Iterable[str] = ()) -> None:
    """Raise ANY-STATE-005 with every name, shape and type that one side has and the other has not."""
    have, want = {spec.name: spec for spec in stored}, {spec.name: spec for spec in wanted}
    differing = [(have.get(name), spec) for name, spec in want.items() if not _fits(have.get(name), spec)]
    unwanted = [(spec, None) for name, spec in have.items() if name not in want]
    pairs: list[tuple[Spec | None, Spec | None]] = [*differing, *unwanted]
    if pairs:
        lines = [_shown(pair, have, want) for pair in pairs[:_SHOWN]]
        more = [f"  ... and {len(pairs) - _SHOWN} more"] if len(pairs) > _SHOWN else []
        raise AnyrigError(
            "ANY-STATE-005",
            "the checkpoint does not fit the model; nothing was changed\n" + "\n".join(lines + more),
            hint="; ".join(
                [
                    *_how_to_cast(differing),
                    *_how_to_keep(pairs),
                    *hints,
                    "build and compile the model as it was when saved",
                ]
            ),
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


def _how_to_cast(differing: Iterable[tuple[Spec | None, Spec]]) -> list[str]:
    """Say how to convert on loading what differs in type only."""
    same_shape = [(have, want) for have, want in differing if have is not None and have.shape == want.shape]
    types = {(str(have.dtype), str(want.dtype)) for have, want in same_shape if have.dtype != want.dtype}
    floats = types and all("float" in name for pair in types for name in pair)
    each = ", ".join(f'"PATTERN": "{new}"' for new in sorted({new for _, new in types}))
    return [f"to convert on loading: {'cast=True, or ' if floats else ''}cast={{{each}}}"] if types else []


def _how_to_keep(pairs: Iterable[tuple[Spec | None, Spec | None]]) -> list[str]:
    """Say how to go on when nothing but the optimizer differs."""
    groups = {_group(spec.name) for pair in pairs for spec in pair if spec is not None}
    keep = 'to keep what fits of the optimizer: slots="partial" (in a run: --allow-changes optimizer)'
    return [keep] if groups and groups <= {"optimizer", "ema"} else []


def _fits(have: Spec | None, want: Spec) -> bool:
    return have is not None and want.shape in (None, have.shape) and want.dtype in (None, have.dtype)


def _shown(pair: tuple[Spec | None, Spec | None], have: Mapping[str, Spec], want: Mapping[str, Spec]) -> str:
    stored, wanted = pair
    if stored is None and wanted is not None:
        return f"  stored  {_nearest(wanted, have, want)}\n  wanted  {wanted}"
    if wanted is None and stored is not None:
        return f"  stored  {stored}\n  wanted  {_nearest(stored, want, have)}"
    return f"  stored  {stored}\n  wanted  {wanted}"


def _nearest(spec: Spec, there: Mapping[str, Spec], here: Mapping[str, Spec]) -> str:
    """Return `nothing`, with the name on the other side, missing on this one, that is likely meant."""
    spare = {name: other for name, other in there.items() if name not in here and _group(name) == _group(spec.name)}
    known = {spec.name, *spec.aliases}
    close = [name for name, other in spare.items() if known & {name, *other.aliases}]
    close = close or difflib.get_close_matches(spec.name, list(spare)[:1000], n=1)
    return f"nothing (nearest: {spare[close[0]]})" if close else "nothing"


def _group(name: str) -> str:
    return name.partition("/")[0]
