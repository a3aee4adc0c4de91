"""What turns the data arguments of fit, evaluate and predict into a source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from anyrig.data.arrays import ArraySource, is_array_like, refuse_irregular
from anyrig.data.dataset import DatasetSource, is_dataset
from anyrig.data.iterables import IterableSource, is_iterable
from anyrig.data.pydataset import PyDatasetSource
from anyrig.data.source import Source
from anyrig.data.weights import WeightedSource, check_sample_weight
from anyrig.errors import UsageError

KERAS_BATCH_SIZE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How data is read. `global_size`: rows of a batch (None: the data's own, or Keras's default for arrays).

    `input_rank` is the rank of the model's first input, which tells whether a dataset is batched; `steps` the batches
    of an epoch, from which Keras takes the batch size of arrays if none is given.
    """

    global_size: int | None = None
    steps: int | None = None
    shuffle: bool | str = False
    seed: int = 0
    class_weight: Mapping[int, float] | None = None
    input_rank: int | None = None


def open_source(x: Any, y: Any, sample_weight: Any, reading: Reading) -> Source:
    """Return the source for the data of one call; raises UsageError by name for what cannot be used."""
    source = _open(x, y, sample_weight, reading)
    return source if reading.class_weight is None else WeightedSource(source, reading.class_weight)


def default_size(x: Any, steps: int | None) -> int | None:
    """Return the global batch that arrays get if none is asked for, as in Keras; None for data in batches."""
    if not is_array_like(x):
        return None
    leaf = next(leaf for leaf in keras.tree.flatten(x) if leaf is not None)
    return max(1, -(-int(leaf.shape[0]) // steps)) if steps and leaf.shape else KERAS_BATCH_SIZE


def _open(x: Any, y: Any, sample_weight: Any, reading: Reading) -> Source:
    for leaf in keras.tree.flatten((x, y, sample_weight)):
        refuse_irregular(leaf)
    size = reading.global_size
    if is_array_like(x):
        check_sample_weight(y, sample_weight)
        rows = size or default_size(x, reading.steps) or KERAS_BATCH_SIZE
        return ArraySource(x, y, sample_weight, global_size=rows, shuffle=reading.shuffle, seed=reading.seed)
    if not (is_dataset(x) or is_iterable(x)):
        raise UsageError(
            "ANY-DATA-007",
            f"data of type {type(x).__name__} cannot be used",
            hint="give arrays (or lists, dicts of arrays), a tf.data.Dataset, a keras.utils.PyDataset or a generator",
        )
    if y is not None or sample_weight is not None:
        raise UsageError(
            "ANY-DATA-006",
            f"x is a {type(x).__name__}, and {'y' if y is not None else 'sample_weight'} is given too",
            hint="let x yield (x, y, sample_weight)",
        )
    if is_dataset(x):
        return DatasetSource(x, batch=size, batched=_is_batched(x, reading.input_rank))
    if isinstance(x, keras.utils.PyDataset):
        return PyDatasetSource(x, size=size, shuffle=bool(reading.shuffle), seed=reading.seed)
    return IterableSource(x, size=size)


def _is_batched(dataset: Any, input_rank: int | None) -> bool:
    """Tell whether the elements of a dataset have a rows axis, from the rank of the model's first input if known."""
    spec = keras.tree.flatten(dataset.element_spec)[0]
    return input_rank is None or spec.shape.rank is None or spec.shape.rank >= input_rank
