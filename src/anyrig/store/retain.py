"""Which checkpoints stay, and the removal of the others.

The choice is pure. A removal renames first, so that a kill in the middle never leaves half a checkpoint under a final
name; `sweep_partials` finishes what was left.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from anyrig.errors import AnyrigError
from anyrig.store.layout import leftover_name, step_name
from anyrig.store.local import LOCAL, LocalFiles, remove_tree
from anyrig.store.pins import is_pinned


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """The last `last` (None: all), the `best` by `monitor`, every step divisible by `every`, and all pinned ones.

    `max_total_size` and `min_free`, in bytes, come before the three numbers, never before a pin.
    """

    last: int | None = 3
    best: int = 0
    monitor: str | None = None
    mode: Literal["min", "max"] = "min"
    every: int | None = None
    max_total_size: int | None = None
    min_free: int | None = None

    def __post_init__(self) -> None:
        whole = (("keep_last", self.last, 1), ("keep_every", self.every, 1), ("keep_best", self.best, 0))
        for name, value, least in whole:
            if value is not None and (type(value) is not int or value < least):
                raise ValueError(f"{name}={value!r}: give a whole number, {least} or more")
        if self.best and not self.monitor:
            raise ValueError(f"keep_best={self.best} needs `monitor`, the name of the metric that says what is best")
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode={self.mode!r}: give 'min' or 'max'")


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A committed step: its value of the monitored metric (None when it has none), whether it is pinned, its bytes."""

    step: int
    metric: float | None = None
    pinned: bool = False
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a step: `stays` holds the reasons in words; where there are none, `goes` holds that for going."""

    info: StepInfo
    stays: tuple[str, ...]
    goes: str


def judge(steps: Iterable[StepInfo], keep: Keep, *, free: int | None = None) -> list[Verdict]:
    """Say of each step, oldest first, whether it stays and why.

    The newest step and pinned ones stay whatever the rules say. Of the others, size rules take first the oldest ones
    that are not among the best, then the worst of those. `free` is what is free on the disk, in bytes; without it
    `min_free` is not looked at.
    """
    ordered = sorted(steps, key=lambda info: info.step)
    ranks = {step: rank for rank, step in enumerate(best_of(ordered, keep))}
    fixed = {info.step: tuple(_beyond_rules(info, ordered)) for info in ordered}
    stays = {
        info.step: fixed[info.step] + tuple(_by_rules(info, place, keep, ranks))
        for place, info in enumerate(reversed(ordered))
    }
    goes = dict.fromkeys(stays, "no rule keeps it")
    total = sum(info.nbytes for info in ordered if stays[info.step])
    left = None if free is None else free + sum(info.nbytes for info in ordered if not stays[info.step])
    loose = [info for info in ordered if stays[info.step] and not fixed[info.step]]
    for info in sorted(loose, key=lambda info: (info.step in ranks, -ranks.get(info.step, 0), info.step)):
        broken = _broken(keep, total, left)
        if broken is None:
            break
        stays[info.step], goes[info.step] = (), broken
        total -= info.nbytes
        left = None if left is None else left + info.nbytes
    return [Verdict(info, stays[info.step], "" if stays[info.step] else goes[info.step]) for info in ordered]


def to_remove(steps: Iterable[StepInfo], keep: Keep, *, free: int | None = None) -> list[int]:
    """Return the steps that `judge` lets go, oldest first."""
    return [verdict.info.step for verdict in judge(steps, keep, free=free) if not verdict.stays]


def to_make_room(steps: Sequence[StepInfo], keep: Keep, *, coming: int, free: int) -> list[int]:
    """Return what has to go before a save of `coming` bytes: oldest first, no more than that, and never the newest.

    What may go is what would go after that save; where it is not enough and `min_free` is set, what that lets go.
    """
    short = coming + (keep.min_free or 0) - free
    if short <= 0 or not steps:
        return []
    newest = max(steps, key=lambda info: info.step)
    others = [replace(info, pinned=info.pinned or info is newest) for info in steps]
    after = [*others, StepInfo(newest.step + 1)]
    rules = replace(keep, max_total_size=None)
    going = to_remove(after, replace(rules, min_free=None))
    sizes = {info.step: info.nbytes for info in steps}
    for count, _ in enumerate(going):
        if sum(sizes[step] for step in going[:count]) >= short:
            return going[:count]
    return to_remove(after, rules, free=free - coming)


def _beyond_rules(info: StepInfo, ordered: Sequence[StepInfo]) -> Iterator[str]:
    if info is ordered[-1]:
        yield "newest"
    if info.pinned:
        yield "pinned"


def _by_rules(info: StepInfo, place: int, keep: Keep, ranks: Mapping[int, int]) -> Iterator[str]:
    if place and (keep.last is None or place < keep.last):
        yield "all are kept" if keep.last is None else f"one of the last {keep.last}"
    if info.step in ranks:
        yield f"best by {keep.monitor}" if ranks[info.step] == 0 else f"number {ranks[info.step] + 1} by {keep.monitor}"
    if keep.every and info.step % keep.every == 0:
        yield f"{keep.every:,} divides it"


def _broken(keep: Keep, total: int, left: int | None) -> str | None:
    if keep.max_total_size is not None and total > keep.max_total_size:
        return "max_total_size"
    return "min_free" if keep.min_free is not None and left is not None and left < keep.min_free else None


def best_of(steps: Sequence[StepInfo], keep: Keep) -> list[int]:
    """Return the best steps, best first: of equal ones the newest; a metric that is NaN is never best."""
    sign = 1 if keep.mode == "min" else -1
    metrics = [(info.metric, info.step) for info in steps if info.metric is not None]
    rated = [(sign * metric, -step) for metric, step in metrics if not math.isnan(metric)]
    return [-step for _, step in sorted(rated)[: keep.best]]


def would_be_best(value: float, steps: Sequence[StepInfo], keep: Keep) -> bool:
    """Tell whether a new step with that metric would be among the best, better than one that is, if they are enough."""
    if math.isnan(value) or not keep.best:
        return False
    best = best_of(steps, keep)
    metrics = {info.step: info.metric for info in steps}
    worst = metrics[best[-1]] if len(best) == keep.best else None
    return worst is None or (value < worst if keep.mode == "min" else value > worst)


def remove_steps(checkpoints: str | os.PathLike[str], steps: Iterable[int], *, files: LocalFiles = LOCAL) -> None:
    """Remove the checkpoints of `steps`; one that is not there is no error, and one that was pinned meanwhile stays."""
    root = Path(checkpoints)
    for step in steps:
        try:
            _remove(root, step, files)
        except OSError as error:
            raise AnyrigError(
                "ANY-STORE-013",
                f"The checkpoint of step {step} in {root} was not removed: {error}.",
                hint="check the folder's permissions; what is left is removed at the next start of the run",
            ) from error


def _remove(root: Path, step: int, files: LocalFiles) -> None:
    doomed = root / leftover_name(step, "removed")
    try:
        files.rename(root / step_name(step), doomed)
    except FileNotFoundError:
        return
    # Before anything is deleted the new name is on the disk: half a checkpoint never comes back under the final one.
    files.flush_folder(root)
    # A pin that was made before this rename holds; whoever made it later finds the checkpoint gone, and is told.
    if is_pinned(root, step):
        files.rename(doomed, root / step_name(step))
        files.flush_folder(root)
        return
    remove_tree(files, doomed)
