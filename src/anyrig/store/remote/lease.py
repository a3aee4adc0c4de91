"""Who writes at a URL: the object `lease.json` with host, process and heartbeat.

Best effort: an object store has no lock. It keeps apart two machines one of which starts while the other runs and both
reach the store. Two that start within the same second may both believe they hold it; the later one's object stays, and
the other finds out at its next upload. A machine that is cut off longer than `STALE_SECONDS` may be taken for dead,
and so may one whose clock is wrong by that much.
What is committed stays whole in any of these cases: nobody overwrites a manifest that is there.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from anyrig.errors import AnyrigError
from anyrig.store.owner import Owner, machine, start_of
from anyrig.store.remote.objects import Objects

LEASE = "lease.json"
BEAT_SECONDS = 60.0
STALE_SECONDS = 600.0


class InUse(AnyrigError):
    """Somebody else writes, or has written, at the URL."""


class Lease:
    """This process's claim to be the only writer at a URL."""

    def __init__(
        self, objects: Objects, *, beat_every: float = BEAT_SECONDS, stale_after: float = STALE_SECONDS
    ) -> None:
        self._objects = objects
        self._beat_every = beat_every
        self._stale_after = stale_after
        self._owner: Owner | None = None
        self._stop = threading.Event()
        self._beating: threading.Thread | None = None

    def take(self) -> None:
        """Become the writer, or raise with who it is; nothing to do when this process is it already."""
        if self._owner is not None:
            self.check()
            return
        owner = Owner.this_process()
        found = self._read()
        if found and self._alive(found):
            self._refuse(found)
        self._write(owner)
        self._owner = owner
        self._stop.clear()
        self._beating = threading.Thread(target=self._beat, name="anyrig-lease", daemon=True)
        self._beating.start()

    def check(self) -> None:
        """Raise when another process has become the writer."""
        found = self._read()
        if self._owner is None or (found and found.get("token") != self._owner.token):
            self._refuse(found or {})

    def give_back(self) -> None:
        """Stop being the writer; a store that cannot be reached forgets by age."""
        owner, self._owner = self._owner, None
        self._stop.set()
        if self._beating is not None:
            self._beating.join(timeout=5)
        with suppress(AnyrigError):
            if owner is not None and (self._read() or {}).get("token") == owner.token:
                self._objects.remove(LEASE)

    def _alive(self, found: dict[str, Any]) -> bool:
        if found.get("machine") == machine():
            if found.get("pid") == os.getpid():  # this process's own earlier one, which could not be given back
                return False
            return start_of(found.get("pid")) == found.get("started")
        beat = found.get("beat")
        return isinstance(beat, int | float) and time.time() - beat < self._stale_after

    def _refuse(self, found: dict[str, Any]) -> None:
        raise InUse(
            "ANY-REMOTE-007",
            f"{self._objects.url} is in use: process {found.get('pid')} on {found.get('host')} writes there since "
            f"{found.get('since')}.",
            hint=f"wait for it or stop it; if that machine is gone, start again {self._stale_after:.0f} s after its "
            f"last sign of life (or delete {LEASE} there)",
        )

    def _write(self, owner: Owner) -> None:
        self._objects.write(LEASE, json.dumps({**asdict(owner), "beat": time.time()}).encode())

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self._objects.read(LEASE))
        except (FileNotFoundError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def _beat(self) -> None:
        while not self._stop.wait(self._beat_every):
            owner = self._owner
            with suppress(AnyrigError):  # a store that is away is noticed by uploads; they check who the writer is
                if owner is not None and (self._read() or {}).get("token") in (None, owner.token):
                    self._write(owner)
