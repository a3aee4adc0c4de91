"""One device, V = 1: train the same model with Keras's `fit` and with `Rig.fit`; print differences as JSON."""

from __future__ import annotations

import json

import keras
import numpy as np
from keras import layers

from anyrig.train.batch import Batch
from anyrig.train.rig import Rig

SIZE = 32
OPTIMIZERS = {"sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9), "adam": lambda: keras.optimizers.Adam(0.01)}
rig = Rig(1)
generator = np.random.default_rng(0)
X = generator.normal(size=(SIZE * 10 + 7, 8, 8, 2)).astype("float32")
Y = generator.integers(0, 5, len(X))


def build(name: str) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(8, 3, kernel_regularizer="l2"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(5),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(OPTIMIZERS[name](), loss, metrics=["accuracy"], jit_compile=False)
    return model


def compare(name: str, rows: int, *, weighted: bool = False) -> dict[str, float]:
    """Return the largest difference over all variables, and over the history, after one epoch on `rows` rows."""
    ours, theirs = rig.build(build, name), rig.build(build, name)
    assert all(np.array_equal(a, b) for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True))
    weight = np.linspace(0.5, 2, rows).astype("float32") if weighted else None
    expected = theirs.fit(X[:rows], Y[:rows], batch_size=SIZE, shuffle=False, sample_weight=weight, verbose=0).history
    batch = Batch(global_size=SIZE, virtual_replicas=1)
    found = rig.fit(ours, X[:rows], Y[:rows], batch=batch, shuffle=False, sample_weight=weight, verbose=0).history
    pairs = zip(
        [*ours.variables, *ours.optimizer.variables], [*theirs.variables, *theirs.optimizer.variables], strict=True
    )
    return {
        "variables": float(max(np.abs(np.asarray(a, "float64") - np.asarray(b, "float64")).max() for a, b in pairs)),
        "history": max(abs(found[key][0] - expected[key][0]) for key in expected),
    }


model = rig.build(build, "adam")
rig.fit(model, X, Y, batch=Batch(global_size=SIZE, virtual_replicas=4), verbose=0)
print(
    json.dumps(
        {
            "sgd, 10 steps": compare("sgd", SIZE * 10),
            "sgd, 10 steps, weighted": compare("sgd", SIZE * 10, weighted=True),
            "adam, 1 step": compare("adam", SIZE),
            "adam, 11 steps, uneven": compare("adam", SIZE * 10 + 7),
            "evaluate": {
                key: abs(value - model.evaluate(X, Y, batch_size=SIZE, return_dict=True, verbose=0)[key])
                for key, value in rig.evaluate(model, X, Y, batch_size=SIZE, return_dict=True, verbose=0).items()
            },
            "predict": float(np.abs(rig.predict(model, X, verbose=0) - model.predict(X, verbose=0)).max()),
        }
    )
)
