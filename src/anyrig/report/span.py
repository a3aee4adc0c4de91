"""How fast training goes: what a stretch of steps took, and in what. Times are passed in; nothing here has a clock."""

from __future__ import annotations

from dataclasses import dataclass

from anyrig.report.reports import StepReport


@dataclass(slots=True)
class Span:
    """A stretch of training, from `started` to the end of its last step; what lies between epochs does not count."""

    started: float
    ended: float
    steps: int = 0
    rows: int = 0
    input_seconds: float = 0.0
    compute_seconds: float = 0.0
    save_seconds: float = 0.0

    @classmethod
    def at(cls, now: float) -> Span:
        """Return an empty span."""
        return cls(now, now)

    def go_on(self, now: float) -> None:
        """Leave out the time since the last step: validation, and callbacks at the end of an epoch."""
        self.started += now - self.ended
        self.ended = now

    def add(self, step: StepReport, now: float, steps: int = 1) -> None:
        """Count what ended `now`: a step, or `steps` that Keras executes as one."""
        self.ended = now
        self.steps += steps
        self.rows += step.rows
        self.input_seconds += step.input_seconds
        self.compute_seconds += step.compute_seconds

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.ended - self.started

    @property
    def rows_per_second(self) -> float | None:
        """Rows per second of wall-clock time; None where nothing was measured."""
        return self.rows / self.seconds if self.seconds > 0 and self.rows else None

    def speed(self) -> dict[str, float]:
        """Return rows per second, and the mean seconds of a step by what they were spent on."""
        if not self.steps or self.rows_per_second is None:
            return {}
        return {
            "rows_per_second": self.rows_per_second,
            "input_seconds": self.input_seconds / self.steps,
            "compute_seconds": self.compute_seconds / self.steps,
            "save_seconds": self.save_seconds / self.steps,
        }
