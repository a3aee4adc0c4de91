"""TensorFlow's sorted string table: keys and values in blocks, each with its checksum. Driven by a file's name alone.

A checkpoint's `.index` is one, and a whole checkpoint of the first Saver format is one, too. Opening reads the footer
and the index of blocks; blocks are read, checked and unpacked one at a time. Keys must rise from the first to the last,
so that no block can be counted twice.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anyrig.errors import AnyrigError
from anyrig.formats import snappy
from anyrig.formats.contents import Budget, damaged, over_budget, unsafe
from anyrig.formats.protobuf import read_varint
from anyrig.store.check import unreadable

FOOTER_BYTES = 48
MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_TRAILER_BYTES = 5  # how the block is packed, and its checksum
_PLAIN, _SNAPPY = 0, 1


def extend(crc: int, data: bytes) -> int:
    """Return the CRC32C of what gave `crc`, followed by `data`."""
    import google_crc32c

    extended: int = google_crc32c.extend(crc, data)
    return extended


def masked(crc: int) -> int:
    """Return a CRC32C as TensorFlow stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def is_table(path: Path) -> bool:
    """Say whether a file ends as such a table does."""
    try:
        with open(path, "rb") as stream:
            stream.seek(-len(MAGIC), os.SEEK_END)
            return stream.read() == MAGIC
    except OSError:
        return False


def size_of(path: Path) -> int:
    """Return the size of a file, which may not be a link: what it leads to was not given by whoever sent it."""
    try:
        status = os.lstat(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if stat.S_ISLNK(status.st_mode):
        raise unsafe(path, f"it is a link to {os.readlink(path)}")
    if not stat.S_ISREG(status.st_mode):
        raise unsafe(path, "it is not a file")
    return status.st_size


def read_bytes(path: Path, start: int, size: int) -> bytes:
    """Return `size` bytes of a file from `start` on. Raises ANY-FORMAT-002 where it ends early."""
    try:
        with open(path, "rb") as stream:
            stream.seek(start)
            data = stream.read(size)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) != size:
        raise damaged(path, f"it ends at byte {start + len(data)} instead of {start + size} or later")
    return data


@dataclass(frozen=True, slots=True)
class _Handle:
    last_key: bytes
    start: int
    size: int


class Table:
    """A table whose blocks can be read. No more than one of them is held at a time."""

    def __init__(self, file: Path, budget: Budget) -> None:
        self.file = file
        self.size = size_of(file)
        self._budget = budget
        if self.size < FOOTER_BYTES:
            raise damaged(file, f"it has {self.size} bytes, less than a table's end")
        footer = read_bytes(file, self.size - FOOTER_BYTES, FOOTER_BYTES)
        if not footer.endswith(MAGIC):
            raise damaged(file, "it does not end as a table of TensorFlow does (cut off?)")
        try:
            _, _, at = _place(footer, 0)
            start, size, _ = _place(footer, at)
            index = list(self._entries(start, size))
            self._handles = [_Handle(key, *_place(value, 0)[:2]) for key, value in index]
        except ValueError as error:
            raise damaged(file, f"its index of blocks: {error}") from None

    def items(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values in order, from the first key that is not below `start`."""
        first = bisect_left(self._handles, start, key=lambda handle: handle.last_key)
        last: bytes | None = None
        names = 0
        for handle in self._handles[first:]:
            try:
                for key, value in self._entries(handle.start, handle.size):
                    if last is not None and key <= last:
                        raise ValueError("keys that do not rise")
                    last, names = key, names + len(key)
                    self._bounded(names)
                    if key >= start:
                        yield key, value
            except ValueError as error:
                raise damaged(self.file, f"the block at byte {handle.start}: {error}") from None

    def _entries(self, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
        names = 0
        for key, value in _entries(self._block(start, size)):
            names += len(key)
            self._bounded(names)
            yield key, value

    def _bounded(self, names: int) -> None:
        """Refuse keys that repeat their beginnings into more than the file could hold."""
        if names > self._budget.header_bytes:
            raise over_budget(self.file, f"its names come to more than {self._budget.header_bytes} bytes")

    def _block(self, start: int, size: int) -> bytes:
        if start + size + _TRAILER_BYTES > self.size - FOOTER_BYTES:
            raise ValueError("a block lies outside the file")
        stored = read_bytes(self.file, start, size + _TRAILER_BYTES)
        if masked(extend(0, stored[:-4])) != int.from_bytes(stored[-4:], "little"):
            raise ValueError("the checksum does not match")
        data, packed = stored[:size], stored[size]
        if packed == _PLAIN:
            return data
        if packed != _SNAPPY:
            raise ValueError(f"it is packed in the unknown way {packed}")
        if snappy.declared_size(data) > size * self._budget.ratio:
            raise over_budget(self.file, f"a block of {size} bytes asks for {snappy.declared_size(data)}")
        return snappy.unpack(data)


def _place(data: bytes, at: int) -> tuple[int, int, int]:
    start, at = read_varint(data, at, len(data))
    size, at = read_varint(data, at, len(data))
    return start, size, at


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a block; a key is written as how much of the last one it begins with, and the rest."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        raise ValueError("more restarts than bytes")
    at, key = 0, b""
    while at < end:
        shared, at = read_varint(block, at, end)
        rest, at = read_varint(block, at, end)
        size, at = read_varint(block, at, end)
        if shared > len(key) or at + rest + size > end:
            raise ValueError("an entry is longer than its block")
        key = key[:shared] + block[at : at + rest]
        at += rest
        yield key, block[at : at + size]
        at += size


def newer(file: Path, version: int, known: int) -> AnyrigError:
    """Return the error for a format that is newer than what is known here."""
    return AnyrigError(
        "ANY-FORMAT-011",
        f"{file} needs a reader of version {version} of its format; {known} is the newest that is known here.",
        hint="look for a newer anyrig, or have the file written again by an older TensorFlow",
    )
