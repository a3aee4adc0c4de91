"""Layers that assign variables while they run: their own weights, counters, averages; in training and in evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import anyrig
from anyrig.train.rig import Rig

layers = keras.layers
X = np.random.default_rng(0).normal(size=(11, 6)).astype("float32")
Y = X[:, :1].copy()


class Shrinks(layers.Layer):
    """Assigns its own weight whenever it is called, and counts the calls."""

    def build(self, _: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")
        self.calls = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False, name="calls")

    def call(self, inputs: Any) -> Any:
        before = inputs * self.scale
        self.scale.assign(self.scale * 0.9)
        self.calls.assign_add(1)
        return before + inputs * self.scale


def with_layer(layer: Callable[[], Any], *, shared: bool = False) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        inputs = keras.Input((6,))
        made = layer()
        outputs = made(made(inputs)) if shared else made(inputs)
        model = keras.Model(inputs, layers.Dense(1)(outputs))
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
        return model

    return build


ASSIGNING = {
    "spectral": with_layer(lambda: layers.SpectralNormalization(layers.Dense(6, kernel_regularizer="l2"))),
    "spectral, shared": with_layer(lambda: layers.SpectralNormalization(layers.Dense(6), 2), shared=True),
    "own weight, counter": with_layer(Shrinks, shared=True),
}


@pytest.mark.parametrize(("what", "v"), [*((what, 3) for what in ASSIGNING), ("spectral", 1)])
def test_what_a_layer_assigns_whatever_its_rows_is_kept_as_keras_keeps_it(what: str, v: int) -> None:
    rig = Rig(1)
    ours, theirs = rig.build(ASSIGNING[what]), rig.build(ASSIGNING[what])
    batch = anyrig.Batch(global_size=6, virtual_replicas=v)
    found = rig.fit(ours, X, Y, batch=batch, epochs=2, shuffle=False, verbose=0).history["loss"]
    expected = theirs.fit(X, Y, batch_size=6, epochs=2, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    rig.evaluate(ours, X, Y, batch=batch, verbose=0)
    theirs.evaluate(X, Y, batch_size=6, verbose=0)
    outputs, wanted = rig.predict(ours, X, batch=batch, verbose=0), theirs.predict(X, batch_size=6, verbose=0)
    np.testing.assert_allclose(outputs, wanted, rtol=1e-4, atol=1e-6)
    for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
