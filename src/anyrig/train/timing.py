"""When a save is due: every so many steps, epochs or minutes, or as often as its measured cost allows.

Looks at clocks and counters alone, and time is passed in; so it never changes a number of the training. "auto" keeps
the cost of saves (what training waited for, and by how much steps were slower while a save was written) under `BUDGET`
of the time, but saves at least every `MOST` seconds and at most every `LEAST`.
"""

from __future__ import annotations

from anyrig.train.every import Every
from anyrig.train.loop import Boundary, Position

BUDGET = 0.02
LEAST = 30.0
MOST = 1800.0
_WEIGHT = 0.1  # of the newest step in the mean time of a step


class Timing:
    """Says when a save is due. `begin` it when training begins; tell it of every boundary and every save."""

    def __init__(self, every: Every) -> None:
        self.every = every
        self.step_seconds: float | None = None
        self.cost: float | None = None
        self._last_save = self._last_boundary = 0.0
        self._pause = self._slowdown = 0.0
        self._measuring = False

    def begin(self, now: float) -> None:
        """Start the clock."""
        self._last_save = self._last_boundary = now

    @property
    def interval(self) -> float:
        """Seconds between two saves, for minutes and "auto"."""
        if self.every.unit == "minute":
            return 60.0 * self.every.count
        return LEAST if self.cost is None else min(max(self.cost / BUDGET, LEAST), MOST)

    def due(self, boundary: Boundary, position: Position, now: float) -> bool:
        """Tell whether to save at this boundary; before the end of an epoch, that end is waited for.

        By the clock none is due while one is still being written, which training would have to wait for.
        """
        if boundary.kind == "batch" and boundary.last_batch:
            return False
        if self.every.unit == "epoch":
            return boundary.kind == "epoch" and position.epoch % self.every.count == 0
        if self.every.unit == "step":
            return position.step % self.every.count < boundary.steps
        return not self._measuring and now - self._last_save >= self.interval

    def reached(self, boundary: Boundary, now: float, *, saving: bool) -> bool:
        """Measure the steps up to this boundary; `saving`: a save is still being written.

        Returns True when the cost of a save has become known just now.
        """
        seconds, self._last_boundary = now - self._last_boundary, now
        if boundary.kind == "batch":
            self._measure(seconds / max(boundary.steps, 1), boundary.steps)
        if not self._measuring or saving:
            return False
        self._measuring, self.cost = False, self._pause + max(0.0, self._slowdown)
        return True

    def saved(self, began: float, now: float) -> None:
        """Take note of a save: training waited for it from `began` to `now`; it may be written from here on."""
        self._last_save, self._last_boundary = began, now
        self._pause, self._slowdown, self._measuring = now - began, 0.0, True

    def _measure(self, each: float, steps: int) -> None:
        if self._measuring and self.step_seconds is not None:
            self._slowdown += steps * (each - self.step_seconds)
        elif self.step_seconds is None:
            self.step_seconds = each
        else:
            self.step_seconds += _WEIGHT * (each - self.step_seconds)
