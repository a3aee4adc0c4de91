"""The pace of a run's saves: when one is due, what it costs, whether one fits in before a kill.

The saver asks and tells; nothing is saved or removed here, and no number of the training depends on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from anyrig.errors import UsageError
from anyrig.report.reports import SaveReport
from anyrig.train.deadline import Deadline, Grace
from anyrig.train.every import Every
from anyrig.train.keeping import Keeper
from anyrig.train.loop import Boundary, Position
from anyrig.train.signals import StopRequest
from anyrig.train.timing import Timing


class Pace:
    """Says when to save. `tell` says a sentence to the user and records it with its fields as an event."""

    def __init__(
        self,
        every: Every,
        keeper: Keeper,
        grace: Grace | None,
        tell: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timing = Timing(every)
        self._deadline = Deadline(grace)
        self._keeper = keeper
        self._tell = tell
        self._clock = clock
        self._save_seconds = 0.0

    def begin(self) -> None:
        """Start the clock: training begins."""
        self._timing.begin(self._clock())

    def reached(self, boundary: Boundary, record: Callable[..., None], *, saving: bool) -> None:
        """Measure the time up to this boundary; `record` gets an event when what a save costs has become known."""
        timing = self._timing
        if timing.reached(boundary, self._clock(), saving=saving) and timing.every.unit == "auto":
            record(
                "interval",
                seconds=round(timing.interval, 1),
                cost_seconds=round(timing.cost or 0.0, 4),
                step_seconds=round(timing.step_seconds or 0.0, 6),
            )

    def due(self, boundary: Boundary, position: Position, logs: Mapping[str, Any]) -> bool:
        """Tell whether to save here: it is time, or this epoch is one of the best, whatever the interval."""
        if self._timing.due(boundary, position, self._clock()):
            return True
        return boundary.kind == "epoch" and self._keeper.would_be_best(logs.get(self._keeper.keep.monitor or ""))

    def saved(self, began: float) -> None:
        """Take note of a save that training has waited for since `began`, and that is written from now on."""
        self._timing.saved(began, self._clock())

    def ended(self, report: SaveReport) -> None:
        """Take note of a save that has ended: say what could not be held, and when a stop takes longer than it may."""
        self._save_seconds = report.seconds
        for warning in report.warnings:
            self._tell(warning, kind="warning")
        needed = report.seconds + (self._timing.step_seconds or 0.0)
        if said := self._deadline.too_short(needed):
            self._tell(said, kind="deadline", needed_seconds=round(needed, 3))

    def stopping(self, stop: StopRequest, *, saving: bool) -> None:
        """Say so when a save that SIGTERM asks for may be cut off."""
        if stop.reason != "SIGTERM" or stop.at is None:
            return
        needed = self._save_seconds * (2 if saving else 1)  # the save that is being written ends first
        if said := self._deadline.too_late(needed, time.monotonic() - stop.at, time.time()):
            self._tell(said, kind="deadline", needed_seconds=round(needed, 3))


def refuse_missing(monitor: str | None, logs: Mapping[str, Any], epoch: int, *, validated: bool) -> None:
    """Raise UsageError if the logs of an epoch that is over lack the monitored metric.

    `epoch` counts from 1. An epoch that was not `validated`, as `validation_freq` can ask, need not have a val_ metric.
    """
    if monitor is None or monitor in logs or (monitor.startswith("val_") and not validated):
        return
    raise UsageError(
        "ANY-RUN-041",
        f"monitor: there is no metric {monitor!r} after epoch {epoch}; there are {', '.join(sorted(logs)) or 'none'}",
        hint="set monitor of the checkpoint to one of these; a val_ metric needs validation data",
    )
