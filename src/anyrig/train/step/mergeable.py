"""Which metrics can be put together from micro-batches: those that are sums of parts.

A metric's variables start from zero in each micro-batch, and what they gained is added up. Keras's own metrics do that,
but for the ones named here. A metric of another class is tried on a made-up batch: two halves from zero, added, must
give what one after the other gives.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from anyrig.errors import UsageError
from anyrig.train.step.losses import Share
from anyrig.train.step.microbatch import MicroBatch, Values

_NOT_SUMS = ("PearsonCorrelation", "ConcordanceCorrelation")
_ROWS = 32  # enough that each half has zeros and ones


def refuse_unmergeable(model: keras.Model, micro: MicroBatch, sample: Any) -> None:
    """Raise UsageError for a metric of the built model that virtual replicas cannot merge.

    `sample` is a batch of the model's data, or specifications of one.
    """
    metrics = _all_metrics(model)
    for metric in metrics:
        if type(metric).__name__ in _NOT_SUMS:
            raise _refusal(metric.name, "it is not a sum over rows (Keras averages it batch by batch)")
        for variable in metric.variables:
            if np.any(keras.ops.convert_to_numpy(_after_reset(metric, variable))):
                raise _refusal(metric.name, f"its variable {variable.name!r} does not begin at zero")
    if any(not type(metric).__module__.startswith("keras.") for metric in metrics):
        _try_halves(micro, metrics, keras.tree.map_structure(_made_up, sample))


def _all_metrics(model: keras.Model) -> list[Any]:
    found: list[Any] = []
    for metric in model.metrics:
        found += getattr(metric, "metrics", None) or [metric]
    return [metric for metric in found if metric is not model._loss_tracker]


def _after_reset(metric: Any, variable: keras.Variable) -> Any:
    with keras.StatelessScope() as scope:
        metric.reset_state()
    value = scope.get_current_value(variable)
    return variable if value is None else value


def _try_halves(micro: MicroBatch, metrics: list[Any], batch: Any) -> None:
    share = Share(tf.constant(1.0), tf.constant(1.0))
    values = Values(
        *([tf.convert_to_tensor(v.value) for v in group] for group in (micro.trainable, micro.state, micro.loss_scale))
    )
    keys = tf.zeros((len(micro.seed_states), 2), tf.int64)
    halves = [_rows(batch, 0, _ROWS // 2), _rows(batch, _ROWS // 2, _ROWS)]
    first, second = (micro.test(values, keys, half, share).metrics for half in halves)
    chained = micro.test(values, keys, halves[1], share, metrics=first).metrics
    for variable, a, b, whole in zip(micro.metrics, first, second, chained, strict=True):
        if not np.allclose(a + b, whole, rtol=1e-4, atol=1e-6, equal_nan=True):
            owner = next((m.name for m in metrics if any(v is variable for v in m.variables)), variable.path)
            raise _refusal(owner, "two halves of a batch, added up, give another result than the whole batch")


def _made_up(leaf: Any) -> Any:
    """Return rows of zeros and ones (numbers), valid as features, labels and indices alike."""
    if leaf is None:
        return None
    shape = (_ROWS, *(size or 1 for size in leaf.shape[1:]))
    values = np.random.default_rng(0).integers(0, 2, shape)
    return tf.cast(values, leaf.dtype) if tf.as_dtype(leaf.dtype) != tf.string else tf.fill(shape, "")


def _rows(batch: Any, start: int, stop: int) -> Any:
    return keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[start:stop], batch)


def _refusal(name: str, reason: str) -> UsageError:
    return UsageError(
        "ANY-TRAIN-011",
        f"metric {name!r} cannot be put together from virtual replicas: {reason}",
        hint="leave it out while training and compute it with model.evaluate, or use virtual_replicas=1",
    )
