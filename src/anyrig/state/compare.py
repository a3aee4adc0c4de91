"""Compare what a checkpoint holds with what a model wants, before anything is assigned. Pure: names and specs only."""

from __future__ import annotations

import difflib
import glob
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from anyrig.errors import AnyrigError

_SHOWN = 20
_PATTERNS = 5


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


ALLOW_OPTIMIZER = '--allow-changes optimizer, in Python allow_changes=["optimizer"]'
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
                    *_how_to_rename(pairs),
                    *_how_to_keep(pairs, stored, wanted),
                    *hints,
                    _AS_SAVED,
                ]
            ),
        )


def refuse_ambiguous(stored: Sequence[Spec], wanted: Sequence[Spec], said: Collection[str] = ()) -> None:
    """Raise ANY-STATE-006 if only the order of unnamed layers would decide which of them gets which values.

    Of the names in `said` the user has said which tensor is meant.

    That is so where a name holds a position, another tensor of the same shape differs from it in positions only, and
    the fingerprint of the place in the graph is not the stored one.
    """
    have = {spec.name: spec for spec in stored}
    group_of = {spec.name: (re.sub(r"\.\d+(?=/)", ".#", spec.name), spec.shape) for spec in wanted}
    counts = Counter(group_of.values())
    moved = [
        spec
        for spec in wanted
        if spec.place != have[spec.name].place and counts[group_of[spec.name]] > 1 and spec.name not in said
    ]
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


def _how_to_rename(pairs: Iterable[tuple[Spec | None, Spec | None]]) -> list[str]:
    """Say how one layer that has another name, and variables of the same names and shapes, is loaded."""
    given: dict[str, dict[str, object]] = {}
    asked: dict[str, dict[str, object]] = {}
    for have, want in pairs:
        for spec, other, layers in ((have, want, given), (want, have, asked)):
            if spec is not None and other is None and _group(spec.name) == "model":
                layer, _, leaf = spec.name.rpartition("/")
                layers.setdefault(layer, {})[leaf] = spec.shape
    if len(given) != 1 or list(given.values()) != list(asked.values()):
        return []
    old, new = (next(iter(layers)).removeprefix("model/") for layers in (given, asked))
    return [f'if {old} is now called {new}: rename={{"{old}": "{new}"}}']


def _how_to_keep(
    pairs: Sequence[tuple[Spec | None, Spec | None]], stored: Sequence[Spec], wanted: Sequence[Spec]
) -> list[str]:
    """Say with which settings of `anyrig.load` that which fits is loaded all the same."""
    by_group: dict[str, list[tuple[Spec | None, Spec | None]]] = {}
    for pair in pairs:
        by_group.setdefault(_group(next(spec.name for spec in pair if spec is not None)), []).append(pair)
    held = any(_group(spec.name) == "optimizer" for spec in stored)
    wants = any(_group(spec.name) == "optimizer" for spec in wanted)
    if by_group.keys() <= {"optimizer", "ema"} and held and wants:
        return [f'to keep what fits of the optimizer: slots="partial" (in a run: {ALLOW_OPTIMIZER})']
    settings = _for_other_shapes(by_group.get("model", []), [*stored, *wanted])
    if any(None in pair for pair in by_group.get("model", [])):
        settings.append("strict=False")
    if by_group.keys() & {"optimizer", "ema"} and wants:
        settings.append('slots="partial"' if held else "optimizer=False")
    if "metrics" in by_group:
        settings.append("metrics=False")
    if not settings:
        return []
    why = "the checkpoint holds no optimizer; " if "optimizer=False" in settings else ""
    brief = "" if "model" in by_group else " (or weights_only=True)"
    return [f"{why}to load what fits (anyrig.load): {', '.join(settings)}{brief}"]


def _for_other_shapes(pairs: Iterable[tuple[Spec | None, Spec | None]], specs: Sequence[Spec]) -> list[str]:
    """Return the `exclude` that leaves out the layers some tensor of which has another shape."""
    names = [have.name for have, want in pairs if have and want and want.shape not in (None, have.shape)]
    patterns = list(dict.fromkeys(_layer_pattern(name, specs) for name in names))
    quoted = [f'"{pattern}"' for pattern in patterns[:_PATTERNS]] + ["..."] * (len(patterns) > _PATTERNS)
    return [f"exclude=[{', '.join(quoted)}]"] if quoted else []


def _layer_pattern(name: str, specs: Sequence[Spec]) -> str:
    """Return the pattern of all tensors of the layer that holds `name`; of `name` alone if layers are below that."""
    layer = name.rpartition("/")[0]
    rests = (spec.name.removeprefix(f"{layer}/") for spec in specs if spec.name.startswith(f"{layer}/"))
    return glob.escape(name) if any("/" in rest for rest in rests) else f"{glob.escape(layer)}/*"


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
