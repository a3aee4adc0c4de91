"""Kinds of models: with several virtual replicas, each trains as Keras trains it on the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyrig
from anyrig.train.rig import Rig

layers, metrics = keras.layers, keras.metrics
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(11, 6)).astype("float32")
Y = X[:, :1].copy()
TOKENS = np.pad(GENERATOR.integers(0, 5, (11, 4)), ((0, 0), (0, 2)))
CLASSES = GENERATOR.integers(0, 3, 11)
WORDS = np.array([["the cat sat"], ["a dog ran off"], ["cat"]] * 4)[:11]


def compiled(model: keras.Model, loss: Any = "mse", **given: Any) -> keras.Model:
    model.compile(keras.optimizers.SGD(0.05), loss, **given)
    return model


def text() -> keras.Model:
    vectorize = layers.TextVectorization(vocabulary=["the", "cat", "dog"], output_sequence_length=4)
    embed = layers.Embedding(5, 2, mask_zero=True)
    inputs = keras.Input((1,), dtype="string")
    return compiled(keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(embed(vectorize(inputs))))))


def transformer() -> keras.Model:
    inputs = keras.Input((6,), dtype="int64")
    embedded = layers.Embedding(5, 8, mask_zero=True)(inputs)
    attended = layers.LayerNormalization()(embedded + layers.MultiHeadAttention(2, 4)(embedded, embedded))
    outputs = layers.Dense(3)(layers.Dense(16, activation="gelu")(attended))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return compiled(keras.Model(inputs, outputs), loss, metrics=[metrics.SparseCategoricalAccuracy(name="hits")])


def recurrent() -> keras.Model:
    model = keras.Sequential([keras.Input((6,), dtype="int64"), layers.Embedding(5, 3, mask_zero=True)])
    model.add(layers.Bidirectional(layers.GRU(2)))
    model.add(layers.Dense(1))
    return compiled(model)


def low_rank() -> keras.Model:
    embedding, dense = layers.Embedding(5, 4), layers.Dense(8)
    model = keras.Sequential([keras.Input((6,), dtype="int64"), embedding, layers.Flatten(), dense, layers.Dense(1)])
    embedding.enable_lora(2)
    dense.enable_lora(2)
    return compiled(model)


class Listed(keras.Model):
    """Holds its layers in a list and a dict, built by the first call, which has no argument `training`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = [layers.Dense(4), layers.UnitNormalization()]
        self.last = {"a": layers.Dense(1), "b": [layers.Dense(1)]}

    def call(self, inputs: Any) -> Any:
        for layer in self.first:
            inputs = layer(inputs)
        return self.last["a"](inputs) + self.last["b"][0](inputs)


def measured() -> keras.Model:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, activation="softmax")])
    plain = [metrics.SparseTopKCategoricalAccuracy(2, name="top"), metrics.MeanIoU(3, sparse_y_pred=False, name="iou")]
    weighted = [metrics.SparseCategoricalAccuracy(name="hits")]
    return compiled(model, "sparse_categorical_crossentropy", metrics=plain, weighted_metrics=weighted)


def one_hot() -> keras.Model:
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3, activation="softmax")])
    found = [metrics.AUC(name="auc"), metrics.F1Score(name="f1"), metrics.R2Score(name="r2")]
    return compiled(model, "categorical_crossentropy", metrics=found, weighted_metrics=[metrics.Recall(name="recall")])


MODELS: dict[str, tuple[Callable[[], keras.Model], Any, Any]] = {
    "text": (text, WORDS, Y),
    "transformer": (transformer, TOKENS, np.roll(TOKENS, 1, axis=1) % 3),
    "recurrent": (recurrent, TOKENS, Y),
    "low rank": (low_rank, TOKENS, Y),
    "listed": (lambda: compiled(Listed()), X, Y),
    "measured": (measured, X, CLASSES),
    "one hot": (one_hot, X, np.eye(3, dtype="float32")[CLASSES]),
}


@pytest.mark.parametrize("what", MODELS)
@pytest.mark.sampled(3)
def test_each_kind_of_model_trains_as_in_keras(what: str) -> None:
    build, x, y = MODELS[what]
    rig = Rig(1)
    ours, theirs = rig.build(build), rig.build(build)
    given: dict[str, Any] = {"shuffle": False, "verbose": 0}
    if x.ndim == y.ndim + 1 or what == "one hot":
        given["sample_weight"] = np.linspace(0.1, 1, 11, dtype="float32")
    found = rig.fit(ours, x, y, batch=anyrig.Batch(global_size=4, virtual_replicas=3), **given).history
    expected = theirs.fit(tf.constant(x), y, batch_size=4, **given).history
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
    for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
