"""Files of Keras 1: their arrays are joined and laid out as today's Keras has them, as `tf-keras` does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import anyrig
from anyrig.errors import AnyrigError
from anyrig.exchange.build import built_model
from anyrig.exchange.legacy.own import hard_sigmoid_of_keras_2
from anyrig.formats.sniff import read_any

FILES = Path(__file__).parents[1] / "corpus" / "keras1"
NAMES = ("bidirectional", "recurrent")


def expected(name: str) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(FILES / f"{name}.npz") as stored:
        return dict(stored)


def assert_computes(model: keras.Model, name: str) -> None:
    wanted = expected(name)
    weights = [array for key, array in wanted.items() if key.startswith("weight/")]
    for found, array in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(found, array)
    outputs = keras.ops.convert_to_numpy(model(wanted["inputs"], training=False))
    np.testing.assert_allclose(outputs, wanted["outputs"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_B197_whole_models_of_keras_1_compute_what_tf_keras_computes(name: str) -> None:
    assert_computes(anyrig.open_model(FILES / f"{name}.h5"), name)


@pytest.mark.parametrize("name", NAMES)
def test_B197_files_of_keras_1_fill_a_model_of_the_users_own(name: str) -> None:
    model = built_model(read_any(FILES / f"{name}.h5")).model
    assert_computes(anyrig.open_model(FILES / f"{name}.h5", into=model), name)


def own(*, reset_after: bool = False) -> keras.Model:
    old: Any = {"recurrent_activation": hard_sigmoid_of_keras_2, "return_sequences": True}
    recurrent = [layers.LSTM(4, **old), layers.GRU(3, reset_after=reset_after, **old), layers.SimpleRNN(2)]
    return keras.Sequential([keras.Input([5, 3]), *recurrent, layers.Dense(2)])


def test_B197_gates_of_keras_1_fill_layers_under_todays_names() -> None:
    assert_computes(anyrig.open_model(FILES / "recurrent.h5", into=own), "recurrent")


def test_B197_gates_of_keras_1_do_not_fill_a_gru_that_computes_otherwise() -> None:
    with pytest.raises(AnyrigError, match=r"(?s)OPEN-043"):
        anyrig.open_model(FILES / "recurrent.h5", into=own(reset_after=True))
