"""Storage that breaks at a chosen call: for tests of what saves, keeps and repairs.

`Faults(kill, at=7).on(location)` puts itself before every public method of an object (`anyrig.store.local.LOCAL`, or a
location of your own): in place of the seventh call the process is killed. Other faults raise what a disk raises, write
half, or take the folder away; `anyrig.testing.power` models a power cut. A fault is a function of the call, so another
one is three lines. `walk` tries every call of an action in turn; nothing here knows what the action should have done.

    for faults in walk(kill):                      # the first call, the second, ... until all were reached
        in_child(lambda: save(root, faults))       # `save` does its work inside `with faults.on(LOCAL)`
        assert what_is_committed(root) in (BEFORE, AFTER)
"""

from __future__ import annotations

import errno
import functools
import itertools
import mmap
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from anyrig.errors import AnyrigError

T = TypeVar("T")

DISK_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOENT)
"""What a full, failing, rationed, read-only, forbidden and vanished disk raises."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is about to be made: `kind` is the method's name, `method(*arguments)` makes it."""

    kind: str
    method: Callable[..., Any]
    arguments: tuple[Any, ...]

    def make(self) -> Any:
        """Make the call and return its result."""
        return self.method(*self.arguments)

    def make_half(self) -> Any:
        """Make it with the first half of the bytes that it was given. Raises TypeError if it was given none."""
        if not any(isinstance(given, bytes | memoryview) for given in self.arguments):
            raise TypeError(f"{self.kind} was given no bytes: choose the calls by kinds=...")
        halves = (
            given[: len(given) // 2] if isinstance(given, bytes | memoryview) else given for given in self.arguments
        )
        return self.method(*halves)


Fault = Callable[[Call], Any]
"""What happens in place of a call; what it returns is what the caller gets."""


def kill(_: Call) -> NoReturn:
    """End the process as kill -9 does, before the call."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process went on")


def interrupt(_: Call) -> NoReturn:
    """Raise KeyboardInterrupt before the call."""
    raise KeyboardInterrupt


def fail(code: int) -> Fault:
    """Raise OSError with an errno in place of the call (of `close`: after it, as systems do)."""

    def fault(call: Call) -> NoReturn:
        if call.kind == "close":
            call.make()
        named = [str(given) for given in call.arguments if isinstance(given, Path)]
        raise OSError(code, os.strerror(code), *named[:1])

    return fault


def halfway(then: Fault) -> Fault:
    """Write half of the bytes, then let another fault happen; for calls that write."""

    def fault(call: Call) -> Any:
        call.make_half()
        return then(call)

    return fault


def short(call: Call) -> Any:
    """Write half of the bytes and say nothing; for calls that write."""
    return call.make_half()


def vanish(folder: Path) -> Fault:
    """Let `folder` be gone from this call on, as an unmounted disk is; it is beside itself with the suffix `.gone`."""

    def fault(call: Call) -> Any:
        if folder.exists():
            folder.rename(f"{folder}.gone")
        return call.make()

    return fault


class Faults:
    """A fault, and when it happens: at the `at`-th call, counted from 1, of one of `kinds` (None: of any kind).

    It happens `times` times in a row (None: from then on always, as on a full disk). `hits` and `calls` also count what
    a forked child does. `made` lists the kinds of this process's calls, in order. Calls may come from several threads.
    """

    def __init__(
        self, fault: Fault, *, at: int = 1, kinds: Collection[str] | None = None, times: int | None = 1
    ) -> None:
        self.made: list[str] = []
        self._fault = fault
        self._hit = range(at, sys.maxsize if times is None else at + times)
        self._kinds = kinds
        self._lock = threading.Lock()
        self._counts = memoryview(mmap.mmap(-1, 16)).cast("Q")  # shared with children: calls, hits

    @property
    def calls(self) -> int:
        """How many calls of `kinds` were begun."""
        return self._counts[0]

    @property
    def hits(self) -> int:
        """How often the fault happened."""
        return self._counts[1]

    @contextmanager
    def on(self, location: T) -> Iterator[T]:
        """Stand before all public methods of an object inside the block, for everybody who uses it; yield the object.

        Blocks may be nested: the innermost faults come first.
        """
        names = [name for name in dir(location) if not name.startswith("_") and callable(getattr(location, name))]
        before = dict(vars(location))
        for name in names:
            setattr(location, name, functools.partial(self._call, name, getattr(location, name)))
        try:
            yield location
        finally:
            vars(location).clear()
            vars(location).update(before)

    def _call(self, kind: str, method: Callable[..., Any], *arguments: Any) -> Any:
        call = Call(kind, method, arguments)
        return self._fault(call) if self._due(kind) else call.make()

    def _due(self, kind: str) -> bool:
        with self._lock:
            self.made.append(kind)
            if self._kinds is not None and kind not in self._kinds:
                return False
            self._counts[0] += 1
            due = self._counts[0] in self._hit
            self._counts[1] += due
            return due


def walk(fault: Fault, *, kinds: Collection[str] | None = None, times: int | None = 1) -> Iterator[Faults]:
    """Yield the fault at the first call, at the second, and so on, until one was not reached: then all were tried."""
    for at in itertools.count(1):
        faults = Faults(fault, at=at, kinds=kinds, times=times)
        yield faults
        if not faults.hits:
            return


def in_child(act: Callable[[], object]) -> int:
    """Run `act` in a forked process; return its exit code, or minus the signal that ended it.

    0: it returned; 1: it raised an AnyrigError; 2: it raised something else, which is printed. It takes milliseconds:
    the child skips what an interpreter does at its end. TensorFlow must not have started its threads yet.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads that the child never uses
        child = os.fork()
    if child == 0:
        os._exit(_outcome(act))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _outcome(act: Callable[[], object]) -> int:
    try:
        act()
    except AnyrigError:
        return 1
    except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
        traceback.print_exc()
        return 2
    return 0


def at_use(number: int, folder: Path, fault: Fault) -> None:
    """Let `fault` happen at this process's `number`-th use, from 1, of a name below `folder` that Python knows of.

    Those are Python's audit events: what is opened (also for reading), listed, renamed, removed or changed, by whatever
    module. It cannot be undone, so it is for a forked child. The fault's call can be refused or end in a kill, no more.
    """
    below, seen = os.path.realpath(folder), itertools.count(1)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(("open", "os.")) and any(map(is_below, arguments[:2])) and next(seen) == number:
            fault(Call(event, lambda *_: None, arguments))

    def is_below(argument: object) -> bool:
        return isinstance(argument, str | os.PathLike) and os.path.abspath(argument).startswith(below)

    sys.addaudithook(hook)
