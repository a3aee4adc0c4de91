"""Reads tables of FlatBuffers (https://flatbuffers.dev/internals/); each offset is checked before it is used."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from anyrig.formats.contents import damaged, over_budget
from anyrig.formats.protobuf import Span

_NUMBER = {"B": 1, "b": 1, "H": 2, "I": 4, "i": 4, "Q": 8}


@dataclass(frozen=True, slots=True)
class Table:
    """A table at a place of a file. Fields go by their numbers in the schema; one that is not there is 0 or empty."""

    data: bytes | mmap.mmap
    file: Path
    at: int
    most: int

    def number(self, field: int, kind: str) -> int:
        """Return a number, of the kind that `struct` has under this letter."""
        place = self._place(field)
        return self._read(kind, place) if place else 0

    def text(self, field: int) -> str:
        """Return a string."""
        start, end = self.span(field)
        return self.data[start:end].decode("utf-8", "backslashreplace")

    def numbers(self, field: int) -> tuple[int, ...]:
        """Return a vector of 32-bit numbers."""
        start, count = self._vector(field, 4)
        return struct.unpack_from(f"<{count}i", self.data, start)

    def span(self, field: int) -> Span:
        """Return where the bytes of a string or of a vector of bytes lie."""
        start, count = self._vector(field, 1)
        return start, start + count

    def tables(self, field: int) -> Iterator[Table]:
        """Yield the tables of a vector."""
        start, count = self._vector(field, 4)
        for at in range(start, start + 4 * count, 4):
            yield Table(self.data, self.file, at + self._read("I", at), self.most)

    def table(self, field: int) -> Iterator[Table]:
        """Yield the table of a field, if it is there."""
        if place := self._place(field):
            yield Table(self.data, self.file, place + self._read("I", place), self.most)

    def _vector(self, field: int, item_bytes: int) -> tuple[int, int]:
        place = self._place(field)
        if not place:
            return 0, 0
        start = place + self._read("I", place)
        count = self._read("I", start)
        if start + 4 + count * item_bytes > len(self.data):
            raise damaged(self.file, f"a list at byte {start} ends after the file")
        if item_bytes > 1 and count > self.most:
            raise over_budget(self.file, f"a list at byte {start} has {count} entries")
        return start + 4, count

    def _place(self, field: int) -> int:
        """Return where a field lies, 0 if it is not there."""
        fields = self.at - self._read("i", self.at)
        entry = 4 + 2 * field
        if entry + 2 > self._read("H", fields):
            return 0
        offset = self._read("H", fields + entry)
        return self.at + offset if offset else 0

    def _read(self, kind: str, at: int) -> int:
        if not 0 <= at <= len(self.data) - _NUMBER[kind]:
            raise damaged(self.file, f"byte {at} is referred to, of {len(self.data)}")
        value: int = struct.unpack_from(f"<{kind}", self.data, at)[0]
        return value


def root(data: bytes | mmap.mmap, file: Path, most: int) -> Table:
    """Return the outermost table."""
    if len(data) < 8:
        raise damaged(file, f"it has {len(data)} bytes")
    return Table(data, file, int.from_bytes(data[:4], "little"), most)
