"""Several files that an index names (`weight_map`), and how a name in a file becomes that of a file beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyrig.formats.contents import Budget, damaged, over_budget, unsafe
from anyrig.formats.jsontext import json_object
from anyrig.store.check import unreadable


def is_index(path: Path, suffix: str) -> bool:
    """Tell whether a file is an index of files with this suffix, by its first 64 KiB."""
    try:
        with open(path, "rb") as file:
            start = file.read(2**16)
    except OSError:
        return False
    return start.lstrip()[:1] == b"{" and b'"weight_map"' in start and f'{suffix}"'.encode() in start


def index_at(path: Path, budget: Budget) -> dict[str, Any]:
    """Return the index in a file."""
    try:
        if path.stat().st_size > budget.header_bytes:
            raise over_budget(path, f"it has {path.stat().st_size} bytes, and is an index")
        return json_object(path, "it", path.read_bytes(), budget)
    except OSError as error:
        raise unreadable(path, error) from error


def weight_map(path: Path, index: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return in which files, by an index, each tensor is (in Keras's: each group of them)."""
    found = index.get("weight_map")
    if not isinstance(found, dict):
        raise damaged(path, "its index has no weight_map")
    result = {name: files if isinstance(files, list) else [files] for name, files in found.items()}
    if not all(files and all(isinstance(file, str) for file in files) for files in result.values()):
        raise damaged(path, "its weight_map names things that are no files")
    return result


def is_plain(name: str) -> bool:
    """Tell whether a relative name with `/` stays below where it starts, on every system."""
    parts = name.split("/")
    return not any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in parts) and ":" not in parts[0]


def safe_member(folder: Path, name: str) -> Path:
    """Return the path of a file that something in `folder` names.

    Raises ANY-FORMAT-004 for a name or a link that leads out, and 002 if there is no such file. Links into the `blobs`
    beside the snapshots in a cache of the Hugging Face hub stay allowed: that is how it keeps all files.
    """
    path = folder / name
    if not is_plain(name):
        raise unsafe(folder, f"the name {name!r} in it leaves the folder")
    real = path.resolve()
    blobs = folder.resolve().parent.parent / "blobs"
    if not real.is_relative_to(folder.resolve()) and real.parent != blobs:
        raise unsafe(folder, f"{name!r} in it is a link to another place")
    if not real.is_file():
        raise damaged(folder, f"its file {name!r} is missing")
    return path
