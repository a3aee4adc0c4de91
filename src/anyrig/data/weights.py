"""Weights of rows: sample weights as they were given, checked; class weights turned into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from anyrig.data.source import Batch, Source
from anyrig.errors import UsageError


class WeightedSource:
    """Another source with a sample weight for each row: the weight of the row's class, 1 for a class without one."""

    def __init__(self, source: Source, class_weight: Mapping[int, float]) -> None:
        self._source = source
        _refuse_other_keys(class_weight)
        self._class_weight = dict(class_weight)
        self.once = source.once
        self.endless = source.endless
        self.caution = source.caution
        self.begin_epoch = source.begin_epoch
        self.end_epoch = source.end_epoch
        self.batches_per_epoch = source.batches_per_epoch
        self.refuse_random_order = source.refuse_random_order
        self.fingerprint = source.fingerprint

    def batches(self, number: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of the source with weights."""
        for x, y, sample_weight in self._source.batches(number, start):
            _refuse_class_weight(y, sample_weight)
            yield x, y, class_weights(y, self._class_weight)

    def sample(self) -> Batch:
        """Return the source's sample with weights, or with their specification."""
        x, y, sample_weight = self._source.sample()
        _refuse_class_weight(y, sample_weight)
        if isinstance(y, tf.TensorSpec):
            return x, y, tf.TensorSpec(y.shape[:1], keras.config.floatx())
        return x, y, class_weights(y, self._class_weight)


def class_weights(y: Any, class_weight: Mapping[int, float]) -> np.ndarray[Any, Any]:
    """Return floatx of shape (rows,): the weight of each row's class, which is read from `y` as Keras reads it.

    `y` has shape (rows,) or (rows, 1) with the class, or (rows, ..., classes) with the largest at the class.
    """
    labels = np.asarray(y)
    if labels.ndim > 1:
        labels = labels.squeeze(-1) if labels.shape[-1] == 1 else labels.argmax(-1)
    classes, places = np.unique(np.round(labels).astype("int32"), return_inverse=True)
    weights = np.array([class_weight.get(int(c), 1.0) for c in classes], keras.config.floatx())
    return weights[places].reshape(labels.shape)


def check_sample_weight(y: Any, sample_weight: Any) -> None:
    """Raise UsageError if there are several outputs and the weights are not one number a row, or one array each."""
    if sample_weight is None or not keras.tree.is_nested(y):
        return
    if keras.tree.is_nested(sample_weight):
        try:
            keras.tree.assert_same_structure(y, sample_weight)
        except (ValueError, TypeError) as error:
            raise UsageError(
                "ANY-DATA-016",
                f"sample_weight and y do not have the same structure: {error}",
                hint="give one array of weights for each output in y, or one array for all",
            ) from error
    elif len(sample_weight.shape) != 1 and tuple(sample_weight.shape[1:]) != (1,):
        raise UsageError(
            "ANY-DATA-016",
            f"y has several outputs and sample_weight is one array of shape {tuple(sample_weight.shape)}",
            hint="give one number a row, or one array of weights for each output in y",
        )


def _refuse_other_keys(class_weight: Mapping[Any, float]) -> None:
    wrong = [key for key in class_weight if not isinstance(key, Real) or float(key) % 1]
    if wrong:
        raise UsageError(
            "ANY-DATA-015",
            f"class_weight cannot be used: {wrong[0]!r} is not the number of a class",
            hint="give whole numbers as keys: {int(key): weight for key, weight in class_weight.items()}",
        )


def _refuse_class_weight(y: Any, sample_weight: Any) -> None:
    problem = None
    if sample_weight is not None:
        problem = "sample_weight is given too"
    elif y is None:
        problem = "there is no y to read classes from"
    elif keras.tree.is_nested(y):
        problem = "y has several outputs"
    if problem:
        raise UsageError(
            "ANY-DATA-015",
            f"class_weight cannot be used: {problem}",
            hint="give sample_weight: one number a row, or one array for each output",
        )
