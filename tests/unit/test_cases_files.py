"""Public failures with files of HDF5: models in models, and layouts that share a suffix."""

from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

import anyrig


def nested(blocks: int) -> keras.Model:
    """Convolutions with BatchNormalization, three models deep, the innermost called twice."""
    inner_input = keras.Input((6, 3))
    x = inner_input
    for number in range(blocks):
        x = layers.Conv1D(3, 2, padding="same", name=f"conv{number}")(x)
        x = layers.BatchNormalization(name=f"norm{number}")(x)
    model = keras.Model(inner_input, x, name="block")
    for name in ("middle", "outer"):
        inputs = keras.Input((6, 3))
        model = keras.Model(inputs, model(model(inputs)) if name == "middle" else model(inputs), name=name)
    return model


def fill(model: keras.Model) -> None:
    """Give each variable values of its own."""
    random = np.random.default_rng(7)
    for variable in model.variables:
        variable.assign(random.uniform(0.5, 1.5, variable.shape))


def arrays(model: keras.Model) -> dict[str, bytes]:
    return {variable.path: np.asarray(variable).tobytes() for variable in model.weights}


@pytest.mark.parametrize("blocks", [1, 2])
def test_B001_B002_B006_models_in_models_keep_every_array(blocks: int, tmp_path: Path) -> None:
    model = nested(blocks)
    fill(model)
    wanted = arrays(model)
    assert len(wanted) == len(set(wanted.values())) == 6 * blocks
    model.save(tmp_path / "keras.h5")
    anyrig.save_model(model, tmp_path / "anyrig.h5")
    model.save_weights(tmp_path / "keras.weights.h5")
    for file in ("keras.h5", "anyrig.h5"):
        assert arrays(anyrig.open_model(tmp_path / file)) == wanted
    for file in ("keras.h5", "anyrig.h5", "keras.weights.h5"):
        assert arrays(anyrig.open_model(tmp_path / file, into=nested(blocks))) == wanted


def test_B012_a_whole_model_under_the_name_of_weights_is_told_by_its_content(tmp_path: Path) -> None:
    model = nested(1)
    fill(model)
    model.save(tmp_path / "model.h5")
    (tmp_path / "model.h5").rename(tmp_path / "model.weights.h5")
    assert arrays(anyrig.open_model(tmp_path / "model.weights.h5")) == arrays(model)
    assert arrays(anyrig.open_model(tmp_path / "model.weights.h5", into=nested(1))) == arrays(model)
