"""What the training loop asks of data, whatever it comes from.

A batch is always the triple (x, y, sample_weight) of one global batch; y and sample_weight may be None, and each may be
a nested structure of arrays or tensors with the rows on the first axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

Batch = tuple[Any, Any, Any]


class Source(Protocol):
    """Rows in a fixed order that can be entered at any batch of any epoch."""

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the global batches of `epoch`, from batch number `start` on."""

    def sample(self) -> Batch:
        """Return a batch, or specifications of one, from which a model can be built."""

    def batches_per_epoch(self) -> int | None:
        """Return how many global batches an epoch has; None where only the end will tell."""

    def refuse_random_order(self, epoch: int) -> None:
        """Raise UsageError if the order could not be had again later, or cannot be had now from `epoch` on."""

    def fingerprint(self) -> dict[str, Any]:
        """Return what identifies the data: JSON, compared when a run is resumed."""
