"""Cases: kinds of data and arguments of `fit`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import layers

from tests.multi.zoo import ROWS, SIZE, Case, arrays, compiled, floats, integers, kind, stack, weights

loop_kind = kind("Data and loop")


def _build() -> keras.Model:
    return compiled(
        stack((4,), layers.Dense(5, activation="tanh"), layers.Dropout(0.2), layers.Dense(1)), metrics=["mae"]
    )


_X, _Y = floats(4), floats(1, seed=2)


@loop_kind
def dataset() -> Case:
    """A batched `tf.data.Dataset` with weights."""

    def fit() -> dict[str, Any]:
        import tensorflow as tf

        return {"x": tf.data.Dataset.from_tensor_slices((_X, _Y, weights())).batch(SIZE).prefetch(1)}

    return Case(_build, fit)


@loop_kind
def infinite_dataset() -> Case:
    """An infinite `tf.data.Dataset` with `steps_per_epoch`."""

    def fit() -> dict[str, Any]:
        import tensorflow as tf

        return {"x": tf.data.Dataset.from_tensor_slices((_X, _Y)).batch(SIZE).repeat(), "steps_per_epoch": 4}

    return Case(_build, fit)


class Rows(keras.utils.PyDataset):
    """The rows as a PyDataset."""

    def __len__(self) -> int:
        return math.ceil(ROWS / SIZE)

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * SIZE, (index + 1) * SIZE)
        return _X[rows], _Y[rows]


@loop_kind
def py_dataset() -> Case:
    """A `PyDataset`."""
    return Case(_build, lambda: {"x": Rows()})


@loop_kind
def generator() -> Case:
    """A Python generator with `steps_per_epoch`."""

    def batches() -> Iterator[Any]:
        while True:
            for start in range(0, ROWS, SIZE):
                yield _X[start : start + SIZE], _Y[start : start + SIZE]

    return Case(_build, lambda: {"x": batches(), "steps_per_epoch": 3})


@loop_kind
def pandas() -> Case:
    """A pandas DataFrame and a Series."""

    def fit() -> dict[str, Any]:
        import pandas as pd

        return {"x": pd.DataFrame(_X, columns=list("abcd")), "y": pd.Series(_Y[:, 0]), "batch_size": SIZE}

    return Case(_build, fit)


@loop_kind
def tensors() -> Case:
    """`tf.Tensor` features and one-dimensional labels."""

    def fit() -> dict[str, Any]:
        import tensorflow as tf

        return {"x": tf.constant(_X), "y": tf.constant(_Y[:, 0]), "batch_size": SIZE}

    return Case(_build, fit)


@loop_kind
def fewer_rows_than_replicas() -> Case:
    """Last batches of two rows, fewer than the virtual replicas, with BatchNormalization."""

    def build() -> keras.Model:
        model = stack((4,), layers.Dense(5), layers.BatchNormalization(), layers.Dropout(0.2), layers.Dense(1))
        return compiled(model, metrics=["mae"])

    return Case(build, lambda: {"x": _X, "y": _Y, "batch_size": 16})


@loop_kind
def validation_data() -> Case:
    """`validation_data` with weights, `validation_batch_size`."""
    fit = arrays(_X, _Y, validation_data=(_X[:9], _Y[:9], weights()[:9]), validation_batch_size=4)
    return Case(_build, fit)


@loop_kind
def validation_split() -> Case:
    """`validation_split`, `validation_steps`, `validation_freq`."""
    return Case(_build, arrays(_X, _Y, validation_split=0.25, validation_steps=1, validation_freq=2))


@loop_kind
def initial_epoch() -> Case:
    """`initial_epoch`."""
    return Case(_build, arrays(_X, _Y, initial_epoch=1))


@loop_kind
def steps_per_execution() -> Case:
    """`steps_per_execution` in compile."""

    def build() -> keras.Model:
        return compiled(stack((4,), layers.Dense(5), layers.Dense(1)), steps_per_execution=2)

    return Case(build, arrays(_X, _Y))


@loop_kind
def jit_compile() -> Case:
    """`jit_compile=True`: each micro-batch compiled by XLA."""

    def build() -> keras.Model:
        return compiled(stack((4,), layers.Dense(5, activation="tanh"), layers.Dense(1)), jit_compile=True)

    return Case(build, arrays(_X, _Y))


@loop_kind
def run_eagerly() -> Case:
    """`run_eagerly=True`."""

    def build() -> keras.Model:
        return compiled(stack((4,), layers.Dense(5, activation="tanh"), layers.Dense(1)), run_eagerly=True)

    return Case(build, arrays(_X, _Y))


@loop_kind
def callbacks() -> Case:
    """Callbacks of Keras that change the learning rate, the weights or the end."""

    def fit() -> dict[str, Any]:
        shipped = keras.callbacks
        listed = [
            shipped.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
            shipped.ReduceLROnPlateau("loss", patience=1),
            shipped.EarlyStopping("loss", patience=1, restore_best_weights=True),
            shipped.TerminateOnNaN(),
        ]
        return {**arrays(_X, _Y)(), "callbacks": listed}

    return Case(_build, fit)


@loop_kind
def small_integers() -> Case:
    """Integer labels in int64 with features in uint8."""

    def build() -> keras.Model:
        model = stack((4, 4, 1), layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(3, activation="softmax"))
        return compiled(model, "sparse_categorical_crossentropy", metrics=["accuracy"])

    images = np.random.default_rng(4).integers(0, 255, (ROWS, 4, 4, 1)).astype("uint8")
    return Case(build, arrays(images, integers(3).astype("int64")))
