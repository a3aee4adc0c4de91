"""Models that people published, of Keras 2.0 and 2.2: they open, and compute what Keras 2 computes with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import anyrig
from anyrig.errors import AnyrigError
from anyrig.exchange.legacy.own import hard_sigmoid_of_keras_2
from tests.corpus import musicnn
from tests.corpus.artefacts import unpacked

EXPECTED = np.load(Path(__file__).parents[1] / "corpus" / "published.npz")

TAGGED = np.load(Path(__file__).parents[1] / "corpus" / "musicnn.npz")


def names(package: str) -> list[str]:
    return [
        name.partition("/")[2] for name in EXPECTED.files if name.startswith(f"{package}/") and "inputs" not in name
    ]


def file_of(package: str, name: str) -> Path:
    (path,) = unpacked(package).rglob(name)
    return path


def assert_computes(model: keras.Model, package: str, name: str, inputs: np.ndarray[Any, Any]) -> None:
    found = keras.ops.convert_to_numpy(model(inputs, training=False))
    np.testing.assert_allclose(found, EXPECTED[f"{package}/{name}"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", names("spliceai"))
def test_spliceai_of_keras_2_0_5(name: str) -> None:
    bases = np.eye(4, dtype="float32")[EXPECTED["spliceai/inputs"]][None]
    assert_computes(anyrig.open_model(file_of("spliceai", name)), "spliceai", name, bases)


def test_fer_of_keras_2_0_5_with_its_training() -> None:
    model = anyrig.open_model(file_of("fer", "emotion_model.hdf5"))
    assert_computes(model, "fer", "emotion_model.hdf5", EXPECTED["fer/inputs"] / 127.5 - 1.0)
    assert isinstance(model.optimizer, keras.optimizers.Adam)
    assert int(model.optimizer.iterations) > 0
    assert all(float(keras.ops.max(keras.ops.abs(slot))) > 0 for slot in model.optimizer._velocities)


def nuggets() -> keras.Model:
    recurrent = layers.LSTM(64, recurrent_activation=hard_sigmoid_of_keras_2)
    rest = [layers.Dense(64), layers.Activation("tanh"), layers.Dense(1), layers.Activation("sigmoid")]
    return keras.Sequential([keras.Input((11, 21)), layers.Masking(-1.0), recurrent, *rest])


def test_mhcnuggets_weights_of_keras_2_2_2_fill_a_model() -> None:
    for name in names("mhcnuggets"):
        model = anyrig.open_model(file_of("mhcnuggets", name), into=nuggets)
        assert_computes(model, "mhcnuggets", name, EXPECTED["mhcnuggets/inputs"])


def test_every_file_of_mhcnuggets_fills_it() -> None:
    model = nuggets()
    paths = sorted(unpacked("mhcnuggets").rglob("*.h5"))
    assert len(paths) > 200
    for path in paths[::20]:
        anyrig.open_model(path, into=model)


@pytest.mark.parametrize("name", ["MSD_musicnn", "MSD_vgg", "MTT_musicnn", "MTT_vgg"])
def test_musicnn_of_tensorflow_1_fills_a_model_and_computes_what_its_own_graph_does(name: str) -> None:
    path, model = unpacked("musicnn") / "musicnn" / name, musicnn.built(name)
    before = model.get_weights()
    with pytest.raises(AnyrigError, match=r"(?s)order alone would decide.*OPEN-043"):
        anyrig.open_model(path, into=model)
    assert all(np.array_equal(one, two) for one, two in zip(model.get_weights(), before, strict=True))
    anyrig.open_model(path, into=model, rules=musicnn.RULES)
    found = keras.ops.convert_to_numpy(model(TAGGED["inputs"] / 10, training=False))
    np.testing.assert_allclose(found, TAGGED[name], rtol=1e-5, atol=1e-5)
