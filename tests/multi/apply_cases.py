"""Train models whose apply stage is unusual on the devices of this process; print digests and placements as JSON.

Argument: number of devices.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from anyrig.topology.devices import configure

configure(int(sys.argv[1]))

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers, optimizers  # noqa: E402

from anyrig.errors import UsageError  # noqa: E402
from anyrig.state.capture import capture  # noqa: E402
from anyrig.store.digest import state_digest_of  # noqa: E402
from anyrig.train.batch import Batch  # noqa: E402
from anyrig.train.rig import Rig  # noqa: E402
from tests.multi.placements import misplaced  # noqa: E402

ROWS, SIZE = 40, 10
X = np.random.default_rng(0).normal(size=(ROWS, 12)).astype("float32")
Y = X[:, :1].copy()
X[13, 3] = np.nan  # in the second step of four


def model(optimizer: Callable[[], Any], **compiled: Any) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        hidden = [layers.Dense(16), layers.BatchNormalization(), layers.Dense(16, activation="tanh")]
        model = keras.Sequential([keras.Input((12,)), *hidden, layers.Dense(1, dtype="float32")])
        model.compile(optimizer(), "mse", **compiled)
        return model

    return build


def scaled() -> Any:
    return optimizers.LossScaleOptimizer(optimizers.AdamW(0.01, global_clipnorm=0.1), initial_scale=2.0**20)


def trained(rig: Rig, build: Callable[[], keras.Model]) -> dict[str, Any]:
    built = rig.build(build)
    batch = Batch(global_size=SIZE, virtual_replicas=4)
    history = rig.fit(built, X, Y, epochs=2, batch=batch, shuffle=False, verbose=0, on_nonfinite="skip").history
    engine: Any = rig._known._engines_of(built)[False][1]
    step: Any = next(function for key, function in engine._functions.items() if key[0] == "_train_step")
    checked, wrong = misplaced(step.graph)
    return {
        "digest": state_digest_of(capture(built).tensors, 0),
        "loss": history["loss"],
        "updates": int(built.optimizer.iterations.numpy()),
        "checked": checked,
        "misplaced": wrong,
        "own predict": bool(np.isfinite(built.predict(Y.repeat(12, 1), verbose=0)).all()),
        "jit_compile": built.jit_compile,
    }


class ThroughText(layers.Layer):
    """Writes numbers as text and reads them again, which XLA cannot."""

    def call(self, inputs: Any) -> Any:
        return inputs + tf.strings.to_number(tf.strings.as_string(tf.stop_gradient(inputs)))


def refused(rig: Rig) -> str:
    """Return what is said of a model that XLA cannot compile."""

    def build() -> keras.Model:
        built = keras.Sequential([keras.Input((12,)), ThroughText(), layers.Dense(1)])
        built.compile("sgd", "mse", jit_compile=True)
        return built

    try:
        rig.fit(rig.build(build), X[:8], Y[:8], verbose=0)
    except UsageError as error:
        return str(error)
    return ""


rig, half = Rig(int(sys.argv[1])), Rig(int(sys.argv[1]), precision="mixed_float16")
found = {
    "muon": trained(rig, model(lambda: optimizers.Muon(0.01))),
    "adafactor": trained(rig, model(lambda: optimizers.Adafactor(0.01))),
    "scaled": trained(half, model(scaled)),
    "xla": trained(rig, model(lambda: optimizers.Adam(0.01), jit_compile=True)),
    "not xla": trained(rig, model(lambda: optimizers.Adam(0.01))),
}
print(json.dumps({"cases": found, "refused": refused(rig)}))
