"""A user's `tf.data.Dataset` as it is: its own order, its own batches, entered again by position.

Carrying a run on skips the batches already consumed, so the dataset must give the same elements each time. A seeded
shuffle does, but it changes its order with each iterator that is made of it; so the iterators of earlier epochs are
made (and not read) before the one that is wanted. A shuffle without a seed cannot be entered again and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from anyrig.data.source import Batch, SizeCheck
from anyrig.errors import UsageError

_iterators_made: WeakKeyDictionary[tf.data.Dataset, int] = WeakKeyDictionary()


class DatasetSource:
    """Batches of a `tf.data.Dataset` whose elements are x, (x, y) or (x, y, sample_weight)."""

    once = False
    caution: str | None = None

    def __init__(self, dataset: tf.data.Dataset, *, batch: int | None, batched: bool) -> None:
        """`batch`: the global batch asked for, if any; `batched`: whether the elements are batches already."""
        self.original = dataset
        self.dataset = dataset if batched or batch is None else dataset.batch(batch)
        self.expected_rows = batch
        self.endless = int(self.dataset.cardinality()) == tf.data.INFINITE_CARDINALITY

    def sample(self) -> Batch:
        """Return the element specification, from which a model can be built; nothing is read."""
        for spec in keras.tree.flatten(self.dataset.element_spec):
            if not isinstance(spec, tf.TensorSpec):
                raise UsageError(
                    "ANY-DATA-010",
                    f"the dataset has elements of type {type(spec).__name__}, which are not rows of one shape",
                    hint="make them dense: tf.sparse.to_dense, or .to_tensor() of a ragged tensor, in a map",
                )
        batch: Batch = keras.utils.unpack_x_y_sample_weight(self.dataset.element_spec)
        return batch

    def batches(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of pass `number` over the dataset, without the first `start`."""
        self._make_iterators(number)
        check = SizeCheck(self.expected_rows)
        for element in self.dataset.skip(start) if start else self.dataset:
            yield check.see(keras.utils.unpack_x_y_sample_weight(element))

    def begin_epoch(self, epoch: int) -> None:
        """Do nothing."""

    def end_epoch(self) -> bool:
        """Do nothing."""
        return False

    def batches_per_epoch(self) -> int | None:
        """Return the dataset's own count, None if it does not know it or never ends."""
        count = int(self.dataset.cardinality())
        return None if count < 0 else count

    def fingerprint(self) -> dict[str, Any]:
        """Return element specification and count; the elements themselves are not read."""
        return {"element_spec": repr(self.dataset.element_spec), "batches": self.batches_per_epoch()}

    def refuse_random_order(self, number: int, start: int = 0) -> None:
        """Raise UsageError if the dataset shuffles without a seed, or if its order of pass `number` is already past."""
        shuffles = list(_shuffles(self.original))
        if any(int(shuffle._seed) == 0 and int(shuffle._seed2) == 0 for shuffle in shuffles):
            raise UsageError(
                "ANY-DATA-008",
                "the dataset shuffles without a seed, and a run with checkpoints could not be carried on in that order",
                hint="give the seed: dataset.shuffle(buffer_size, seed=0)",
            )
        made = _iterators_made.get(self.original, 0)
        if made > number and any(shuffle._reshuffle_each_iteration is not False for shuffle in shuffles):
            raise UsageError(
                "ANY-DATA-009",
                f"the dataset was iterated {made} times in this process: its order of epoch {number} is gone",
                hint="create the dataset anew (also for validation), or shuffle with reshuffle_each_iteration=False",
            )

    def _make_iterators(self, number: int) -> None:
        """Bring the dataset's shuffles to where they are when pass `number` begins."""
        made = _iterators_made.get(self.original, 0)
        for _ in range(made, number):
            passed = iter(self.dataset)
            if _is_branched(self.original) and not self.endless:  # inner shuffles only start as the elements are read
                for _element in passed:
                    pass
        _iterators_made[self.original] = max(made, number) + 1


def refuse_shared_order(training: Any, validation: Any) -> None:
    """Raise UsageError if two datasets are made from one that shuffles anew each time it is iterated.

    Passes over the one would move the order of the other, by how many depends on where a run was carried on.
    """
    if not (is_dataset(training) and is_dataset(validation)):
        return
    of_training = {id(shuffle) for shuffle in _shuffles(training) if shuffle._reshuffle_each_iteration is not False}
    if of_training & {id(shuffle) for shuffle in _shuffles(validation)}:
        raise UsageError(
            "ANY-DATA-009",
            "training and validation data are made from one shuffled dataset: each pass over the one changes the order "
            "of the other, and a run with checkpoints could not be carried on in that order",
            hint="split first, then shuffle the training part; or shuffle with reshuffle_each_iteration=False",
        )


def is_dataset(data: Any) -> bool:
    """Tell whether `data` is a `tf.data.Dataset`."""
    return isinstance(data, tf.data.Dataset)


def _is_branched(dataset: Any) -> bool:
    """Tell whether a part of the dataset is iterated more than once, or after another, in one pass."""
    upstream = dataset._inputs()
    return "Repeat" in type(dataset).__name__ or len(upstream) > 1 or any(map(_is_branched, upstream))


def _shuffles(dataset: Any) -> Iterator[Any]:
    """Yield the shuffles in a dataset's chain of transformations (not those inside mapped functions)."""
    if type(dataset).__name__ == "_ShuffleDataset":
        yield dataset
    for upstream in dataset._inputs():
        yield from _shuffles(upstream)
