"""One writer per run directory: a lock file with host, process and heartbeat.

The file is `.lock`; its content names the owner and its modification time is the heartbeat, set by the file system's
own clock, so that hosts with different clocks agree. On the same machine a dead owner is known at once (process id and
start time, so that a reused id does not count); on another one by a heartbeat older than `stale_after` seconds.
Looking and taking happen under `flock`, so two takers at once cannot both win.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from anyrig.errors import AnyrigError
from anyrig.store.owner import Owner, machine, start_of

LOCK = ".lock"
_GUARD = ".lock-guard"
BEAT_SECONDS = 20.0
STALE_SECONDS = 300.0


class RunLock:
    """Context manager: this process is the only writer of the run directory, or an error that names who is."""

    def __init__(
        self, run: str | os.PathLike[str], *, beat_every: float = BEAT_SECONDS, stale_after: float = STALE_SECONDS
    ) -> None:
        self._folder = Path(run)
        self._path = self._folder / LOCK
        self._beat_every = beat_every
        self._stale_after = stale_after
        self._owner: Owner | None = None
        self._stop = threading.Event()
        self._beating: threading.Thread | None = None

    def __enter__(self) -> Self:
        owner = Owner.this_process()
        try:
            with _guard(self._folder):
                self._refuse_if_held()
                self._take(owner)
        except OSError as error:
            raise AnyrigError(
                "ANY-LOCK-003", f"{self._path} cannot be made: {error}.", hint="check the folder's permissions"
            ) from error
        self._owner = owner
        self.check()  # where flock does not work, the second of two takers has replaced the first one's file
        self._stop.clear()
        self._beating = threading.Thread(target=self._beat, name="anyrig-lock", daemon=True)
        self._beating.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        owner, self._owner = self._owner, None
        if owner is None or owner.pid != os.getpid():  # a forked child leaves its parent's lock alone
            return
        self._stop.set()
        if self._beating:
            self._beating.join()
        with suppress(OSError), _guard(self._folder):
            if self._read_token() == owner.token:
                self._path.unlink()

    def check(self) -> None:
        """Raise when the lock is no longer this process's: somebody deleted or took it."""
        if self._owner is None or self._read_token() != self._owner.token:
            raise AnyrigError(
                "ANY-LOCK-002",
                f"{self._path} is no longer held by this process: {_describe(_read(self._path))}.",
                hint="make sure that only one process trains in this run directory, then start it again",
            )

    def _refuse_if_held(self) -> None:
        found = _read(self._path)
        if found is not None:
            _refuse_if_alive(self._path, found, self._age(), self._stale_after)

    def _age(self) -> float:
        """Seconds since the last heartbeat, both times taken from the file system."""
        probe = self._folder / f"{LOCK}.{os.urandom(4).hex()}"
        probe.touch(exist_ok=False)
        try:
            return probe.stat().st_mtime - self._path.stat().st_mtime
        finally:
            probe.unlink()

    def _take(self, owner: Owner) -> None:
        new = self._folder / f"{LOCK}.{owner.token}"
        try:
            new.write_text(json.dumps(asdict(owner)))
            os.replace(new, self._path)  # whole content at once: nobody reads half a lock
            for left in self._folder.glob(f"{LOCK}.*"):  # by takers that were killed: who is alive holds the guard
                left.unlink(missing_ok=True)
        except BaseException:
            new.unlink(missing_ok=True)
            raise

    def _beat(self) -> None:
        while not self._stop.wait(self._beat_every):
            owner = self._owner
            with suppress(OSError):  # a late heartbeat is judged by `check`, which the writer calls
                if owner and self._read_token() == owner.token:
                    os.utime(self._path)

    def _read_token(self) -> object:
        found = _read(self._path)
        return None if found is None else found.get("token")


def refuse_if_in_use(run: str | os.PathLike[str]) -> None:
    """Raise as `RunLock` would if another process holds the run directory, without writing anything."""
    path = Path(run) / LOCK
    found = _read(path)
    if found is not None:
        _refuse_if_alive(path, found, time.time() - path.stat().st_mtime, STALE_SECONDS)


def _refuse_if_alive(path: Path, found: dict[str, Any], age: float, stale_after: float) -> None:
    if found.get("machine") == machine():
        alive = start_of(found.get("pid")) == found.get("started")
    else:
        alive = age < stale_after
    if alive:
        seen = f"{age:.0f} s ago" if age > -BEAT_SECONDS else f"dated {-age:.0f} s in the future, by another clock"
        raise AnyrigError(
            "ANY-LOCK-001",
            f"{path.parent} is in use: {_describe(found)}, last sign of life {seen}.",
            hint=f"wait for it or stop it; if that machine is gone, the lock is taken over {stale_after:.0f} s after "
            f"its last sign of life (or delete {path})",
        )


def _read(path: Path) -> dict[str, Any] | None:
    """Return the lock's content; None when there is none. An unreadable one has no machine, so only its age counts."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _describe(found: dict[str, Any] | None) -> str:
    if not found:
        return "no readable lock is there" if found is None else "its lock file cannot be read"
    return f"process {found.get('pid')} on {found.get('host')} holds it since {found.get('since')}"


@contextmanager
def _guard(folder: Path) -> Iterator[None]:
    """Hold the right to look at the lock and take it; the kernel gives it back when the process dies."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # NFS locks only files open for writing
            writable = os.open(folder / _GUARD, os.O_RDWR | os.O_CREAT, 0o666)
            os.close(descriptor)
            descriptor = writable
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
