"""Who a process is, and whether the process that a lock names is still alive on this machine."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that holds a lock; `machine` is one boot of one host or container, `token` this very holding."""

    host: str
    machine: str
    pid: int
    started: str
    token: str
    since: str

    @classmethod
    def this_process(cls) -> Self:
        """Return this process as an owner with a new token."""
        return cls(
            host=socket.gethostname(),
            machine=machine(),
            pid=os.getpid(),
            started=start_of(os.getpid()) or "",
            token=os.urandom(8).hex(),
            since=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        )


def machine() -> str:
    """Return what tells this boot of this host (or container) from any other."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def start_of(pid: object) -> str | None:
    """Return when a process of this machine started, in the kernel's ticks; None when it is gone or a zombie."""
    if not isinstance(pid, int):
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None if os.path.isdir("/proc/self") else _signalled(pid)
    return None if fields[0] in "ZX" else fields[19]


def _signalled(pid: int) -> str | None:
    """For systems without /proc: the same answer for every living process, None for a dead one."""
    try:
        if os.name != "nt":  # on Windows os.kill would end the process: there only age decides
            os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass
    return ""
