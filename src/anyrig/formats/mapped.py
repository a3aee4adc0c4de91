"""A file as bytes of which only what is looked at is read."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def mapped(path: Path) -> Iterator[bytes | mmap.mmap]:
    """Give the bytes of a file; OSError or ValueError where there is no such file, or nothing in it."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data
