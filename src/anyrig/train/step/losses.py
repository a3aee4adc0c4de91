"""The loss of the whole global batch, put together from its micro-batches.

Keras averages a loss over the rows it is given. A micro-batch with r of the R rows therefore counts r/R, and the sum
over micro-batches is Keras's loss for the global batch. Losses with another denominator are corrected here, one by
one; a loss whose denominator cannot be known is refused by name when there is more than one virtual replica.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from anyrig.errors import UsageError

_MEAN = ("sum_over_batch_size", "mean")


class Share(NamedTuple):
    """What part of the global batch a micro-batch is: its rows / all rows, and the sum of all sample weights."""

    rows: tf.Tensor  # scalar float32
    total_weight: tf.Tensor  # scalar float32


@contextmanager
def losses_of_share(model: keras.Model, share: Share) -> Iterator[list[tf.Tensor]]:
    """Make every compiled loss that is not a mean over rows count as if rows were its denominator.

    Inside, `model.compute_loss(...) * share.rows` is the micro-batch's part of the loss of the global batch; the list
    gets the value of each compiled loss, which times `share.rows` is its part.
    """
    values: list[tf.Tensor] = []
    compiled = model._compile_loss
    if compiled is None:
        yield values
        return
    original = compiled._flat_losses
    compiled._flat_losses = [entry._replace(loss=_SharedLoss(entry.loss, share, values)) for entry in original]
    try:
        yield values
    finally:
        compiled._flat_losses = original


class _SharedLoss:
    """A compiled loss whose value is scaled from its own denominator to rows."""

    def __init__(self, loss: keras.losses.Loss, share: Share, values: list[tf.Tensor]) -> None:
        self.loss = loss
        self.share = share
        self.values = values

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        self._refuse_unknown_denominator(y_true, y_pred)
        self.values.append(self._value(y_true, y_pred, sample_weight))
        return self.values[-1]

    def _value(self, y_true: Any, y_pred: Any, sample_weight: Any) -> tf.Tensor:
        value = self.loss(y_true, y_pred, sample_weight)
        reduction = self.loss.reduction
        if reduction in _MEAN or (reduction == "mean_with_sample_weight" and sample_weight is None):
            return value
        if reduction == "sum":
            return value / tf.cast(self.share.rows, value.dtype)
        if keras.tree.is_nested(sample_weight):
            raise _unknown_denominator(self.loss, "has one sample_weight for each output")
        weight = tf.math.divide_no_nan(tf.reduce_sum(tf.cast(sample_weight, tf.float32)), self.share.total_weight)
        return value * tf.cast(weight / self.share.rows, value.dtype)

    def _refuse_unknown_denominator(self, y_true: Any, y_pred: Any) -> None:
        if type(self.loss).__call__ is not keras.losses.Loss.__call__:
            raise _unknown_denominator(self.loss, "has its own __call__")
        if self.loss.reduction in (None, "none"):
            raise _unknown_denominator(self.loss, "is not reduced to one number (reduction=None)")
        values = self.loss.call(*(keras.ops.convert_to_tensor(t, dtype=self.loss.dtype) for t in (y_true, y_pred)))
        if any(getattr(leaf, "_keras_mask", None) is not None for leaf in [values, *keras.tree.flatten(y_pred)]):
            raise _unknown_denominator(self.loss, "is averaged over the positions that a mask leaves")
        if values.shape.rank == 0:
            raise _unknown_denominator(self.loss, "returns one number for the whole batch, averaged its own way")


def _unknown_denominator(loss: Any, reason: str) -> UsageError:
    return UsageError(
        "ANY-TRAIN-003",
        f"loss {loss.name!r} cannot be divided over virtual replicas: it {reason}",
        hint="return one value per row from the loss, or train with virtual_replicas=1",
    )
