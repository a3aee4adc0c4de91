"""Unpacks a snappy block, as sorted string tables of TensorFlow hold them, up to a given size and no further.

Literals, which is what weights come as, are copied whole; so plain Python is fast enough, and no package is needed.
"""

from __future__ import annotations

from anyrig.formats.protobuf import read_varint


def declared_size(data: bytes) -> int:
    """Return how many bytes a block says that it unpacks to. Raises ValueError if it does not say."""
    return read_varint(data, 0, len(data))[0]


def unpack(data: bytes) -> bytes:
    """Return the bytes of a block. Raises ValueError if it breaks the format, or gives other than it declares."""
    size, at = read_varint(data, 0, len(data))
    out = bytearray()
    while at < len(data):
        tag = data[at]
        if tag & 3 == 0:
            length, at = _literal(data, at)
            if at + length > len(data):
                raise ValueError("a literal is longer than its block")
            out += data[at : at + length]
            at += length
        else:
            length, offset, at = _copy(data, at)
            if not 0 < offset <= len(out):
                raise ValueError("a copy from before the block")
            start = len(out) - offset
            pattern = out[start : start + length]
            out += (pattern * (length // len(pattern) + 1))[:length]
        if len(out) > size:
            break
    if len(out) != size:
        raise ValueError(f"a block of {size} bytes unpacks to another size")
    return bytes(out)


def _literal(data: bytes, at: int) -> tuple[int, int]:
    length = data[at] >> 2
    extra = max(0, length - 59)  # 60 to 63: the length follows in 1 to 4 bytes
    if extra:
        length = int.from_bytes(data[at + 1 : at + 1 + extra], "little")
    return length + 1, at + 1 + extra


def _copy(data: bytes, at: int) -> tuple[int, int, int]:
    """Return length, distance back, and where the next element begins."""
    tag = data[at]
    width = (0, 1, 2, 4)[tag & 3]
    offset = int.from_bytes(data[at + 1 : at + 1 + width], "little")
    if width == 1:
        return (tag >> 2 & 7) + 4, (tag >> 5) << 8 | offset, at + 2
    return (tag >> 2) + 1, offset, at + 1 + width
