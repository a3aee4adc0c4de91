"""Texts of variable length in HDF5 files: where they are referred to, and whether each reference can be.

A reference is a length, the address of a collection of texts, and a number in it. The library makes room for the
length before it looks at the collection, and walks a collection without looking where it goes; so both are looked at
here first. The format: https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

Bytes = bytes | mmap.mmap

_COLLECTION = b"GCOL\1\0\0\0"  # signature, version, zeros; then its size, and the texts
_HEADER = 16  # of a collection, and of each text in it
REFERENCE_BYTES = 16
_REFERENCE = struct.Struct("<LQL")
_ATTRIBUTE, _CONTINUED = 0x0C, 0x10
_MOST_BLOCKS = 10_000  # of one object's header


def referred(data: Bytes, raw: bytes, base: int, walked: dict[int, int]) -> int:
    """Return how long the texts are to which references lead; ValueError for one that leads to no sound collection.

    Addresses count from `base`. `walked` keeps the sizes of collections that were seen.
    """
    total = 0
    for length, address, _ in _REFERENCE.iter_unpack(raw):
        if length:
            start = base + address
            if start not in walked:
                walked[start] = _walked(data, start)
            if length > walked[start]:
                raise ValueError(f"a text of {length} bytes is referred to, in a collection of {walked[start]}")
            total += length
    return total


def _walked(data: Bytes, start: int) -> int:
    """Return the size of a collection after a walk from text to text, as the library walks."""
    if data[start : start + len(_COLLECTION)] != _COLLECTION:
        raise ValueError(f"there is no collection of texts at byte {start}")
    size = _number(data, start + 8)
    at, end = start + _HEADER, start + size
    if end > len(data):
        raise ValueError(f"the collection of texts at byte {start} ends after the file")
    while at + _HEADER <= end:
        length = _number(data, at + 8)
        if data[at : at + 2] != b"\0\0":  # not the free rest, whose size has its header in it
            length = _HEADER + -(-length // 8) * 8
        if not _HEADER <= length <= end - at:
            raise ValueError(f"the collection of texts at byte {start} holds one of {length} bytes at byte {at}")
        at += length
    return size


def references(data: Bytes, header: int, base: int, name: bytes, size: int) -> bytes | None:
    """Return the `size` bytes of an attribute of the object whose header is at `header`; None if it is not in there."""
    for kind, start, end in _messages(data, header, base):
        if kind != _ATTRIBUTE or end - start < 9:
            continue
        version, _, *lengths = struct.unpack_from("<BBHHH", data, start)
        at = start + (9 if version == 3 else 8)
        if data[at : at + lengths[0]].rstrip(b"\0") == name:
            at += sum(-(-length // 8) * 8 if version == 1 else length for length in lengths)
            return data[at : at + size] if at + size <= end else None
    return None


def _messages(data: Bytes, header: int, base: int) -> Iterator[tuple[int, int, int]]:
    """Yield kind, start and end of what an object's header consists of, in both versions of it."""
    new = data[header : header + 4] == b"OHDR"
    first, of_message = _newer_start(data, header) if new else (_older_start(data, header), 8)
    blocks = [first]
    for block in blocks:
        at, end = block[0], min(block[1], len(data))
        while at + of_message <= end:
            kind, size = struct.unpack_from("<BH" if new else "<HH", data, at)
            start = at + of_message
            at = start + size
            if at > end:
                break
            yield kind, start, at
            if kind == _CONTINUED and size >= 16 and len(blocks) < _MOST_BLOCKS:
                place, length = base + _number(data, start), _number(data, start + 8)
                blocks.append((place + 4, place + length - 4) if new else (place, place + length))


def _older_start(data: Bytes, header: int) -> tuple[int, int]:
    return header + 16, header + 16 + int.from_bytes(data[header + 8 : header + 12], "little")


def _newer_start(data: Bytes, header: int) -> tuple[tuple[int, int], int]:
    flags = data[header + 5]
    at = header + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    size = int.from_bytes(data[at : at + width], "little")
    return (at + width, at + width + size), 6 if flags & 4 else 4


def _number(data: Bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")
