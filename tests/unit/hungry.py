"""A model that asks for a petabyte when its micro-batches are too large, for tests of what happens then."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import anyrig
from anyrig.train.rig import Rig

layers = keras.layers
ROWS, SIZE = 48, 8  # six steps
X = np.random.default_rng(0).normal(size=(ROWS, 6)).astype("float32")
Y = X[:, :1].copy()
MARK = 9.0
LATE = X.copy()
LATE[[20, 23], 2] = MARK  # in step 3, in both halves of its rows
# Read by traces: rows of a micro-batch; rows if one of them is marked; the update (from 0) that does not fit; whether
# memory is really asked for, for which TensorFlow waits 10 seconds before it gives up.
PLENTY = {"rows": ROWS, "marked": ROWS, "not_update": -1, "really": False}
fits = dict(PLENTY)


def _refuse(condition: Any) -> Any:
    if condition:
        raise MemoryError("OOM when allocating tensor with shape[1125899906842624]")
    return np.float32(0)


def exhausted_if(condition: Any, scalar: Any) -> Any:
    """Return zero; if `condition` holds, ask for a petabyte first, or fail as if."""
    if not fits["really"]:
        zero = tf.numpy_function(_refuse, [condition], tf.float32)
        return tf.cast(tf.ensure_shape(zero, ()), scalar.dtype)
    size = tf.where(condition, 1 << 50, tf.constant(1, tf.int64))
    return tf.where(condition, tf.reduce_max(tf.fill([size], scalar)), 0)


@keras.saving.register_keras_serializable("hungry")
class Hungry(layers.Layer):
    """Fits into memory up to a number of rows."""

    def call(self, inputs: Any) -> Any:
        rows = tf.shape(inputs)[0]
        marked = tf.reduce_any(inputs >= MARK) & (rows > fits["marked"])
        return inputs + exhausted_if(marked | (rows > fits["rows"]), inputs[0, 0])


@keras.saving.register_keras_serializable("hungry")
class HungryUpdate(keras.optimizers.SGD):
    """Assigns variables, and cannot assign more in one update."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient, variable, learning_rate)
        failing = tf.equal(tf.cast(self.iterations.value, tf.int32), fits["not_update"])
        variable.assign_add(tf.zeros_like(variable) + exhausted_if(failing, learning_rate))


def build() -> keras.Model:
    inputs = keras.Input((6,))
    x = layers.Dropout(0.2)(layers.Dense(5)(Hungry()(inputs)))
    model = keras.Model(inputs, layers.Dense(1)(layers.BatchNormalization()(x)))
    model.compile(HungryUpdate(0.01, momentum=0.9), "mse", metrics=["mae"])
    return model


def fit(rig: Rig, model: keras.Model, v: int, x: Any = X, **given: Any) -> keras.callbacks.History:
    batch = anyrig.Batch(global_size=SIZE, virtual_replicas=v)
    return rig.fit(model, x, Y, **{"batch": batch, "verbose": 0, "shuffle": False, **given})


def step_by_step(rig: Rig, model: keras.Model, x: Any, replicas: list[int]) -> None:
    """Train one epoch with so many virtual replicas in each step."""
    for step, v in enumerate(replicas):
        rows = slice(step * SIZE, (step + 1) * SIZE)
        batch = (x[rows], Y[rows], None)
        rig._known.engine(model, batch, v).train(batch, step)
