"""Limits of one start of a run: wall-clock time, steps, batches per epoch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from anyrig.errors import UsageError

DURATION_WORDS = '"90 s", "30 min", "2 h", "1 d" or a number of seconds'
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PATTERN = re.compile(r"(\d+(?:\.\d+)?) *(s|m|h|d|sec|min|seconds?|minutes?|hours?|days?)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where a start of a run ends early. `None` is no limit.

    `max_time`: seconds, or "30 min"; then the run is saved and stopped as by a signal, to be started again.
    `max_steps`: steps of the run in all; then it is saved and ends, and goes on when the limit is raised.
    `batches_per_epoch`: each epoch ends after that many batches, and the rest of the data is left out.
    `since`: the time, as from `time.monotonic()`, that `max_time` counts from; default: when fit is called.
    """

    max_time: float | str | None = None
    max_steps: int | None = None
    batches_per_epoch: int | None = None
    since: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_steps", "batches_per_epoch"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(
                    "ANY-RUN-032", f"limits.{name}: expected a positive integer, found {value!r}", hint="set 1 or more"
                )
        try:
            self.seconds  # noqa: B018 - to see whether it can be understood
        except ValueError as error:
            raise UsageError("ANY-RUN-032", f"limits.max_time: {error}", hint='set e.g. max_time="2 h"') from error

    @property
    def seconds(self) -> float | None:
        """`max_time` in seconds."""
        return None if self.max_time is None else parse_duration(self.max_time)


def parse_duration(text: object) -> float:
    """Return seconds; raise ValueError for what is no duration above zero."""
    match = _PATTERN.fullmatch(str(text).strip().lower()) if isinstance(text, (int, float, str)) else None
    seconds = float(match[1]) * _UNITS[(match[2] or "s")[0]] if match and not isinstance(text, bool) else 0.0
    if seconds <= 0:
        raise ValueError(f"expected {DURATION_WORDS}, found {text!r}")
    return seconds
