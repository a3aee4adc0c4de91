"""Which file system a path is on, and whether other machines can change its files unseen.

A file that is cut short on a server kills the process that has it mapped, so such files are read instead.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_TABLE = Path("/proc/self/mounts")
_SHARED = re.compile(
    r"9p|afs|beegfs|ceph|cifs|glusterfs|gpfs|lustre|ncpfs|nfs\d?|ocfs2|orangefs|pvfs2|smb\w*|virtiofs|fuse(\..*)?"
)


def shared(path: str | os.PathLike[str]) -> bool:
    """Tell whether `path` is on a network or user-space file system; False where the system does not tell."""
    try:
        table = _TABLE.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return False
    return _SHARED.fullmatch(type_of(os.path.realpath(path), table)) is not None


def type_of(path: str, table: str) -> str:
    """Return the type of the file system that `path` (absolute, without links) is on; `table` is /proc/mounts."""
    longest, found = -1, ""
    for line in table.splitlines():
        _, point, kind, *_ = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= longest:  # of two mounted on one point the later one is seen
            longest, found = len(point), kind
    return found
