"""Names on the disk: of checkpoint folders, of files inside one, and which names are safe to open.

Pure text; nothing here touches a file system. Names are checked by the same rules when written and when read.
"""

from __future__ import annotations

import os
import re
from typing import Literal

MANIFEST = "manifest.json"
ASSETS = "assets"
DATA_SUFFIX = ".safetensors"

Leftover = Literal["partial", "removed", "replaced", "damaged"]

_STEP = re.compile(r"step-([0-9]{9,18})")
_LEFTOVER = re.compile(r"\.step-([0-9]{9,18})\.(partial|removed|replaced|damaged)-[0-9a-f]{8}")
# Reserved on one of the systems that read checkpoints: Windows forbids these characters anywhere in a name.
_FORBIDDEN = re.compile(r'[\x00-\x1f<>:"|?*\\]')


def step_name(step: int) -> str:
    """Return the final folder name of a step: `step-000001200`."""
    return f"step-{step:09d}"


def step_of(name: str) -> int | None:
    """Return the step of a final folder name; None for any other name (`step-10.tmp`, `step-5`)."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match and step_name(int(match[1])) == name else None


def leftover_name(step: int, kind: Leftover) -> str:
    """Return a new hidden name for a folder that is being written, removed or replaced, or was set aside as damaged."""
    return f".{step_name(step)}.{kind}-{os.urandom(4).hex()}"


def leftover_of(name: str) -> tuple[int, str] | None:
    """Return step and kind of a name that `leftover_name` made; None for any other name."""
    match = _LEFTOVER.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def data_name(group: str, number: int, count: int) -> str:
    """Return the name of the `number`-th (from 1) of `count` data files of a group."""
    return f"{group}-{number:05d}-of-{count:05d}{DATA_SUFFIX}"


def fault_of_path(path: str) -> str | None:
    """Say why `path` is not a safe relative path of a file in a checkpoint; None when it is."""
    if path.startswith("/"):
        return "is absolute"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return f"has the part {part!r}"
        if _FORBIDDEN.search(part) or part[-1] in ". ":
            return f"has the part {part!r}, which not every file system can hold"
        if not part.isascii() and not _is_unicode(part):
            return "is not valid Unicode"
    return None


def portable(part: str) -> str:
    """Return `part` with every character that `fault_of_path` refuses written as `%XX`, so that it can name a file."""
    safe = _FORBIDDEN.sub(lambda match: f"%{ord(match[0]):02X}", part.replace("%", "%25").replace("/", "%2F"))
    return safe[:-1] + f"%{ord(safe[-1]):02X}" if safe and safe[-1] in ". " else safe or "%"


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
