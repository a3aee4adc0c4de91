"""Whether a model's loss and metrics can be put together from micro-batches: those that are sums over rows.

Some classes are known not to be, and are refused by name. All others are tried on a few rows, without training: what
two unequal parts give, added up, must be what the whole gives. That finds a loss that compares rows with each other, an
added loss that is a sum, a metric that is a maximum or a mean of batches.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from anyrig.errors import AnyrigError, UsageError
from anyrig.train.step.losses import CountsNeeded, share_of
from anyrig.train.step.microbatch import MicroBatch, Parts, Values
from anyrig.train.step.purity import refuse_impure

_METRICS = ("PearsonCorrelation", "ConcordanceCorrelation")
_LOSSES = ("Circle",)
_ROWS = 32
_TOLERANCE = 1e-3


def refuse_unmergeable(model: keras.Model, micro: MicroBatch, sample: Any) -> None:
    """Raise UsageError for a loss or metric of the built model that virtual replicas cannot put together.

    `sample` is a batch of the model's data, or specifications of one: then rows are made up.
    """
    metrics = _all_metrics(model)
    for metric in metrics:
        if type(metric).__name__ in _METRICS:
            raise _refused_metric(metric.name, "it is not a sum over rows (Keras averages it batch by batch)")
        for variable in metric.variables:
            if np.any(keras.ops.convert_to_numpy(_after_reset(metric, variable))):
                raise _refused_metric(metric.name, f"its variable {variable.name!r} does not begin at zero")
    for entry in model._compile_loss._flat_losses if model._compile_loss is not None else ():
        if type(entry.loss).__name__ in _LOSSES:
            raise _refused_loss(f"loss {entry.loss.name!r} compares the rows of a batch with each other")
    _try_parts(micro, metrics, keras.tree.map_structure(_rows_of, sample))


def _all_metrics(model: keras.Model) -> list[Any]:
    own = {id(metric) for metric in model._compile_loss.metrics} if model._compile_loss is not None else set()
    found: list[Any] = []
    for metric in model.metrics:
        found += getattr(metric, "metrics", None) or [metric]
    return [metric for metric in found if metric is not model._loss_tracker and id(metric) not in own]


def _after_reset(metric: Any, variable: keras.Variable) -> Any:
    with keras.StatelessScope() as scope:
        metric.reset_state()
    value = scope.get_current_value(variable)
    return variable if value is None else value


def _try_parts(micro: MicroBatch, metrics: list[Any], batch: Any) -> None:
    rows = int(keras.tree.flatten(batch)[0].shape[0])
    if rows < 2:
        return
    cut = max(1, rows // 3)

    @tf.function(autograph=False)
    def tried() -> list[Parts]:
        parts = _tested(micro, batch, [(0, rows)]) + _tested(micro, batch, [(0, cut), (cut, rows)])
        refuse_impure(tf.compat.v1.get_default_graph())
        return parts

    try:
        whole, first, second = _traced(tried, micro)()
    except AnyrigError:
        raise
    except Exception:  # noqa: BLE001 - rows that were made up need not suit the model; its real ones are traced next
        return
    if micro.random_without_training:
        return
    if not _equal(whole.loss, first.loss + second.loss):
        raise _refused_loss(
            f"the loss of the whole batch ({float(whole.loss):.6g}) is not what its rows give when it is divided "
            f"({float(first.loss + second.loss):.6g})"
        )
    for variable, all_rows, a, b in zip(micro.metrics, whole.metrics, first.metrics, second.metrics, strict=True):
        if not _equal(all_rows, a + b):
            owner = next((m.name for m in metrics if any(v is variable for v in m.variables)), variable.path)
            raise _refused_metric(owner, "two parts of a batch, added up, give another result than the whole batch")


def _traced(function: Any, micro: MicroBatch) -> Any:
    try:
        return function.get_concrete_function()
    except CountsNeeded:
        micro.counts_first = True
        return function.get_concrete_function()


def _tested(micro: MicroBatch, batch: Any, ranges: list[tuple[int, int]]) -> list[Parts]:
    """Return what `micro.test` gives for each range of rows, the ranges together being the batch."""
    groups = (micro.trainable, micro.state, micro.loss_scale, micro.metrics)
    values = Values(*([tf.convert_to_tensor(v.value) for v in group] for group in groups))
    keys = tf.zeros((len(micro.seed_states), 2), tf.int64)
    slices = [_rows_between(batch, start, stop) for start, stop in ranges]
    counts = [micro.count(values, keys, rows, training=False) if micro.counts_first else [] for rows in slices]
    totals = [sum(parts) for parts in zip(*counts, strict=True)]
    return [
        micro.test(values, keys, rows, share_of(stop - start, ranges[-1][1], own, totals))
        for (start, stop), rows, own in zip(ranges, slices, counts, strict=True)
    ]


def _rows_between(batch: Any, start: int, stop: int) -> Any:
    return keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[start:stop], batch)


def _equal(one: Any, other: Any) -> bool:
    a, b = (np.asarray(keras.ops.convert_to_numpy(value), dtype=np.float64) for value in (one, other))
    return bool(np.allclose(a, b, rtol=_TOLERANCE, atol=1e-6, equal_nan=True))


def _rows_of(leaf: Any) -> Any:
    """Return up to 32 rows: of the data, or made up of zeros and ones, which can be features, labels and indices."""
    if leaf is None or not isinstance(leaf, tf.TensorSpec):
        return None if leaf is None else tf.convert_to_tensor(leaf[:_ROWS])
    shape = (_ROWS, *(size or 1 for size in leaf.shape[1:]))
    if leaf.dtype == tf.string:
        return tf.fill(shape, "")
    return tf.cast(np.random.default_rng(0).integers(0, 2, shape), leaf.dtype)


def _refused_loss(what: str) -> UsageError:
    return UsageError(
        "ANY-TRAIN-015",
        f"{what}, so virtual replicas cannot put it together",
        hint="make it a mean over rows, also what is given to add_loss; or declare a sum: "
        "anyrig.loss_rule(layer or loss, 'sum'); or use virtual_replicas=1",
    )


def _refused_metric(name: str, reason: str) -> UsageError:
    return UsageError(
        "ANY-TRAIN-011",
        f"metric {name!r} cannot be put together from virtual replicas: {reason}",
        hint="leave it out while training and compute it with model.evaluate, or use virtual_replicas=1",
    )
