"""Stopping a run from outside: finish the step, save, end; a second signal ends at once.

Handlers are put in place only in the main thread and are put back afterwards. Elsewhere `StopRequest.request` does the
same for a program that decides by itself.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from anyrig.report.progress import in_notebook

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Whether somebody asked the run to stop, who, and when (as from `time.monotonic()`)."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.at: float | None = None

    def request(self, reason: str = "request_stop") -> None:
        """Ask for a stop at the end of the step that is running."""
        self.reason, self.at = reason, time.monotonic()

    def clear(self) -> None:
        """Forget an earlier request."""
        self.reason = self.at = None

    @property
    def requested(self) -> bool:
        """Whether a stop was asked for."""
        return self.reason is not None


@contextmanager
def stop_on_signals(stop: StopRequest) -> Iterator[None]:
    """Turn SIGTERM and SIGINT into a stop request inside; the second one has its default effect, at once.

    In a notebook, a second SIGINT raises KeyboardInterrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: Any) -> None:
        if stop.requested and number == signal.SIGINT and in_notebook():
            raise KeyboardInterrupt  # the kernel holds more than this run
        if stop.requested:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.request(signal.Signals(number).name)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
