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


def test_B172_attention_is_the_same_in_every_format(tmp_path: Path) -> None:
    inputs = keras.Input((4, 6))
    model = keras.Model(inputs, layers.MultiHeadAttention(2, 3, name="attention")(inputs, inputs))
    fill(model)
    x = np.random.default_rng(1).normal(size=(2, 4, 6)).astype(np.float32)
    for suffix in (".keras", ".h5"):
        anyrig.save_model(model, tmp_path / f"model{suffix}")
        opened = anyrig.open_model(tmp_path / f"model{suffix}")
        assert arrays(opened) == arrays(model)
        assert np.array_equal(opened.predict(x, verbose=0), model.predict(x, verbose=0))


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_B182_B185_inputs_and_outputs_keep_their_names_and_order(suffix: str, tmp_path: Path) -> None:
    inputs = {name: keras.Input((2,), name=name) for name in ("width", "age")}
    both = layers.Concatenate()(list(inputs.values()))
    outputs = {name: layers.Dense(size, name=name)(both) for name, size in (("scores", 2), ("boxes", 3))}
    model = keras.Model(inputs, outputs)
    anyrig.save_model(model, tmp_path / f"model{suffix}")
    opened = anyrig.open_model(tmp_path / f"model{suffix}")
    x = {"age": np.ones((1, 2), np.float32), "width": np.full((1, 2), 3, np.float32)}
    wanted, found = model.predict(x, verbose=0), opened.predict(x, verbose=0)
    assert list(found) == list(wanted) == ["scores", "boxes"]
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
