"""Work that goes on beside the caller's: at most one piece at a time, in a thread of its own.

`start` hands work over and returns; its result or its error waits until somebody asks, in the thread that asks. Nothing
is called back from the other thread. The thread is no daemon, so the interpreter ends only after the work has ended; it
exists only while there is work, so nothing has to be closed. No TensorFlow.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from anyrig.store.read import Checkpoint

T = TypeVar("T")


class Background(Generic[T]):
    """Runs one piece of work at a time; for one thread to use."""

    def __init__(self) -> None:
        self._work: Future[T] | None = None
        self._process = 0

    @property
    def in_flight(self) -> bool:
        """Whether work is going on now."""
        return self._work is not None and self._process == os.getpid() and not self._work.done()

    def start(self, work: Callable[[], T]) -> float:
        """Run `work` in the background once what was started before has ended; return the seconds waited for that.

        The earlier work's error, if nobody has asked for it yet, is raised here, and `work` is not started.
        """
        began = time.perf_counter()
        self.wait()
        waited = time.perf_counter() - began
        begun: Future[T] = Future()
        threading.Thread(target=_do, args=(work, begun), name="anyrig-save", daemon=False).start()
        self._work, self._process = begun, os.getpid()
        return waited

    def finished(self) -> T | None:
        """Return the result if the work has ended, once, without waiting; else None. Raises the work's error."""
        return None if self.in_flight else self.wait()

    def wait(self) -> T | None:
        """Return the result when the work has ended, once; None if there is none. Raises the work's error."""
        if self._work is None or self._process != os.getpid():  # a fork has no thread that would end it
            return None
        work = self._work
        work.exception()  # to be interrupted while waiting leaves the work in flight
        self._work = None
        return work.result()

    def when_done(self, act: Callable[[], object]) -> None:
        """Call `act` now if nothing is in flight, else in the other thread as soon as the work has ended."""
        if self._work is None:
            act()
        else:
            self._work.add_done_callback(lambda _: act())


def _do(work: Callable[[], T], future: Future[T]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
        future.set_exception(error)
    else:
        future.set_result(result)


_shared: Background[Checkpoint] = Background()


def shared() -> Background[Checkpoint]:
    """Return the process's own background; an error that nobody has asked for ends the process with exit code 1."""
    return _shared


@atexit.register
def _end() -> None:
    try:
        _shared.wait()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the process must not seem to have ended well
        sys.excepthook(type(error), error, error.__traceback__)
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(1)  # an exception here would be printed, and the exit code stay 0
