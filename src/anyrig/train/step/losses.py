"""The loss of the whole global batch, put together from its micro-batches.

Each loss is a sum divided by something, its denominator: rows for a plain mean, valid positions under a mask, weights
for `mean_with_sample_weight`, nothing for a sum. A micro-batch that holds d of the denominator D of the global batch
counts d/D of Keras's value for it, and the sum over micro-batches is Keras's loss for the global batch. Where d is not
the number of rows it is counted before the step, in a pass of its own. A loss whose denominator cannot be known is
refused by name when there is more than one virtual replica, unless it was declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.losses.loss import apply_mask

from anyrig.errors import UsageError

LossRule = Literal["mean", "sum"]

_MEAN = ("sum_over_batch_size", "mean")
_declared: WeakKeyDictionary[Any, LossRule] = WeakKeyDictionary()


class Share(NamedTuple):
    """What part of the global batch a micro-batch is."""

    rows: tf.Tensor  # scalar float64: its rows / all rows
    counts: list[tf.Tensor]  # scalars float64: its part of each compiled loss's denominator; empty: not counted


def share_of(rows: Any, all_rows: Any, counts: Sequence[tf.Tensor], totals: Sequence[tf.Tensor]) -> Share:
    """Return the share of a micro-batch from its rows and counts, and those of the global batch."""
    parts = [tf.math.divide_no_nan(own, total) for own, total in zip(counts, totals, strict=True)]
    return Share(tf.cast(rows, tf.float64) / tf.cast(all_rows, tf.float64), parts)


class CountsNeeded(Exception):
    """A compiled loss has a denominator that is not known from the number of rows; count first and trace again."""


def loss_rule(loss: Any, rule: LossRule) -> None:
    """Declare how a loss that returns one number for all its rows depends on them: their `mean`, or their `sum`.

    `loss` is a loss function or `keras.Loss` given to `compile`; or a layer, whose rule is for what it gives to
    `add_loss`; or a model with its own `compute_loss`, whose rule is for all that returns. What is declared is tried on
    a few rows before training.
    """
    if rule not in ("mean", "sum"):
        raise UsageError("ANY-TRAIN-004", f"loss_rule: unknown rule {rule!r}", hint='use "mean" or "sum"')
    _declared[loss] = rule


def declared_rule(loss: Any) -> LossRule | None:
    """Return what `loss_rule` declared for a loss, or for the function that it calls."""
    return _declared.get(loss) or _declared.get(getattr(loss, "fn", None) or loss)


@contextmanager
def losses_of_share(model: keras.Model, share: Share) -> Iterator[list[tf.Tensor]]:
    """Make every compiled loss count as if rows were its denominator.

    Inside, `model.compute_loss(...) * share.rows` is the micro-batch's part of the loss of the global batch; the list
    gets the value of each compiled loss, which times `share.rows` is its part.
    """
    values: list[tf.Tensor] = []
    rule = declared_rule(model)

    def shared(index: int, loss: Any, *given: Any) -> tf.Tensor:
        counted = share.counts[index] if share.counts else None
        factor = None if rule == "mean" else _from_rows(loss, rule, share.rows, counted, *given)
        value = loss(*given)
        if value.shape.rank != 0:
            raise _unknown_denominator(loss, "is not reduced to one number (reduction=None)")
        values.append(value if factor is None else value * tf.cast(factor, value.dtype))
        return values[-1] if rule is None else value

    if rule is None:
        _scale_added_sums(model, share.rows)
    with _each_compiled_loss(model, shared):
        yield values


def _scale_added_sums(model: keras.Model, rows: tf.Tensor) -> None:
    """Make sums given to `add_loss` count as if rows were their denominator; Keras knows an added loss by its id."""
    added = get_stateless_scope().losses
    for layer in (layer for layer in model._flatten_layers() if declared_rule(layer) == "sum"):
        for index, loss in enumerate(added):
            if id(loss) in layer._loss_ids:
                added[index] = loss / tf.cast(rows, loss.dtype)
                layer._loss_ids.add(id(added[index]))


def part_of_batch(model: keras.Model, loss: tf.Tensor, share: Share) -> tf.Tensor:
    """Return the part that a value of `model.compute_loss` under `losses_of_share` is of the global batch's loss."""
    return loss if declared_rule(model) == "sum" else loss * tf.cast(share.rows, loss.dtype)


