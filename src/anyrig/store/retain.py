"""Which checkpoints stay, and the removal of the others.

The choice is pure. A removal renames first, so that a kill in the middle never leaves half a checkpoint under a final
name; `sweep_partials` finishes what was left.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anyrig.errors import AnyrigError
from anyrig.store.layout import leftover_name, step_name
from anyrig.store.local import LOCAL, LocalFiles, remove_tree


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
    """A committed step, its value of the monitored metric (None when it has none), and whether a user pinned it."""

    step: int
    metric: float | None = None
    pinned: bool = False


def to_remove(steps: Sequence[StepInfo], keep: Keep) -> list[int]:
    """Return the steps that `keep` does not keep, oldest first; never the newest one."""
    ordered = sorted(steps, key=lambda info: info.step)
    kept = {info.step for info in (ordered if keep.last is None else ordered[-keep.last :])}
    kept |= {info.step for info in ordered if info.pinned or (keep.every and info.step % keep.every == 0)}
    kept |= _best(ordered, keep)
    return [info.step for info in ordered if info.step not in kept]


def _best(steps: Sequence[StepInfo], keep: Keep) -> set[int]:
    """Of equal ones the newest; a metric that is NaN is never best."""
    sign = 1 if keep.mode == "min" else -1
    metrics = [(info.metric, info.step) for info in steps if info.metric is not None]
    rated = [(sign * metric, -step) for metric, step in metrics if not math.isnan(metric)]
    return {-step for _, step in sorted(rated)[: keep.best]}


def remove_steps(checkpoints: str | os.PathLike[str], steps: Iterable[int], *, files: LocalFiles = LOCAL) -> None:
    """Remove the checkpoints of `steps`; one that is not there is no error."""
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
    remove_tree(files, doomed)
