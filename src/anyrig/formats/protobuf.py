"""Reads messages of the protocol-buffer wire format, without their schemas' compiler and without copies.

A `Message` is one message split into its fields; whoever reads it asks for fields by number and type, as the schema
names them. Messages inside are split when they are asked for, so depth is bounded by the code that asks, not by the
file. A message of more fields than the budget allows is refused before anything is made of them; every other breach of
the format is named with its file. Groups, which no schema here uses, are refused.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from anyrig.formats.contents import Budget, damaged, over_budget

if TYPE_CHECKING:
    import numpy as np

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}
Span: TypeAlias = tuple[int, int]
"""Where bytes begin and end in the outermost message."""


@dataclass(frozen=True, slots=True)
class _Source:
    data: bytes | mmap.mmap
    file: Path
    most: int


def parse(data: bytes | mmap.mmap, file: Path, budget: Budget) -> Message:
    """Return a whole message; `file` is named in errors."""
    return Message(_Source(data, file, budget.tensors), (0, len(data)))


def read_varint(data: bytes | mmap.mmap, at: int, end: int) -> tuple[int, int]:
    """Return an unsigned number of up to 64 bits and where it ends. Raises ValueError where there is none."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise ValueError("a number has no end")


class Message:
    """The fields of one message. A field that is not there has the value that protocol buffers give it: 0 or empty."""

    __slots__ = ("_fields", "_source", "span")

    def __init__(self, source: _Source, span: Span) -> None:
        self._source = source
        self.span = span
        try:
            self._fields = _split(source, span)
        except ValueError as error:
            raise damaged(source.file, f"a message at byte {span[0]}: {error}") from None

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def integer(self, number: int) -> int:
        """Return an unsigned number: uint32, uint64, enum, bool, fixed32."""
        value = self._fields.get(number, (0,))[-1]
        if isinstance(value, int):
            return value
        raise self.damaged(f"field {number} should be a number")

    def signed(self, number: int) -> int:
        """Return a signed number: int32, int64."""
        value = self.integer(number)
        return value - 2**64 if value >= 2**63 else value

    def blob(self, number: int) -> bytes:
        """Return bytes."""
        start, end = self.spans(number)[-1] if number in self._fields else (0, 0)
        return self._source.data[start:end]

    def blobs(self, number: int) -> list[bytes]:
        """Return a repeated field of bytes."""
        return [self._source.data[start:end] for start, end in self.spans(number)]

    def text(self, number: int) -> str:
        """Return a string."""
        return self._decoded(self.blob(number), number)

    def texts(self, number: int) -> list[str]:
        """Return a repeated string."""
        return [self._decoded(blob, number) for blob in self.blobs(number)]

    def message(self, number: int) -> Message:
        """Return a message inside; an empty one if there is none."""
        return Message(self._source, self.spans(number)[-1] if number in self._fields else (0, 0))

    def messages(self, number: int) -> Iterator[Message]:
        """Yield repeated messages."""
        for span in self.spans(number):
            yield Message(self._source, span)

    def mapping(self, number: int) -> dict[str, Message]:
        """Return a map from strings to messages."""
        return {entry.text(1): entry.message(2) for entry in self.messages(number)}

    def spans(self, number: int) -> list[Span]:
        """Return where the bytes of a repeated field lie in the outermost message."""
        found: list[Span] = []
        for value in self._fields.get(number, ()):
            if isinstance(value, int):
                raise self.damaged(f"field {number} should be bytes")
            found.append(value)
        return found

    def values(self, number: int) -> list[int | Span]:
        """Return a repeated field as it is: numbers one by one, or spans of packed ones."""
        return list(self._fields.get(number, ()))

    def bytes_of(self, span: Span) -> bytes:
        """Return bytes by their place."""
        return self._source.data[span[0] : span[1]]

    def damaged(self, what: str) -> Exception:
        """Return the error for something wrong in this message."""
        return damaged(self._source.file, f"in the message at byte {self.span[0]}, {what}")

    def _decoded(self, blob: bytes, number: int) -> str:
        try:
            return blob.decode()
        except UnicodeDecodeError:
            raise self.damaged(f"field {number} is not UTF-8 text") from None


def _split(source: _Source, span: Span) -> dict[int, list[int | Span]]:
    data, (at, end) = source.data, span
    fields: dict[int, list[int | Span]] = {}
    count = 0
    while at < end:
        key, at = read_varint(data, at, end)
        value: int | Span
        if (kind := key & 7) == _VARINT:
            value, at = read_varint(data, at, end)
        elif kind == _BYTES:
            size, at = read_varint(data, at, end)
            value, at = (at, at + size), at + size
        elif kind in _FIXED_BYTES:
            start, at = at, at + _FIXED_BYTES[kind]
            value = int.from_bytes(data[start:at], "little")
        else:
            raise ValueError(f"a field of the unknown kind {kind}")
        if at > end:
            raise ValueError("a field is longer than its message")
        fields.setdefault(key >> 3, []).append(value)
        if (count := count + 1) > source.most:
            raise over_budget(source.file, f"a message has more than {source.most} fields")
    return fields


def varints(data: bytes) -> np.ndarray[Any, Any]:
    """Return packed unsigned numbers as uint64. Raises ValueError where a number has no end."""
    import numpy as np

    octets = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(octets < 0x80)
    starts = np.concatenate([np.zeros(1, ends.dtype), ends[:-1] + 1])[: ends.size]
    lengths = ends - starts + 1
    if octets.size and (octets[-1] >= 0x80 or lengths.max() > 10):
        raise ValueError("a number has no end")
    values = np.zeros(ends.size, np.uint64)
    for position in range(int(lengths.max(initial=0))):
        longer = lengths > position
        part = (octets[starts[longer] + position] & 0x7F).astype(np.uint64)
        values[longer] |= part << np.uint64(7 * position)
    return values
