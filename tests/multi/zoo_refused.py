"""Cases that are refused by name at V > 1, because what they compute for a batch is not what its rows give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from tests.multi.zoo import CASES, Case, Entry, arrays, compiled, floats, stack

_FIT = arrays(floats(4), floats(1, seed=2))


def _add(name: str, title: str, code: str, build: Callable[[], keras.Model], fit: Any = _FIT) -> None:
    CASES[name] = Entry("Refused by name", title, lambda: Case(build, fit), refused=code)


def _model(*middle: keras.layers.Layer, **others: Any) -> keras.Model:
    return compiled(stack((4,), layers.Dense(5), *middle, layers.Dense(1)), **others)


def _whole_batch(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.square(y_true - y_pred))


def _with_mean(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.square(y_true - keras.ops.mean(y_pred, axis=0))


class OwnComputeLoss(keras.Model):
    """A model that computes its loss itself."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *_: Any, **__: Any) -> Any:
        """Return a mean over the batch."""
        return keras.ops.mean(keras.ops.abs(y - y_pred))


def _own_compute_loss() -> keras.Model:
    inputs = keras.Input((4,))
    return compiled(OwnComputeLoss(inputs, layers.Dense(1)(inputs)))


class SumAdded(layers.Layer):
    """Adds a sum over the rows as a loss."""

    def call(self, inputs: Any) -> Any:
        """Return the inputs."""
        self.add_loss(0.01 * keras.ops.sum(keras.ops.square(inputs)))
        return inputs


class UndeclaredMean(layers.Layer):
    """Keeps a running mean whose merging is not declared."""

    def build(self, _: Any) -> None:
        """Make the state."""
        self.average = self.add_weight(shape=(), initializer="zeros", trainable=False, name="average")

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Return the inputs without their running mean."""
        if training:
            self.average.assign(0.9 * self.average + 0.1 * keras.ops.mean(inputs))
        return inputs - self.average


class TensorFlowNoise(layers.Layer):
    """Draws from TensorFlow's own generator."""

    def call(self, inputs: Any) -> Any:
        """Return the inputs with noise."""
        import tensorflow as tf

        return inputs + tf.random.normal(tf.shape(inputs))


class CallsPython(layers.Layer):
    """Calls Python in the graph."""

    def call(self, inputs: Any) -> Any:
        """Return the inputs."""
        import tensorflow as tf

        return tf.ensure_shape(tf.numpy_function(lambda x: x, [inputs], tf.float32), inputs.shape)


def _stateful() -> keras.Model:
    inputs = keras.Input(batch_shape=(17, 3, 2))
    return compiled(keras.Model(inputs, layers.Dense(1)(layers.GRU(3, stateful=True)(inputs))))


def _steps() -> dict[str, Any]:
    return {"x": floats(3, 2), "y": floats(1, seed=2), "batch_size": 17}


norm, correlation = layers.BatchNormalization, keras.metrics.PearsonCorrelation
_add("stateful_rnn", "A stateful RNN", "ANY-TRAIN-005", _stateful, _steps)
_add("synchronized", "BatchNormalization, synchronized", "ANY-TRAIN-010", lambda: _model(norm(synchronized=True)))
_add("correlation", "PearsonCorrelation as a metric", "ANY-TRAIN-011", lambda: _model(metrics=[correlation()]))
_add("metric_of_batch", "A metric of the batch, not of rows", "ANY-TRAIN-011", lambda: _model(metrics=[_whole_batch]))
_add("loss_of_batch", "A loss of the batch, not of rows", "ANY-TRAIN-003", lambda: _model(loss=_whole_batch))
_add("loss_across_rows", "A loss that compares rows with each other", "ANY-TRAIN-015", lambda: _model(loss=_with_mean))
_add("own_compute_loss", "`compute_loss` of one's own, not declared", "ANY-TRAIN-009", _own_compute_loss)
_add("added_sum", "`add_loss` of a sum, not declared", "ANY-TRAIN-015", lambda: _model(SumAdded()))
_add("undeclared_state", "State of an own layer, not declared", "ANY-TRAIN-005", lambda: _model(UndeclaredMean()))
_add("tensorflow_noise", "`tf.random` without a key", "ANY-TRAIN-006", lambda: _model(TensorFlowNoise()))
_add("calls_python", "`tf.numpy_function` in a layer", "ANY-TRAIN-006", lambda: _model(CallsPython()))
