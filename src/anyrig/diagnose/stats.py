"""Smallest, largest, mean, norm and odd numbers of a stored tensor, in blocks: memory does not grow with its size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyrig.formats.contents import FileTensor
from anyrig.store.check import Advance
from anyrig.store.dtypes import ITEM_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorStats:
    """`min`, `max`, `mean` and `norm` (root of the sum of squares) of the finite elements; None where there are none.

    Complex elements count by their magnitude, truth values as 0 and 1. `zeros`, `nan` and `inf` count elements.
    """

    min: float | int | None = None
    max: float | int | None = None
    mean: float | None = None
    norm: float | None = None
    zeros: int = 0
    nan: int = 0
    inf: int = 0


def all_stats(tensors: Sequence[FileTensor], advance: Advance) -> list[TensorStats | None]:
    """Return the statistics of each tensor, read in parallel."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda tensor: stats_of(tensor, advance), tensors))


def stats_of(tensor: FileTensor, advance: Advance = lambda _: None) -> TensorStats | None:
    """Return the statistics of one tensor; None for a type that is not known here."""
    if tensor.dtype not in ITEM_BYTES:
        return None
    lows, highs = [], []
    zeros = nan = inf = count = 0
    mean = norm = 0.0
    for block in tensor.blocks():
        numbers = _real(block)
        advance(block.nbytes)
        zeros += int(np.count_nonzero(numbers == 0))
        low, high = numbers.min().item(), numbers.max().item()
        if not (math.isfinite(low) and math.isfinite(high)):
            nan += int(np.count_nonzero(np.isnan(numbers)))
            inf += int(np.count_nonzero(np.isinf(numbers)))
            numbers = numbers[np.isfinite(numbers)]
            if not numbers.size:
                continue
            low, high = numbers.min().item(), numbers.max().item()
        lows.append(low)
        highs.append(high)
        count += numbers.size
        part = numbers.size / count
        block_mean, block_norm = _mean_and_norm(numbers, float(max(-low, high)))
        mean += block_mean * part - mean * part
        norm = math.hypot(norm, block_norm)
    if not count:
        return TensorStats(nan=nan, inf=inf)
    return TensorStats(min=min(lows), max=max(highs), mean=mean, norm=norm, zeros=zeros, nan=nan, inf=inf)


def _real(block: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the same numbers in a type that numpy computes with: real, and of 32 bits at least if not whole."""
    if block.dtype.kind == "c":
        magnitudes: np.ndarray[Any, Any] = np.abs(block.astype(np.complex128))
        return magnitudes
    return block if block.dtype.kind in "iu" or block.dtype == np.float64 else block.astype(np.float32, copy=False)


def _mean_and_norm(numbers: np.ndarray[Any, Any], largest: float) -> tuple[float, float]:
    """Return both in float64; `largest` is the largest magnitude, by which is divided where a square would not fit."""
    wide = numbers.astype(np.float64, copy=False)
    scale = 1.0 if 1e-140 < largest < 1e140 else largest or 1.0
    scaled = wide if scale == 1 else wide / scale
    return scale * float(scaled.mean()), scale * math.sqrt(float(np.square(scaled).sum()))
