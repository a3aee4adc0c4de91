"""Arrays in memory (or mapped from disk) as a source: any nested structure with the rows on the first axis.

NumPy arrays, tensors and pandas frames and series (told by `iloc`; pandas itself is not imported), of numbers or text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import xxhash

from anyrig.data.order import EpochOrder
from anyrig.data.source import Batch, no_rows
from anyrig.errors import UsageError

_HASHED_BYTES = 256 << 20
_SAMPLED_ROWS = 1024


class ArraySource:
    """Rows of (x, y, sample_weight), each an array or a nested structure of arrays, in the order of (seed, pass).

    `shuffle="batch"` keeps each batch's rows and changes their order within it. float64 arrays become
    `keras.config.floatx()`, as in Keras; other dtypes are kept.
    """

    once = False
    endless = False
    caution: str | None = None

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        global_size: int,
        shuffle: bool | str = True,
        seed: int = 0,
    ) -> None:
        self.data: Batch = as_arrays((x, y, sample_weight))
        self.rows = _check_rows(self.data)
        self.global_size = global_size
        self.shuffle = shuffle
        self.seed = seed

    def batches(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the global batches of pass `number` from batch `start` on; the last one may be smaller."""
        order = EpochOrder(self.rows, self.seed, number)
        for first in range(start * self.global_size, self.rows, self.global_size):
            last = min(first + self.global_size, self.rows)
            if self.shuffle == "batch":
                within = EpochOrder(last - first, self.seed + first, number)
                yield self.take(first + within.take(0, last - first))
            else:
                yield self.take(order.take(first, last) if self.shuffle else slice(first, last))

    def begin_epoch(self, epoch: int) -> None:
        """Do nothing."""

    def end_epoch(self) -> bool:
        """Do nothing."""
        return False

    def batches_per_epoch(self) -> int:
        """Return the number of global batches, the uneven last one included."""
        return -(-self.rows // self.global_size)

    def take(self, rows: Any) -> Batch:
        """Return the batch made of the given row numbers, or of a slice of rows."""
        return keras.tree.map_structure(lambda array: _rows(array, rows), self.data)

    def sample(self) -> Batch:
        """Return the first rows as a batch."""
        return self.take(slice(0, self.global_size))

    def refuse_random_order(self, number: int, start: int = 0) -> None:
        """Do nothing: the order is fixed by (seed, pass)."""

    def fingerprint(self) -> dict[str, Any]:
        """Return rows, dtypes, shapes and a hash: of all rows up to 256 MiB, of 1,024 spread rows above that."""
        arrays = [array for array in keras.tree.flatten(self.data) if array is not None]
        everything = sum(a.nbytes for a in arrays) <= _HASHED_BYTES
        sample = slice(None) if everything else np.linspace(0, self.rows - 1, _SAMPLED_ROWS).astype(np.int64)
        described = [[str(a.dtype), list(a.shape[1:])] for a in arrays]
        return {"rows": self.rows, "arrays": described, "hash": hash_arrays([array[sample] for array in arrays])}


def is_array_like(data: Any) -> bool:
    """Tell whether `data` is made of arrays only (NumPy arrays, tensors, pandas, or nested structures of them)."""
    leaves = keras.tree.flatten(data)
    return bool(leaves) and all(hasattr(leaf, "shape") and hasattr(leaf, "__array__") for leaf in leaves)


def refuse_irregular(leaf: Any) -> None:
    """Raise UsageError for a sparse or ragged tensor, or a sparse matrix of SciPy, by its type."""
    if isinstance(leaf, tf.SparseTensor | tf.RaggedTensor) or hasattr(leaf, "tocsr"):
        raise UsageError(
            "ANY-DATA-010",
            f"the data has elements of type {type(leaf).__name__}, which are not rows of one shape",
            hint="make them dense: tf.sparse.to_dense, .to_tensor() of a ragged tensor, .toarray() of SciPy's",
        )


def as_arrays(data: Any) -> Any:
    """Return `data` with NumPy arrays for leaves; a pandas series becomes one column, as in Keras."""
    return keras.tree.map_structure(lambda leaf: None if leaf is None else _as_array(leaf), data)


def hash_arrays(arrays: list[Any]) -> str:
    """Return a hash of the bytes of all arrays; of the words, for text held as objects."""
    digest = xxhash.xxh3_128()
    for array in arrays:
        if array.dtype.kind == "O":
            for word in array.ravel():
                digest.update(word if isinstance(word, bytes) else word.encode())
                digest.update(b"\0")
        else:
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def split_rows(data: Batch, part: float) -> tuple[Batch, Batch]:
    """Return the first rows and, as validation data, the last `part` of them, before any shuffling, as Keras does."""
    if not all(map(is_array_like, keras.tree.flatten([leaf for leaf in data if leaf is not None]))):
        raise UsageError(
            "ANY-DATA-011",
            f"validation_split needs arrays, and x is {type(data[0]).__name__}",
            hint="give validation_data instead",
        )
    arrays = as_arrays(data)
    rows = _check_rows(arrays)
    at = math.floor(rows * (1.0 - part))
    if not 0 < at < rows:
        raise UsageError(
            "ANY-DATA-012",
            f"validation_split={part} of {rows} rows leaves nothing for {'training' if at <= 0 else 'validation'}",
            hint="give a number between 0 and 1, and more rows",
        )
    return tuple(
        keras.tree.map_structure(lambda array, cut=cut: None if array is None else array[cut], arrays)
        for cut in (slice(0, at), slice(at, rows))
    )


def _as_array(leaf: Any) -> Any:
    array = leaf.to_numpy() if hasattr(leaf, "iloc") else np.asanyarray(leaf)
    if hasattr(leaf, "iloc") and array.ndim == 1:
        array = array[:, None]
    text = array.dtype.kind == "O" and all(isinstance(word, str | bytes) for word in array.ravel())
    if not text and not _is_numeric(array.dtype):
        raise UsageError(
            "ANY-DATA-013",
            f"an array has dtype {array.dtype}, which is neither numbers nor text",
            hint="convert it first: array.astype('float32'), or one array for each column of a frame",
        )
    return array


def _is_numeric(dtype: Any) -> bool:
    try:
        return dtype.kind != "O" and tf.as_dtype(dtype) is not None
    except TypeError:
        return False


def for_tensorflow(array: Any) -> Any:
    """Return a batch's array as the step takes it: float64 as `keras.config.floatx()`, text as a tensor of strings."""
    if array.dtype.kind in "OSU":
        return tf.constant(array)
    return array.astype(keras.config.floatx()) if array.dtype == np.float64 else array


def _rows(array: Any, rows: Any) -> Any:
    return None if array is None else for_tensorflow(np.ascontiguousarray(array[rows]))


def _check_rows(data: Batch) -> int:
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
        raise no_rows()
    return int(rows)
