"""How much the elements of two stored tensors differ, block by block: memory does not grow with their size.

Of one type they are compared bit by bit, so that -0.0 is not 0.0 and a NaN is that very NaN; of two types as numbers.
The bytes that are read are hashed on the way: a difference that is damage is never reported as a difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from anyrig.errors import AnyrigError
from anyrig.formats.contents import FileTensor
from anyrig.store.check import Advance
from anyrig.store.dtypes import ITEM_BYTES

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueChange:
    """`differing` of `elements` are not equal; `first` is the index of the first such one.

    `max_abs` is the largest |a - b|, `max_rel` the largest |a - b| / max(|a|, |b|), over pairs of finite numbers (None
    where there are none); `not_finite` counts pairs that differ in a NaN or infinity. Of a type that is not known here
    bytes are counted, and nothing else is told.
    """

    differing: int
    elements: int
    first: tuple[int, ...] | None
    max_abs: float | None
    max_rel: float | None
    not_finite: int


def compare_values(a: FileTensor, b: FileTensor, advance: Advance = lambda _: None) -> ValueChange | None:
    """Compare two tensors of one shape; None when they are equal. Raises ANY-DIFF-001 for damage."""
    differing = not_finite = position = 0
    first: int | None = None
    known = {a.dtype, b.dtype} <= ITEM_BYTES.keys()
    absolute: list[float] = []
    relative: list[float] = []
    for left, right in zip(_hashed(a), _hashed(b), strict=True):
        advance(left.nbytes + right.nbytes)
        unequal = _unequal(left, right)
        if unequal.any():
            where = np.flatnonzero(unequal)
            first = position + int(where[0]) if first is None else first
            differing += where.size
            distance, size = _distances(left[where], right[where])
            finite = np.isfinite(size)
            not_finite += where.size - int(np.count_nonzero(finite))
            if finite.any():
                distance, size = distance[finite], size[finite]
                absolute.append(float(distance.max()))
                relative.append(float(np.divide(distance, size, out=np.zeros_like(distance), where=size > 0).max()))
        position += left.size
    if first is None:
        return None
    return ValueChange(
        differing=differing,
        elements=position,
        first=tuple(int(index) for index in np.unravel_index(first, a.shape)) if known else None,
        max_abs=max(absolute, default=None) if known else None,
        max_rel=max(relative, default=None) if known else None,
        not_finite=not_finite,
    )


def _hashed(tensor: FileTensor) -> Iterator[Array]:
    found = xxhash.xxh3_128()
    for block in tensor.blocks():
        found.update(block.view(np.uint8).data)
        yield block
    if tensor.checksum not in (None, found.hexdigest()):
        raise AnyrigError(
            "ANY-DIFF-001",
            f"{tensor.name} of {tensor.origin} is damaged: its bytes are not those that were written.",
            hint=f"see all damage with: anyrig verify {tensor.origin}",
        )


def _unequal(a: Array, b: Array) -> Array:
    """Return where two blocks differ: bit by bit if they have one type, else as numbers (NaN is equal to NaN)."""
    if a.dtype == b.dtype:
        bits = np.dtype(f"u{a.itemsize}")
        unequal: Array = a.view(bits) != b.view(bits)
        return unequal
    wide_a, wide_b = _wide(a), _wide(b)
    either: Array = (wide_a != wide_b) & ~(np.isnan(wide_a) & np.isnan(wide_b))
    return either


def _distances(a: Array, b: Array) -> tuple[Array, Array]:
    """Return |a - b| and the larger magnitude, in float64; whole numbers of one type are subtracted exactly."""
    wide_a, wide_b = _wide(a), _wide(b)
    size = np.maximum(np.abs(wide_a), np.abs(wide_b))
    if a.dtype == b.dtype and a.dtype.kind in "iu":
        bits = np.dtype(f"u{a.itemsize}")
        up, down = a.view(bits) - b.view(bits), b.view(bits) - a.view(bits)
        return np.where(a > b, up, down).astype(np.float64), size
    with np.errstate(invalid="ignore", over="ignore"):  # inf - inf; 1e308 - -1e308
        distance: Array = np.abs(wide_a - wide_b)
    return distance, size


def _wide(block: Array) -> Array:
    return block.astype(np.complex128 if block.dtype.kind == "c" else np.float64)
