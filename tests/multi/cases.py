"""Small models and data with what usually breaks when the devices change; used by the programs in this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import layers

ROWS = 123  # with 30 rows a batch the last one has 3: fewer than the virtual replicas
VALIDATION_ROWS = 50
GLOBAL_SIZE = 30


class Case(NamedTuple):
    """A model function and the data it trains on: (x, y) or (x, y, sample_weight), or a function for a dataset."""

    build: Callable[[], keras.Model]
    train: Any
    validation: Any


class Counter(keras.layers.Layer):
    """Counts its calls in training and adds noise from Keras's global generator."""

    def build(self, _: Any) -> None:
        self.calls = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False, name="calls")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training:
            return inputs
        self.calls.assign_add(1)
        return inputs + keras.random.normal(keras.ops.shape(inputs), stddev=0.1)


def convolutional() -> Case:
    """Augmentation, BatchNorm, Dropout, a regulariser; accumulation, clipping, decay and EMA in the optimizer."""

    def build() -> keras.Model:
        model = keras.Sequential(
            [
                keras.Input((8, 8, 2)),
                layers.RandomTranslation(0.1, 0.1),
                layers.Conv2D(8, 3, kernel_regularizer="l2"),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Dropout(0.2),
                layers.Conv2D(8, 3),
                layers.BatchNormalization(),
                layers.Dropout(0.2, seed=3),
                layers.GlobalAveragePooling2D(),
                layers.Dense(5, activation="softmax"),
            ]
        )
        optimizer = keras.optimizers.AdamW(
            0.01,
            weight_decay=0.01,
            gradient_accumulation_steps=2,
            global_clipnorm=0.5,
            use_ema=True,
            ema_overwrite_frequency=3,
        )
        top = keras.metrics.SparseTopKCategoricalAccuracy(2, name="top_2")
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy", top])
        return model

    return Case(build, *_split((8, 8, 2), 5))


def sparse() -> Case:
    """An embedding, whose gradients are rows, with repeated words in and across micro-batches."""

    def build() -> keras.Model:
        words = keras.Input((6,), dtype="int32")
        hidden = layers.GlobalAveragePooling1D()(layers.Embedding(11, 4)(words))
        model = keras.Model(words, layers.Dense(1)(layers.Dropout(0.1)(hidden)))
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
        return model

    generator = np.random.default_rng(1)
    words = generator.integers(0, 11, (ROWS + VALIDATION_ROWS, 6)).astype("int32")
    target = words.mean(axis=1, dtype="float32")
    return Case(build, (words[:ROWS], target[:ROWS]), (words[ROWS:], target[ROWS:]))


def several() -> Case:
    """Two inputs and two outputs, a summed and a weighted loss, one large kernel, counters, the global generator."""

    def build() -> keras.Model:
        left, right = keras.Input((4,), name="left"), keras.Input((3,), name="right")
        hidden = layers.Dense(64, activation="relu")(layers.Concatenate()([left, right]))
        hidden = layers.Dense(64, activation="relu")(Counter()(hidden))
        outputs = {"one": layers.Dense(1, name="one")(hidden), "two": layers.Dense(2, name="two")(hidden)}
        model = keras.Model({"left": left, "right": right}, outputs)
        losses = {
            "one": keras.losses.MeanSquaredError(reduction="sum"),
            "two": keras.losses.MeanAbsoluteError(),
        }
        model.compile(
            keras.optimizers.SGD(0.001, momentum=0.9, nesterov=True), losses, loss_weights={"one": 0.1, "two": 2.0}
        )
        return model

    generator = np.random.default_rng(2)
    x = {name: generator.normal(size=(ROWS, size)).astype("float32") for name, size in (("left", 4), ("right", 3))}
    y = {name: generator.normal(size=(ROWS, size)).astype("float32") for name, size in (("one", 1), ("two", 2))}
    return Case(build, (x, y), (x, y))


def weighted() -> Case:
    """Sample weights as the loss's denominator, from a shuffled `tf.data.Dataset`."""

    def build() -> keras.Model:
        model = keras.Sequential(
            [keras.Input((5,)), layers.Dense(8, activation="tanh"), layers.BatchNormalization(), layers.Dense(1)]
        )
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        model.compile(keras.optimizers.Adam(0.01), loss, weighted_metrics=["mae"])
        return model

    import tensorflow as tf

    generator = np.random.default_rng(3)
    x, y, w = (generator.uniform(size=size).astype("float32") for size in ((ROWS, 5), (ROWS, 1), (ROWS,)))
    dataset = tf.data.Dataset.from_tensor_slices((x, y, w)).shuffle(ROWS, seed=7).batch(GLOBAL_SIZE)
    return Case(build, dataset, (x, y, w))


CASES = {case.__name__: case for case in (convolutional, sparse, several, weighted)}


def _split(shape: tuple[int, ...], classes: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS + VALIDATION_ROWS, *shape)).astype("float32")
    y = generator.integers(0, classes, ROWS + VALIDATION_ROWS)
    return (x[:ROWS], y[:ROWS]), (x[ROWS:], y[ROWS:])
