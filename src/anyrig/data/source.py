"""What the training loop asks of data, whatever it comes from.

A batch is always the triple (x, y, sample_weight) of one global batch; y and sample_weight may be None, and each may be
a nested structure of arrays or tensors with the rows on the first axis. A *pass* reads the data once from its start;
it is an epoch unless `steps_per_epoch` cuts epochs of another length (`stream.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import keras

from anyrig.errors import UsageError

Batch = tuple[Any, Any, Any]


class Source(Protocol):
    """Rows in a fixed order that can be entered at any batch of any pass."""

    once: bool  # there is one pass only, which goes on over epochs: a generator
    endless: bool  # a pass has no end
    caution: str | None  # what the user has to see to when a run is carried on

    def batches(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the global batches of pass `number`, from batch number `start` on."""

    def begin_epoch(self, epoch: int) -> None:
        """Tell the data that `epoch` begins."""

    def end_epoch(self) -> bool:
        """Tell the data that the epoch ends; return whether it may have changed, so that nothing read ahead holds."""

    def sample(self) -> Batch:
        """Return a batch, or specifications of one, from which a model can be built."""

    def batches_per_epoch(self) -> int | None:
        """Return how many global batches a pass has; None where only the end will tell, or where there is none."""

    def refuse_random_order(self, number: int, start: int = 0) -> None:
        """Raise UsageError if the order could not be had again later, or cannot be had now from there on."""

    def fingerprint(self) -> dict[str, Any]:
        """Return what identifies the data: JSON, compared when a run is resumed."""


def count_rows(batch: Batch) -> int:
    """Return the number of rows of a batch."""
    return int(next(leaf for leaf in keras.tree.flatten(batch) if leaf is not None).shape[0])


class SizeCheck:
    """Compares the batches of a pass with the global batch that was asked for, if any."""

    def __init__(self, expected: int | None) -> None:
        self._expected = expected
        self._largest = 0

    def see(self, batch: Batch) -> Batch:
        """Return `batch`; raise UsageError if it is too large, or smaller with another one after it."""
        rows, expected = count_rows(batch), self._expected
        if expected is not None and (rows > expected or 0 < self._largest < expected):
            raise UsageError(
                "ANY-DATA-005",
                f"the global batch is {expected} rows, but the data gives batches of "
                + (f"{rows} rows" if rows > expected else f"{self._largest} rows and {rows} rows"),
                hint="leave the batch size out to use the data's own batches, or unbatch() the dataset",
            )
        self._largest = max(self._largest, rows)
        return batch


def no_rows() -> UsageError:
    """Return the error for data without rows."""
    return UsageError("ANY-DATA-003", "the data has no rows", hint="give at least one row")
