"""A user's `tf.data.Dataset` as it is: its own order, its own batches, entered again by position.

Resuming skips the batches already consumed, so the dataset must give the same elements each time it is iterated. A
shuffle without a fixed order cannot do that; `check_deterministic` finds it in the dataset's own graph and refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from anyrig.data.source import Batch
from anyrig.errors import UsageError


class DatasetSource:
    """Batches of a `tf.data.Dataset` whose elements are x, (x, y) or (x, y, sample_weight)."""

    def __init__(self, dataset: tf.data.Dataset, *, batch: int | None, batched: bool, steps: int | None = None) -> None:
        """`batch`: the global batch asked for, if any; `batched`: whether the elements are batches already."""
        self.dataset = dataset if batched or batch is None else dataset.batch(batch)
        self.expected_rows = batch
        self.steps = steps

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of one pass over the dataset, without the first `start`."""
        del epoch
        dataset = self.dataset.skip(start) if start else self.dataset
        if self.steps is not None:
            dataset = dataset.take(self.steps - start)
        largest = 0
        for element in dataset:
            batch: Batch = keras.utils.unpack_x_y_sample_weight(element)
            rows = int(keras.tree.flatten(batch[0])[0].shape[0])
            self._check_rows(rows, largest)
            largest = max(largest, rows)
            yield batch

    def batches_per_epoch(self) -> int | None:
        """Return the dataset's own count, None if it does not know, an error if it never ends."""
        if self.steps is not None:
            return self.steps
        count = int(self.dataset.cardinality())
        if count == tf.data.INFINITE_CARDINALITY:
            raise UsageError(
                "ANY-DATA-004", "the dataset never ends, so an epoch has no end", hint="end it with .take(n)"
            )
        return None if count == tf.data.UNKNOWN_CARDINALITY else count

    def fingerprint(self) -> dict[str, Any]:
        """Return element specification and count; the elements themselves are not read."""
        return {"element_spec": repr(self.dataset.element_spec), "batches": self.batches_per_epoch()}

    def _check_rows(self, rows: int, largest: int) -> None:
        if self.expected_rows is not None and rows > self.expected_rows or (
            self.expected_rows is not None and 0 < largest < self.expected_rows
        ):
            raise UsageError(
                "ANY-DATA-005",
                f"batch says global_size {self.expected_rows}, but the dataset gives batches of {max(rows, largest)} rows",
                hint="leave batch out to use the dataset's own batches, or unbatch() the dataset",
            )


def is_dataset(data: Any) -> bool:
    """Tell whether `data` is a `tf.data.Dataset`."""
    return isinstance(data, tf.data.Dataset)
