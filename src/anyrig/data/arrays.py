"""Arrays in memory (or mapped from disk) as a source: any nested structure with the rows on the first axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import xxhash

from anyrig.data.order import EpochOrder
from anyrig.data.source import Batch
from anyrig.errors import UsageError

_HASHED_BYTES = 256 << 20
_SAMPLED_ROWS = 1024


class ArraySource:
    """Rows of (x, y, sample_weight), each an array or a nested structure of arrays, in the order of (seed, epoch).

    float64 arrays become `keras.config.floatx()`, as in Keras; other dtypes are kept.
    """

    def __init__(
        self, x: Any, y: Any = None, sample_weight: Any = None, *, global_size: int, shuffle: bool = True, seed: int = 0
    ) -> None:
        self.data: Batch = tuple(_as_arrays(part) for part in (x, y, sample_weight))
        self.rows = _count_rows(self.data)
        self.global_size = global_size
        self.shuffle = shuffle
        self.seed = seed

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the global batches of `epoch` from number `start` on; the last one may be smaller."""
        order = EpochOrder(self.rows, self.seed, epoch, self.shuffle)
        for first in range(start * self.global_size, self.rows, self.global_size):
            yield self.take(order.take(first, first + self.global_size))

    def batches_per_epoch(self) -> int:
        """Return the number of global batches, the uneven last one included."""
        return -(-self.rows // self.global_size)

    def take(self, rows: Any) -> Batch:
        """Return the batch made of the given row numbers."""
        return keras.tree.map_structure(lambda array: _rows(array, rows), self.data)

    def sample(self) -> Batch:
        """Return the first rows as a batch."""
        return self.take(np.arange(min(self.global_size, self.rows)))

    def refuse_random_order(self, epoch: int) -> None:
        """Do nothing: the order is fixed by (seed, epoch)."""

    def fingerprint(self) -> dict[str, Any]:
        """Return rows, dtypes, shapes and a hash: of all rows up to 256 MiB, of 1,024 spread rows above that."""
        arrays = keras.tree.flatten(self.data)
        everything = sum(a.nbytes for a in arrays if a is not None) <= _HASHED_BYTES
        sample = slice(None) if everything else np.linspace(0, self.rows - 1, _SAMPLED_ROWS).astype(np.int64)
        digest = xxhash.xxh3_128()
        for array in arrays:
            if array is not None:
                digest.update(np.ascontiguousarray(array[sample]).tobytes())
        described = [[str(a.dtype), list(a.shape[1:])] for a in arrays if a is not None]
        return {"rows": self.rows, "arrays": described, "hash": digest.hexdigest()}


def is_array_like(data: Any) -> bool:
    """Tell whether `data` is made of arrays only (NumPy arrays, tensors, or nested structures of them)."""
    leaves = keras.tree.flatten(data)
    return bool(leaves) and all(hasattr(leaf, "shape") and hasattr(leaf, "__array__") for leaf in leaves)


def _as_arrays(part: Any) -> Any:
    return keras.tree.map_structure(lambda leaf: None if leaf is None else np.asanyarray(leaf), part)


def _rows(array: Any, rows: Any) -> Any:
    if array is None:
        return None
    taken = np.ascontiguousarray(array[rows])
    return taken.astype(keras.config.floatx()) if taken.dtype == np.float64 else taken


def _count_rows(data: Batch) -> int:
    shapes = {
        f"{label}{index or ''}": leaf.shape
        for label, part in zip(("x", "y", "sample_weight"), data, strict=True)
        for index, leaf in enumerate(keras.tree.flatten(part))
        if leaf is not None
    }
    scalars = [label for label, shape in shapes.items() if not shape]
    if scalars or not shapes:
        found = f"{scalars[0]} is a single number" if scalars else "no array at all"
        raise UsageError(
            "ANY-DATA-001",
            f"data must be arrays with rows on the first axis; found {found}",
            hint="give x and y as arrays of one length",
        )
    counts = {label: shape[0] for label, shape in shapes.items()}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{label}: {count}" for label, count in counts.items())
        raise UsageError(
            "ANY-DATA-002",
            f"the arrays do not have the same number of rows: {found}",
            hint="give one row of y (and sample_weight) for each row of x",
        )
    rows = next(iter(counts.values()))
    if rows == 0:
        raise UsageError("ANY-DATA-003", "the data has no rows", hint="give at least one row")
    return int(rows)
