"""Trains models with steps of their own: a GAN with two optimizers, a denoiser. Arguments: devices, run directory.

Prints what `test_own_steps.py` compares, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import anyrig
from anyrig.errors import AnyrigError, Stopped

DEVICES, FOLDER = int(sys.argv[1]), Path(sys.argv[2])
rig = anyrig.Rig(DEVICES)

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402

from anyrig.state.capture import capture  # noqa: E402
from anyrig.state.restore import restore  # noqa: E402
from anyrig.store.commit import newest_sound  # noqa: E402

X = np.random.default_rng(0).normal(size=(70, 6)).astype("float32")
SIZE = 16  # the last batch of an epoch has 6 rows


class Gan(keras.Model):
    """The usual two-player step; `call` is not used, `compile` takes two optimizers, metrics are its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential(
            [keras.Input((4,)), layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dense(6)]
        )
        self.discriminator = keras.Sequential(
            [keras.Input((6,)), layers.Dense(8, "relu"), layers.Dropout(0.3), layers.Dense(1)]
        )
        self.noise = keras.random.SeedGenerator(3)

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile(loss=loss_fn)
        self.optimizers = {"d": d_optimizer, "g": g_optimizer}
        self.d_loss, self.g_loss = keras.metrics.Mean(name="d_loss"), keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss, self.g_loss]

    def _update(self, key: str, part: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss(y, self.discriminator(x(), training=key == "d"))
        gradients = tape.gradient(loss, part.trainable_weights)
        self.optimizers[key].apply_gradients(zip(gradients, part.trainable_weights, strict=True))
        return loss

    def train_step(self, data: Any) -> dict[str, Any]:
        real, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        n = tf.shape(real)[0]
        draw: Callable[[], Any] = lambda: keras.random.normal((n, 4), seed=self.noise)  # noqa: E731
        both = tf.concat([self.generator(draw()), real], 0)
        labels = tf.concat([tf.ones((n, 1)), tf.zeros((n, 1))], 0)
        self.d_loss.update_state(self._update("d", self.discriminator, lambda: both, labels))
        fakes: Callable[[], Any] = lambda: self.generator(draw(), training=True)  # noqa: E731
        self.g_loss.update_state(self._update("g", self.generator, fakes, tf.zeros((n, 1))))
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


class Denoiser(keras.Model):
    """A compiled optimizer and loss in steps of its own, which return a log that is no metric."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = [layers.Dense(8, "tanh"), layers.BatchNormalization(), layers.Dense(6)]

    def call(self, x: Any, training: bool = False) -> Any:
        for layer in self.inside:
            x = layer(x, training=training) if isinstance(layer, layers.BatchNormalization) else layer(x)
        return x

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(0.9 * x, training=True) - x) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"error": loss}

    def test_step(self, data: Any) -> dict[str, Any]:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return {"error": tf.reduce_mean((self(x, training=False) - x) ** 2)}

    def predict_step(self, data: Any) -> Any:
        return self(keras.utils.unpack_x_y_sample_weight(data)[0]) * 2


def gan() -> keras.Model:
    model = Gan()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), keras.optimizers.SGD(1e-2, momentum=0.9), loss)
    return model


def denoiser() -> keras.Model:
    model = Denoiser()
    model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    return model


class StopAfter(keras.callbacks.Callback):
    """Asks for a stop at the end of a batch."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.left = batches

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            rig.request_stop()


def digest(model: keras.Model) -> dict[str, str]:
    return {tensor.name: tensor.array.tobytes().hex()[:64] for tensor in capture(model).tensors}


def train(name: str, *callbacks: Any) -> keras.Model:
    model = rig.build(gan)
    batch = anyrig.Batch(global_size=SIZE)
    saver = anyrig.Checkpoint(FOLDER / name, every="2 steps")
    rig.fit(model, X, batch=batch, epochs=2, verbose=0, callbacks=[saver, *callbacks], resume="auto")
    return model


whole = digest(train(f"whole-{DEVICES}"))
try:
    train(f"stopped-{DEVICES}", StopAfter(7))
    raise AssertionError("it was not stopped")
except Stopped:
    pass
found: dict[str, Any] = {"names": sorted(whole), "resumed_equals_whole": digest(train(f"stopped-{DEVICES}")) == whole}

copies = [
    [np.asarray(copy) for copy in getattr(variable.value, "values", [variable.value])]
    for variable in rig.build(gan).variables
]
found["copies"] = max(map(len, copies))

elsewhere = FOLDER / f"whole-{3 - DEVICES}" / "checkpoints"  # what the other device count has left, if it was here
stored, _ = newest_sound(elsewhere)
if stored is not None:
    model = rig.build(gan)
    rig.fit(model, X[:SIZE], batch_size=SIZE, epochs=1, verbose=0)
    restore(stored, model)
    now = {tensor.name: tensor.array for tensor in capture(model).tensors}
    found["restored"] = all(np.array_equal(now[n], stored.tensor(n)) for n in stored.names)

model = rig.build(denoiser)
history = rig.fit(model, X, validation_data=(X, None), batch_size=SIZE, epochs=3, shuffle=False, verbose=0).history
found["logs"] = sorted(history)
found["predict"] = float(np.abs(rig.predict(model, X, verbose=0) - 2 * np.asarray(model(X))).max())
found["statistics_agree"] = all(
    np.array_equal(*parts) for v in model.variables if len(parts := getattr(v.value, "values", ())) == 2
)
poisoned = X.copy()
poisoned[40] = np.nan
try:
    rig.fit(rig.build(denoiser), poisoned, batch_size=SIZE, shuffle=False, verbose=0, on_nonfinite="skip")
except AnyrigError as error:
    found["not_finite"] = str(error)
if DEVICES == 1:
    keras.utils.set_random_seed(0)
    theirs = denoiser()
    expected = theirs.fit(X, validation_data=(X, None), batch_size=SIZE, epochs=3, shuffle=False, verbose=0).history
    pairs = zip(model.get_weights(), theirs.get_weights(), strict=True)
    found["keras"] = max(float(np.abs(a - b).max()) for a, b in pairs)
    found["keras_history"] = {name: [history[name], expected[name]] for name in expected}
else:
    try:
        rig.fit(model, X[:17], batch_size=SIZE, verbose=0)
    except AnyrigError as error:
        found["refused"] = error.code
    mirrored = anyrig.Rig(DEVICES, strategy="mirrored")
    plain = mirrored.build(lambda: keras.Sequential([keras.Input((6,)), layers.BatchNormalization(), layers.Dense(1)]))
    plain.compile("sgd", "mse")
    mirrored.fit(plain, X, X[:, :1], batch_size=SIZE, verbose=0)
    found["mirrored"] = mirrored.evaluate(plain, X, X[:, :1], verbose=0)
print(json.dumps(found))