def denominators(model: keras.Model, y: Any, y_pred: Any, sample_weight: Any) -> list[tf.Tensor]:
    """Return what each compiled loss divides by for these rows, float64 scalars: exact for any number of positions."""
    counts: list[tf.Tensor] = []

    def count(_index: int, loss: Any, *given: Any) -> tf.Tensor:
        weights = None if declared_rule(loss) else _weights(loss, *given)
        counted = tf.shape(keras.tree.flatten(given[1])[0])[0] if weights is None else weights
        counts.append(tf.reduce_sum(tf.cast(counted, tf.float64)))
        return tf.zeros(())

    with _each_compiled_loss(model, count):
        model._compile_loss(y, y_pred, sample_weight)
    return counts


@contextmanager
def _each_compiled_loss(model: keras.Model, act: Callable[..., tf.Tensor]) -> Iterator[None]:
    """Let `act(index, loss, y_true, y_pred, sample_weight)` stand in place of each compiled loss."""
    compiled = model._compile_loss
    if compiled is None:
        yield
        return
    original = compiled._flat_losses
    compiled._flat_losses = [entry._replace(loss=_Instead(act, i, entry.loss)) for i, entry in enumerate(original)]
    try:
        yield
    finally:
        compiled._flat_losses = original


class _Instead:
    def __init__(self, act: Callable[..., tf.Tensor], index: int, loss: Any) -> None:
        self.act = act
        self.index = index
        self.loss = loss

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        return self.act(self.index, self.loss, y_true, y_pred, sample_weight)


def _from_rows(loss: Any, rule: LossRule | None, rows: Any, counted: Any, *given: Any) -> Any:
    """Return the factor from the part of the denominator that the rows are to the loss's own; None for one."""
    rule = rule or declared_rule(loss)
    if rule == "mean":
        return None
    if rule == "sum":
        return 1 / rows
    weights = _weights(loss, *given)
    if loss.reduction == "sum":
        return 1 / rows
    if weights is None:
        return None
    if counted is None:
        raise CountsNeeded
    return counted / rows


def _weights(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Return what Keras sums up to get the denominator of `loss`, None where that are the rows.

    As in `keras.losses.Loss.__call__`: under a mask a mean divides by the positions that are left, whatever their
    weights; `mean_with_sample_weight` divides by the weights that are left.
    """
    if type(loss).__call__ is not keras.losses.Loss.__call__:
        raise _unknown_denominator(loss, "has its own __call__")
    as_given = keras.tree.map_structure(lambda t: keras.ops.convert_to_tensor(t, dtype=loss.dtype), (y_true, y_pred))
    values = loss.call(*as_given)
    if values.shape.rank == 0:
        raise _unknown_denominator(loss, "returns one number for the whole batch, averaged its own way")
    masks = [tf.cast(t._keras_mask, tf.bool) for t in (y_pred, values) if getattr(t, "_keras_mask", None) is not None]
    mask = reduce(tf.logical_and, masks) if masks else None
    if loss.reduction in _MEAN:
        return mask
    return apply_mask(sample_weight, mask, dtype=tf.float32, reduction=loss.reduction)


def _unknown_denominator(loss: Any, reason: str) -> UsageError:
    return UsageError(
        "ANY-TRAIN-003",
        f"loss {loss.name!r} cannot be divided over virtual replicas: it {reason}",
        hint="return one value per row from the loss; or, for one number, declare it: anyrig.loss_rule(loss, 'mean'), "
        "or 'sum'; or train with virtual_replicas=1",
    )
