"""Models whose numbers really depend on the number of devices, each in another place, and some that do not."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

ROWS = 40


def devices() -> int:
    return len(tf.config.list_logical_devices())


def scaled_by_devices() -> float:
    return 1.0 + 0.1 * devices()


class Odd(layers.Layer):
    """Gives other outputs on other device counts."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, inputs: Any) -> Any:
        return inputs * self.scale * scaled_by_devices()


class OddBlock(layers.Layer):
    """Gives its inner layer other inputs on other device counts."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.inner = layers.Dense(4)

    def call(self, inputs: Any) -> Any:
        return self.inner(inputs * scaled_by_devices())


class OddGradient(layers.Layer):
    """Gives other gradients on other device counts, and the same outputs."""

    def call(self, inputs: Any) -> Any:
        @tf.custom_gradient
        def same(value: Any) -> Any:
            return tf.identity(value), lambda upstream: upstream * scaled_by_devices()

        return same(inputs)


class OddState(layers.Layer):
    """Counts other numbers on other device counts."""

    def build(self, _: Any) -> None:
        self.calls = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False, name="calls")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign_add(devices())
        return inputs


class OddInEvaluation(layers.Layer):
    """Gives other outputs on other device counts, but not in training."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return inputs if training else inputs * scaled_by_devices()


class OwnStep(keras.Model):
    """Trains as Keras does, by a step of its own."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


class Unkeyed(layers.Layer):
    """Draws random numbers that no seed generator gives."""

    def call(self, inputs: Any) -> Any:
        return inputs + tf.random.normal(tf.shape(inputs))


class OddLater(keras.optimizers.schedules.LearningRateSchedule):
    """Another learning rate from the third update on."""

    def __call__(self, step: Any) -> Any:
        return tf.where(step < 2, 0.01, 0.01 * scaled_by_devices())

    def get_config(self) -> dict[str, Any]:
        return {}


def odd_initial(shape: Any, dtype: Any = None) -> Any:
    return tf.ones(shape, dtype) * scaled_by_devices()


def odd_metric(y_true: Any, y_pred: Any) -> Any:
    return tf.abs(y_true - y_pred)[:, 0] * scaled_by_devices()


def rows() -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(ROWS, 5)).astype("float32"), generator.normal(size=(ROWS, 1)).astype("float32")


def other_rows_in_every_process() -> Any:
    seed = int.from_bytes(os.urandom(4), "little")
    return tf.data.Dataset.from_tensor_slices(rows()).shuffle(ROWS, seed=seed).batch(8)


def model(*middle: keras.layers.Layer, optimizer: Any = "adam", **compiled: Any) -> keras.Model:
    built = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(4, activation="relu", name="first"),
            *middle,
            layers.Dense(1, name="last"),
        ]
    )
    built.compile(optimizer, "mse", **compiled)
    return built


def model_with_loss() -> keras.Model:
    built = model()
    built.compile("sgd", lambda y_true, y_pred: tf.square(y_true - y_pred) * scaled_by_devices())
    return built


def own_step() -> keras.Model:
    inputs = keras.Input((5,))
    hidden = layers.Dropout(0.5)(layers.Dense(4, name="first")(inputs))
    built = OwnStep(inputs, layers.Dense(1)(hidden))
    built.compile("adam", "mse")
    return built


def build_sound() -> keras.Model:
    return model(layers.BatchNormalization(), layers.Dropout(0.2), metrics=["mae"])


def build_odd() -> keras.Model:
    return model(Odd(name="scaled"))


def build_on_one_device_only() -> keras.Model:
    if devices() > 1:
        raise ValueError("only one device, please")
    return model()


def end_the_process() -> keras.Model:
    os._exit(9)


CASES: dict[str, tuple[Callable[[], keras.Model], Callable[[], Any]]] = {
    "sound": (build_sound, rows),
    "call": (build_odd, rows),
    "block": (lambda: model(OddBlock(name="block")), rows),
    "gradient": (lambda: model(OddGradient(), layers.Dense(4, name="after")), rows),
    "state": (lambda: model(OddState(name="counter")), rows),
    "initial": (lambda: model(layers.Dense(4, kernel_initializer=odd_initial, name="started")), rows),
    "metric": (lambda: model(metrics=[odd_metric]), rows),
    "validation": (lambda: model(OddInEvaluation()), rows),
    "own step": (own_step, rows),
    "loss": (model_with_loss, rows),
    "later": (lambda: model(optimizer=keras.optimizers.SGD(OddLater())), rows),
    "data": (model, other_rows_in_every_process),
    "refused": (lambda: model(Unkeyed(name="unkeyed")), rows),
    "one device": (build_on_one_device_only, rows),
    "crash": (end_the_process, rows),
    "after the crash": (model, rows),
}


FIT: dict[str, Callable[[], dict[str, Any]]] = {
    "sound": lambda: {"initial_epoch": 1, "callbacks": [keras.callbacks.TerminateOnNaN()]},
    "validation": lambda: {"validation_data": rows()},
}


def case(name: str) -> tuple[Callable[[], keras.Model], Any, dict[str, Any]]:
    """Return the model function, the data and more arguments of fit; all is made in the process that trains."""
    build, data = CASES[name]
    return build, data(), FIT.get(name, dict)()
