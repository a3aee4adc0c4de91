"""Names that agree but for what stands before them: a wrapper, a scope, a model inside another one.

A prefix is believed when nothing else competes with it, and when it is only put on or taken off, is what programs
put around models, or is shared by several layers. A single layer under another chosen name is left undecided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from anyrig.mapping.canonical import Parts, is_wrapper, parts_of
from anyrig.mapping.fit import fitted
from anyrig.mapping.result import Stored
from anyrig.state.wanted import Wanted

_SHARED = 2  # the layer's name and the variable's
_Moved = dict[tuple[Parts, Parts], list[tuple[Stored, Wanted]]]


def moved_prefixes(stored: Sequence[Stored], wanted: Sequence[Wanted]) -> list[tuple[Stored, Wanted, str]]:
    """Return what belongs together when one prefix is put in the place of another, with a sentence that says which."""
    moved = _candidates(stored, wanted)
    found = []
    for (old, new), pairs in sorted(moved.items(), key=lambda item: -len(item[1])):
        rivals = [other for other in moved if (other[0] == old) != (other[1] == new)]
        if any(len(moved[rival]) >= len(pairs) for rival in rivals) or not _believable(old, new, pairs):
            continue
        why = f"the same name under {_shown(new)} instead of {_shown(old)}"
        found += [(item, want, why) for item, want in pairs]
    return _once(found)


def _candidates(stored: Sequence[Stored], wanted: Sequence[Wanted]) -> _Moved:
    by_end: dict[Parts, list[tuple[Parts, Wanted]]] = defaultdict(list)
    for want in wanted:
        parts = parts_of(want.name)
        by_end[parts[-_SHARED:]].append((parts, want))
    moved: _Moved = defaultdict(list)
    for item in stored:
        parts = parts_of(item.name)
        for others, want in by_end.get(parts[-_SHARED:], ()) if len(parts) >= _SHARED else ():
            shared = _shared_end(parts, others)
            if fitted(item, want).ways:
                moved[parts[: len(parts) - shared], others[: len(others) - shared]].append((item, want))
    return moved


def _shared_end(first: Parts, second: Parts) -> int:
    count = 0
    while count < min(len(first), len(second)) and first[-1 - count] == second[-1 - count]:
        count += 1
    return count


def _believable(old: Parts, new: Parts, pairs: Sequence[tuple[Stored, Wanted]]) -> bool:
    layers = {want.layer for _, want in pairs}
    return not old or not new or all(map(is_wrapper, old)) or len(layers) >= _SHARED


def _once(found: Sequence[tuple[Stored, Wanted, str]]) -> list[tuple[Stored, Wanted, str]]:
    """Leave out whatever two prefixes claim."""
    stored: dict[str, int] = defaultdict(int)
    wanted: dict[str, int] = defaultdict(int)
    for item, want, _ in found:
        stored[item.name] += 1
        wanted[want.name] += 1
    return [line for line in found if stored[line[0].name] == wanted[line[1].name] == 1]


def _shown(prefix: Parts) -> str:
    return f"{'/'.join(prefix)}/" if prefix else "no prefix"
