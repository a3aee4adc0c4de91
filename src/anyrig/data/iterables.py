"""Python generators, iterators, and objects that can be iterated again (a torch DataLoader) as sources of batches.

A position in them is reached by reading and dropping what was consumed, so they are trusted to give the same batches
each time; the first batch is compared when a run is resumed. A generator cannot be started again by us: whoever carries
a run on gives a fresh one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any
from weakref import WeakKeyDictionary

import keras
import numpy as np
import tensorflow as tf

from anyrig.data.arrays import for_tensorflow, hash_arrays, refuse_irregular
from anyrig.data.source import Batch, SizeCheck, Source, no_rows
from anyrig.errors import UsageError


class _Tape:
    """How many batches an iterator has given, and those that were looked at and not yet used."""

    def __init__(self) -> None:
        self.taken = 0
        self.seen: list[Any] = []


_tapes: WeakKeyDictionary[Any, _Tape] = WeakKeyDictionary()


class IterableSource:
    """Batches that a Python iterable gives: x, (x, y) or (x, y, sample_weight), of any number of rows each."""

    endless = False

    def __init__(self, iterable: Iterable[Any], *, size: int | None = None) -> None:
        self.iterable = iterable
        self.once = isinstance(iterable, Iterator)
        self.size = size
        self.caution: str | None = None
        self._tape = _tape_of(iterable)
        self._begun_at = self._tape.taken
        self._sample: Batch | None = None
        if self.once:
            self.caution = (
                "the data is a generator: to carry this run on, give a fresh one that yields the same batches; those "
                "already consumed are read and dropped"
            )

    def batches(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches after the first `start`; a generator goes on where it is, and cannot go back."""
        given = self._tape.taken - self._begun_at
        if given > start:
            raise self._not_fresh(start)
        check = SizeCheck(self.size)
        for element in islice(self._elements() if self.once else self.iterable, start - given, None):
            yield check.see(standard(element))

    def begin_epoch(self, epoch: int) -> None:
        """Do nothing."""

    def end_epoch(self) -> bool:
        """Do nothing."""
        return False

    def batches_per_epoch(self) -> int | None:
        """Return the length of an iterable that has one."""
        length = getattr(self.iterable, "__len__", None)
        return None if self.once or length is None else int(length())

    def sample(self) -> Batch:
        """Return the first batch, which is not used up by that."""
        if self._sample is None:
            if not self._tape.seen:
                self._tape.seen += islice(self.iterable, 1)
            if not self._tape.seen:
                raise no_rows()
            self._sample = standard(self._tape.seen[0])
        return self._sample

    def refuse_random_order(self, number: int, start: int = 0) -> None:
        """Raise UsageError if a generator has already given batches: it could not be entered again there."""
        if self.once and self._tape.taken:
            raise self._not_fresh(start)

    def fingerprint(self) -> dict[str, Any]:
        """Return shapes, dtypes and a hash of the first batch."""
        return describe_first(self.sample())

    def _elements(self) -> Iterator[Any]:
        looked_at, self._tape.seen = self._tape.seen, []
        for element in chain(looked_at, self.iterable):
            self._tape.taken += 1
            yield element

    def _not_fresh(self, start: int) -> UsageError:
        return UsageError(
            "ANY-DATA-014",
            f"the generator has already given {self._tape.taken} batches, and the run begins after {start}",
            hint="give a fresh generator, one that was not read before",
        )


def hold(source: Source, steps: int | None) -> IterableSource:
    """Return the batches of `source`, read once and kept in memory, as a source that can be read again."""
    return IterableSource(list(islice(source.batches(0), steps)))


def is_iterable(data: Any) -> bool:
    """Tell whether `data` yields batches when it is iterated: no array, and no structure of arrays."""
    return isinstance(data, Iterable) and not isinstance(data, str | bytes | list | tuple | dict | set | frozenset)


def standard(element: Any) -> Batch:
    """Return what a user's object gave as (x, y, sample_weight), arrays or tensors for leaves."""
    batch: Batch = keras.utils.unpack_x_y_sample_weight(element)
    return keras.tree.map_structure(lambda leaf: None if leaf is None else _leaf(leaf), batch)


def describe_first(batch: Batch) -> dict[str, Any]:
    """Return shapes, dtypes and a hash of a batch, as JSON."""
    arrays = [np.asarray(leaf) for leaf in keras.tree.flatten(batch) if leaf is not None]
    return {"first": [[str(a.dtype), list(a.shape)] for a in arrays], "hash": hash_arrays(arrays)}


def _leaf(leaf: Any) -> Any:
    refuse_irregular(leaf)
    if isinstance(leaf, tf.Tensor):
        return leaf
    array = np.asarray(leaf.detach().cpu() if hasattr(leaf, "detach") else leaf)
    if array.ndim == 0:
        raise UsageError(
            "ANY-DATA-001",
            f"a batch holds the single value {array.item()!r} where rows are expected",
            hint="yield (x, y) with the rows on the first axis of each array",
        )
    return for_tensorflow(array)


def _tape_of(iterable: Any) -> _Tape:
    """Return the tape of an iterator, the same for every source made of it where it can be kept."""
    if not isinstance(iterable, Iterator):
        return _Tape()
    try:
        return _tapes.setdefault(iterable, _Tape())
    except TypeError:  # zip, map and others cannot be referred to weakly
        return _Tape()
