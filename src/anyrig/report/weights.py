"""How the numbers of a loaded weight are spread, from a sample of it: cheap for any size, and pages stay unread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from anyrig.state.values import to_array
from anyrig.state.walk import model_variables

SAMPLE = 16_384
"""At most so many elements of each weight, evenly apart, are looked at."""
_BINS = 30


@dataclass(frozen=True, slots=True)
class Spread:
    """Of the finite numbers of a sample: `counts[i]` of them lie between `edges[i]` and `edges[i + 1]`.

    `sampled` elements of `elements` were looked at, `odd` of them are NaN or infinite.
    """

    elements: int
    sampled: int
    odd: int
    mean: float
    deviation: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]


def spreads(model: keras.Model, loaded: Mapping[str, str]) -> Iterator[tuple[str, Spread]]:
    """Yield name and spread of every floating-point weight of `model` that is in `loaded` and not empty."""
    for item in model_variables(model):
        if item.name in loaded and "float" in str(item.variable.dtype) and (array := to_array(item.variable)).size:
            yield item.name, _spread(array)


def _spread(array: np.ndarray[Any, Any]) -> Spread:
    sample = array.reshape(-1)[:: -(-array.size // SAMPLE)].astype(np.float64)
    finite = sample[np.isfinite(sample)]
    counts, edges = np.histogram(finite, _BINS) if finite.size else (np.zeros(0, int), np.zeros(0))
    return Spread(
        elements=array.size,
        sampled=sample.size,
        odd=sample.size - finite.size,
        mean=float(finite.mean()) if finite.size else 0.0,
        deviation=float(finite.std()) if finite.size else 0.0,
        edges=tuple(map(float, edges)),
        counts=tuple(map(int, counts)),
    )
