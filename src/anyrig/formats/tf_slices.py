"""Slices of partitioned variables: the keys under which a checkpoint keeps them, and whole tensors made of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyrig.formats.contents import damaged
from anyrig.formats.tf_types import Slice

if TYPE_CHECKING:
    import numpy as np

_WHOLE = -1  # the length that stands for a whole dimension


def name_key(name: bytes) -> bytes:
    """Return how the keys of all slices of a tensor begin."""
    escaped = re.sub(rb"[\0\xff]", lambda found: found[0] + bytes([found[0][0] ^ 0xFF]), name)
    return b"\0" + escaped + b"\0\1"


def slice_key(name: bytes, part: Slice) -> bytes:
    """Return the key of a slice, in TensorFlow's encoding, in which keys sort as names and numbers do."""
    numbers = (
        number for start, length in part.extents for number in ((0, _WHOLE) if length is None else (start, length))
    )
    return name_key(name) + _unsigned(len(part.extents)) + b"".join(map(_signed, numbers))


def _unsigned(number: int) -> bytes:
    size = (number.bit_length() + 7) // 8
    return bytes([size]) + number.to_bytes(size, "big")


def _signed(number: int) -> bytes:
    """Return a signed number, big-endian: as many leading bits as it has bytes are turned over."""
    magnitude = ~number if number < 0 else number
    size = magnitude.bit_length() // 7 + 1
    header = ((1 << size) - 1) << 7 * size
    return (number % (1 << 8 * size) ^ header).to_bytes(size, "big")


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice: its place in the tensor, and what yields its elements."""

    region: tuple[slice, ...]
    read: Callable[[], Iterator[np.ndarray[Any, Any]]]


def joined(file: Path, shape: tuple[int, ...], pieces: Sequence[Piece]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the elements of a tensor whose slices have as many elements as it has; ANY-FORMAT-002 if two overlap.

    Slices along the first dimension follow each other; any others are put together in memory first.
    """
    rows = sorted(pieces, key=lambda piece: piece.region[0].start) if shape else []
    if shape and all(_is_rows(piece, shape) for piece in pieces) and _follow(rows):
        for piece in rows:
            yield from piece.read()
    elif math.prod(shape):
        yield _assembled(file, shape, pieces)


def _is_rows(piece: Piece, shape: tuple[int, ...]) -> bool:
    rest = zip(piece.region[1:], shape[1:], strict=True)
    return all(extent.stop - extent.start == size for extent, size in rest)


def _follow(rows: Sequence[Piece]) -> bool:
    return all(one.region[0].stop == other.region[0].start for one, other in pairwise(rows))


def _assembled(file: Path, shape: tuple[int, ...], pieces: Sequence[Piece]) -> np.ndarray[Any, Any]:
    import numpy as np

    whole: np.ndarray[Any, Any] | None = None
    seen = np.zeros(shape, bool)
    for piece in pieces:
        if seen[piece.region].any():
            raise damaged(file, f"slices of a tensor of shape {shape} overlap")
        seen[piece.region] = True
        if parts := list(piece.read()):
            extents = [extent.stop - extent.start for extent in piece.region]
            part = np.concatenate(parts).reshape(*extents, -1)  # last, the bytes of a type that numpy does not know
            if whole is None:
                whole = np.empty((*shape, part.shape[-1]), part.dtype)
            whole[piece.region] = part
    assert whole is not None
    return whole.reshape(-1)
