"""One pass of evaluation or prediction, with the callbacks Keras calls; `fit` evaluates its validation data with it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import potentially_ragged_concat

from anyrig.data.source import no_rows
from anyrig.data.stream import Stream
from anyrig.train.signals import StopRequest
from anyrig.train.step.engine import Engine

Logs = dict[str, Any]


class ValidationStopped(Exception):
    """A stop was asked for during validation; the epoch's end is repeated when the run goes on."""


def run_test(
    engine: Engine,
    stream: Stream,
    callbacks: keras.callbacks.CallbackList,
    stop: StopRequest | None = None,
) -> Logs:
    """Evaluate one epoch of `stream` and return its logs; end it with ValidationStopped when `stop` is requested."""
    model, index, logs = engine.model, 0, {}
    group = executions(model)
    model.stop_evaluating = False
    callbacks.on_test_begin()
    model.reset_metrics()
    for batches, _ in stream.epoch(stream.number, group=group):
        if stop is not None and stop.requested:
            stream.close()
            raise ValidationStopped
        callbacks.on_test_batch_begin(index)
        for batch in batches:
            logs = engine.test(batch, index)
            index += 1
        callbacks.on_test_batch_end(last_of(index, len(batches), group), logs)
        if model.stop_evaluating:
            break
    if index == 0:
        raise no_rows()
    stream.end_epoch()
    result = plain(logs if engine.plan.divided else model._get_metrics_result_or_logs(logs))
    callbacks.on_test_end(result)
    return result


def run_predict(engine: Engine, stream: Stream, callbacks: keras.callbacks.CallbackList) -> Any:
    """Return the model's outputs for every row of one epoch of `stream`, in order, as NumPy arrays.

    Outputs whose sizes beyond the rows differ between batches come back as ragged tensors, as from Keras.
    """
    model, index = engine.model, 0
    group = executions(model)
    outputs: list[Any] = []
    model.stop_predicting = False
    callbacks.on_predict_begin()
    for batches, _ in stream.epoch(stream.number, group=group):
        callbacks.on_predict_batch_begin(index)
        parts = []
        for batch in batches:
            parts.append(keras.tree.map_structure(lambda t: t.numpy(), engine.predict(batch, index)))
            index += 1
        outputs.append(_joined(parts))
        callbacks.on_predict_batch_end(last_of(index, len(batches), group), {"outputs": outputs[-1]})
        if model.stop_predicting:
            break
    if index == 0:
        raise no_rows()
    stream.end_epoch()
    callbacks.on_predict_end()
    return _joined(outputs)


def executions(model: keras.Model) -> int:
    """Return how many steps are done between two calls of the callbacks: `steps_per_execution` of compile."""
    return max(1, int(getattr(model, "steps_per_execution", None) or 1))


def last_of(done: int, batches: int, group: int) -> int:
    """Return the index that Keras gives callbacks after an execution: it counts a last, smaller one as whole."""
    return done - batches + group - 1


def plain(logs: Logs) -> Logs:
    """Return logs, Keras's and what callbacks added, as Python numbers; several values of a metric as a list."""
    return {name: keras.tree.map_structure(_plain_value, value) for name, value in logs.items()}


def _plain_value(value: Any) -> Any:
    array = value.numpy() if hasattr(value, "numpy") else value
    return array.tolist() if hasattr(array, "tolist") else array


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else keras.tree.map_structure(_concatenated, *parts)


def _concatenated(*parts: Any) -> Any:
    if len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    return potentially_ragged_concat([tf.convert_to_tensor(part) for part in parts])
