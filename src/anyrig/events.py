"""Events: what happened in a run, as small dictionaries that any number of sinks receive.

The training loop emits; progress bars, log files and reports are sinks. An event holds JSON values only. Nothing here
decides anything, and no event is needed to resume a run.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Self

Event = dict[str, object]
Sink = Callable[[Event], None]


class Events:
    """Hands each event to every sink, in order."""

    def __init__(self, *sinks: Sink, attempt: int = 1, clock: Callable[[], float] = time.time) -> None:
        self._sinks = list(sinks)
        self._attempt = attempt
        self._clock = clock

    def add(self, sink: Sink) -> None:
        """Let `sink` receive the events from now on."""
        self._sinks.append(sink)

    def emit(self, kind: str, **fields: object) -> None:
        """Send one event: seconds since 1970, the number of the attempt, its kind, and `fields`."""
        event: Event = {"time": round(self._clock(), 3), "attempt": self._attempt, "kind": kind, **fields}
        for sink in self._sinks:
            sink(event)


class JsonLines:
    """A sink that appends one line of JSON for each event, and flushes it so that a killed run keeps its events."""

    def __init__(self, path: Path) -> None:
        cut_short = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
        self._file: IO[str] = path.open("a", encoding="utf-8")
        if cut_short:
            self._file.write("\n")

    def __call__(self, event: Event) -> None:
        """Append `event`."""
        self._file.write(json.dumps(_strict(event), ensure_ascii=False, default=_plain) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_events(path: Path) -> list[Event]:
    """Return the events in a file that `JsonLines` wrote; a line that a kill cut short is left out."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            found.append(event)
    return found


def _strict(value: object) -> object:
    """Return `value` with NaN and infinities as text, since JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: object) -> object:
    """Return a number or list for NumPy's scalars and arrays, and the text of anything else."""
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else str(value)
