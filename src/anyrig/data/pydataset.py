"""A `keras.utils.PyDataset` as a source: its batches by index, the order of indices from (seed, pass).

Its `on_epoch_begin` and `on_epoch_end` are called as Keras calls them, and once for each earlier epoch when a run is
carried on, so a dataset that reorders itself there is where it would be if its own random numbers repeat. Workers
(threads or processes) are Keras's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import keras
from keras.src.trainers.data_adapters.py_dataset_adapter import OrderedEnqueuer

from anyrig.data.iterables import describe_first, standard
from anyrig.data.order import EpochOrder
from anyrig.data.source import Batch, SizeCheck, no_rows
from anyrig.errors import UsageError

_epochs_begun: WeakKeyDictionary[keras.utils.PyDataset, int] = WeakKeyDictionary()


class PyDatasetSource:
    """The batches of a `PyDataset`, of any number of rows each; `shuffle` changes their order, as in Keras."""

    once = False
    caution: str | None = None

    def __init__(
        self, dataset: keras.utils.PyDataset, *, size: int | None = None, shuffle: bool = True, seed: int = 0
    ) -> None:
        self.dataset = dataset
        self.size = size
        self.shuffle = bool(shuffle)
        self.seed = seed
        self.endless = dataset.num_batches is None
        self._sample: Batch | None = None
        self._begun: int | None = None

    def batches(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of pass `number` from `start` on, made by the dataset's workers if it has several."""
        workers = self.dataset.workers > 1 or (self.dataset.workers > 0 and self.dataset.use_multiprocessing)
        check = SizeCheck(self.size)
        for element in (self._by_workers if workers else self._one_by_one)(number, start):
            yield check.see(standard(element))

    def begin_epoch(self, epoch: int) -> None:
        """Call the dataset's hooks for earlier epochs that it has not seen, and for the beginning of this one."""
        if self._begun is None:
            self.dataset.on_epoch_end()  # Keras, too, calls it once before the first epoch
        for _ in range(_epochs_begun.get(self.dataset, 0), epoch):
            self.dataset.on_epoch_begin()
            self.dataset.on_epoch_end()
        self.dataset.on_epoch_begin()
        self._begun = epoch
        _epochs_begun[self.dataset] = max(epoch + 1, _epochs_begun.get(self.dataset, 0))

    def end_epoch(self) -> bool:
        """Call the dataset's hook, in which it may reorder itself."""
        if self._begun is not None:
            self.dataset.on_epoch_end()
        return True

    def batches_per_epoch(self) -> int | None:
        """Return the dataset's number of batches, None if it is endless."""
        return None if self.endless else int(self.dataset.num_batches)

    def sample(self) -> Batch:
        """Return the batch of index 0."""
        if self._sample is None:
            if self.dataset.num_batches == 0:
                raise no_rows()
            self._sample = standard(self.dataset[0])
        return self._sample

    def refuse_random_order(self, number: int, start: int = 0) -> None:
        """Raise UsageError if the dataset has hooks of its own and was already past pass `number` in this process."""
        begun = _epochs_begun.get(self.dataset, 0)
        hooks = ("on_epoch_begin", "on_epoch_end")
        own = any(getattr(type(self.dataset), hook) is not getattr(keras.utils.PyDataset, hook) for hook in hooks)
        if own and begun > number:
            raise UsageError(
                "ANY-DATA-009",
                f"the dataset was iterated {begun} times in this process: its order of epoch {number} is gone",
                hint="create the dataset anew (also for validation)",
            )

    def fingerprint(self) -> dict[str, Any]:
        """Return the number of batches, and shapes, dtypes and a hash of the batch of index 0."""
        return {"batches": self.batches_per_epoch(), **describe_first(self.sample())}

    def _order(self, number: int, start: int) -> Iterator[int]:
        batches = self.batches_per_epoch()
        if batches is None:
            return count(start)
        return iter(EpochOrder(batches, self.seed, number, self.shuffle).take(start, batches).tolist())

    def _one_by_one(self, number: int, start: int) -> Iterator[Any]:
        return (self.dataset[index] for index in self._order(number, start))

    def _by_workers(self, number: int, start: int) -> Iterator[Any]:
        ordered = _InOrder(self.dataset, list(self._order(number, start)) if not self.endless else None, start)
        if ordered.num_batches == 0:
            return
        workers, many = self.dataset.workers, self.dataset.use_multiprocessing
        enqueuer = OrderedEnqueuer(ordered, workers, many, self.dataset.max_queue_size)
        enqueuer.start()
        try:
            for given, element in enumerate(enqueuer.get(), start=1):
                yield element
                if given == ordered.num_batches:
                    return
        finally:
            enqueuer.stop()


class _InOrder(keras.utils.PyDataset):
    """A `PyDataset` in another order, or without its first batches, for Keras's workers."""

    def __init__(self, dataset: keras.utils.PyDataset, order: list[int] | None, start: int) -> None:
        super().__init__()
        self.dataset = dataset
        self.order = order
        self.start = start

    @property
    def num_batches(self) -> int | None:
        """How many are in the order; None for an endless dataset."""
        return None if self.order is None else len(self.order)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[self.start + index if self.order is None else self.order[index]]
