"""Files of Keras 1: their arrays are joined and laid out as today's Keras has them, as `tf-keras` does it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from keras import layers

import anyrig
from anyrig.errors import AnyrigError
from anyrig.exchange.build import built_model
from anyrig.exchange.fill import mapping_into
from anyrig.exchange.legacy.own import hard_sigmoid_of_keras_2
from anyrig.formats.sniff import read_any
from anyrig.mapping.rules import Rules
from tests.corpus import keras2
from tests.corpus.keras1 import FOLDER as FILES
from tests.corpus.keras1 import NAMES, expected

UNSAID = ("moving", "pictures", "pictures_th", "signals")
"""Those that do not say whether Theano computed with them."""


def assert_computes(model: keras.Model, name: str) -> None:
    for found, wanted in zip(model.get_weights(), expected(name, "weight").values(), strict=True):
        np.testing.assert_array_equal(found, wanted)
    outputs = keras.ops.convert_to_numpy(model(expected(name, "inputs")["0"], training=False))
    np.testing.assert_allclose(outputs, expected(name, "outputs")["0"], rtol=1e-5, atol=1e-6)


def opened(name: str, **options: Any) -> keras.Model:
    if name not in UNSAID:
        return anyrig.open_model(FILES / f"{name}.h5", **options)
    with pytest.warns(UserWarning, match='does not say whether Theano.*backend="theano"'):
        return anyrig.open_model(FILES / f"{name}.h5", **options)


@pytest.mark.parametrize("name", NAMES)
def test_B197_whole_models_of_keras_1_compute_what_tf_keras_computes(name: str) -> None:
    assert_computes(opened(name), name)


@pytest.mark.parametrize("name", NAMES)
def test_B197_files_of_keras_1_fill_a_model_of_the_users_own(name: str) -> None:
    model = built_model(read_any(FILES / f"{name}.h5")).model
    assert_computes(opened(name, into=model), name)


def own(*, reset_after: bool = False) -> keras.Model:
    old: Any = {"recurrent_activation": hard_sigmoid_of_keras_2, "return_sequences": True}
    recurrent = [layers.LSTM(4, **old), layers.GRU(3, reset_after=reset_after, **old), layers.SimpleRNN(2)]
    return keras.Sequential([keras.Input([5, 3]), *recurrent, layers.Dense(2)])


def test_B197_gates_of_keras_1_fill_layers_under_todays_names() -> None:
    assert_computes(anyrig.open_model(FILES / "recurrent.h5", into=own), "recurrent")


def test_B197_weights_alone_of_keras_1_with_names_that_tensorflow_counted(tmp_path: Path) -> None:
    with h5py.File(FILES / "recurrent.h5") as whole, h5py.File(tmp_path / "weights.h5", "w") as alone:
        groups = whole["model_weights"]
        alone.attrs["layer_names"] = groups.attrs["layer_names"]
        for name, group in groups.items():
            made = alone.create_group(name)
            listed = [each.decode() for each in group.attrs["weight_names"]]
            made.attrs["weight_names"] = [each.replace(":0", "_1:0").encode() for each in listed]
            for each in listed:
                made[each.replace(":0", "_1:0")] = group[each][()]
    assert_computes(anyrig.open_model(tmp_path / "weights.h5", into=own), "recurrent")


def test_B197_gates_of_keras_1_do_not_fill_a_gru_that_computes_otherwise() -> None:
    with pytest.raises(AnyrigError, match=r"(?s)OPEN-043"):
        anyrig.open_model(FILES / "recurrent.h5", into=own(reset_after=True))


Arrays = dict[str, np.ndarray[Any, Any]]


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


def written(path: Path, groups: dict[str, Arrays], backend: str = "tensorflow") -> Path:
    """Write weights as Keras 1 wrote them, which is to say without a version."""
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = [name.encode() for name in groups]
        file.attrs["backend"] = backend.encode()
        for name, arrays in groups.items():
            group = file.create_group(name)
            group.attrs["weight_names"] = [f"{name}_{key}".encode() for key in arrays]
            for key, array in arrays.items():
                group[f"{name}_{key}"] = array
    return path


def chain(*items: keras.Layer, shape: tuple[int, ...] = (7, 7, 3)) -> keras.Model:
    return keras.Sequential([keras.Input(shape), *items])


def test_a_square_deconvolution_of_keras_1_is_turned_under_any_name(tmp_path: Path) -> None:
    kernel, bias = numbers(3, 3, 3, 3), numbers(3)
    path = written(tmp_path / "old.h5", {"theirs": {"W": kernel, "b": bias}})
    for name in ("theirs", "mine"):
        model = chain(layers.Conv2DTranspose(3, 3, name=name))
        anyrig.open_model(path, into=model)
        np.testing.assert_array_equal(model.get_weights()[0], kernel.transpose(0, 1, 3, 2))


def test_a_deconvolution_in_a_layout_that_keras_1_did_not_have_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "old.h5", {"theirs": {"W": numbers(2, 2, 5, 3), "b": numbers(5)}})
    with pytest.raises(AnyrigError, match="OPEN-043"):
        anyrig.open_model(path, into=chain(layers.Conv2DTranspose(5, 2, name="theirs")))


@pytest.mark.parametrize("name", NAMES)
def test_rules_that_repeat_what_opening_found_fill_the_same(name: str, tmp_path: Path) -> None:
    contents = read_any(FILES / f"{name}.h5")
    model = built_model(contents).model
    (tmp_path / "rules.yaml").write_text(Rules.of(mapping_into(model, contents)).text())
    assert_computes(opened(name, into=model, rules=tmp_path / "rules.yaml"), name)


def test_rules_without_a_layout_leave_it_to_the_file(tmp_path: Path) -> None:
    kernel = numbers(3, 3, 3, 3)
    path = written(tmp_path / "old.h5", {"theirs": {"W": kernel, "b": numbers(3)}})
    rules = tmp_path / "rules.yaml"
    for layout, wanted in (("", kernel.transpose(0, 1, 3, 2)), (", layout: [{transpose: [0, 1, 2, 3]}]", kernel)):
        rules.write_text("version: 1\nrules: [{from: theirs/theirs_W, to: model/mine/kernel" + layout + "}]")
        model = chain(layers.Conv2DTranspose(3, 3, name="mine"))
        anyrig.open_model(path, into=model, rules=rules)
        np.testing.assert_array_equal(model.get_weights()[0], wanted)


def two_convolutions(*after: keras.Layer) -> keras.Model:
    return chain(layers.Conv2D(3, 3, name="one"), layers.Conv2D(4, 3, name="two"), *after)


def test_theanos_order_of_axes_fills_a_model_of_todays_order_unless_it_flattens(tmp_path: Path) -> None:
    one, two = numbers(3, 3, 3, 3), numbers(4, 3, 3, 3)
    groups = {"one": {"W": one, "b": numbers(3)}, "two": {"W": two, "b": numbers(4)}}
    path = written(tmp_path / "old.h5", groups)
    model = two_convolutions(layers.GlobalMaxPooling2D())
    anyrig.open_model(path, into=model)
    np.testing.assert_array_equal(model.get_weights()[0], one.transpose(2, 3, 1, 0))
    np.testing.assert_array_equal(model.get_weights()[2], two.transpose(2, 3, 1, 0))
    flat = two_convolutions(layers.Flatten())
    before = flat.get_weights()
    with pytest.raises(AnyrigError, match=r"(?s)channels_first.*Flatten.*OPEN-024"):
        anyrig.open_model(path, into=flat)
    assert all(np.array_equal(now, then) for now, then in zip(flat.get_weights(), before, strict=True))
    with pytest.raises(AnyrigError, match="OPEN-024"):
        anyrig.open_model(FILES / "pictures_th.h5", into=lambda: pictures("channels_last"))


def pictures(order: str) -> keras.Model:
    given: Any = {"data_format": order, "activation": "tanh"}
    convolutions = [layers.Conv2D(3, 3, **given), layers.Conv2DTranspose(3, 3, **given)]
    shape = (3, 6, 7) if order == "channels_first" else (6, 7, 3)
    return chain(*convolutions, layers.Flatten(), layers.Dense(2), shape=shape)


@pytest.mark.parametrize("name", ["pictures", "pictures_th", "pictures_theano"])
def test_B197_pictures_of_keras_1_fill_a_model_under_todays_names(name: str) -> None:
    order = "channels_last" if name == "pictures" else "channels_first"
    assert_computes(opened(name, into=lambda: pictures(order)), name)


NO_RULE: list[tuple[Callable[[], keras.Layer], Arrays, str]] = [
    (
        lambda: layers.SeparableConv2D(4, 3, use_bias=False, name="x"),
        {"depthwise_kernel": numbers(3, 3, 3, 1), "pointwise_kernel": numbers(1, 1, 3, 4)},
        "theano",
    ),
    (lambda: layers.Conv3DTranspose(3, 3, use_bias=False, name="x"), {"W": numbers(3, 3, 3, 3, 3)}, "tensorflow"),
]


@pytest.mark.parametrize(("layer", "arrays", "backend"), NO_RULE)
def test_kernels_without_a_rule_are_refused_by_name(
    layer: Callable[[], keras.Layer], arrays: Arrays, backend: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "old.h5", {"x": arrays}, backend)
    kind = layer()
    shape = (7, 7, 3) if len(arrays) == 2 else (7, 7, 7, 3)
    with pytest.raises(AnyrigError, match=rf"(?s)x/x_.*{type(kind).__name__}.*OPEN-024"):
        anyrig.open_model(path, into=chain(kind, shape=shape))


def test_windows_of_a_keras_2_that_computed_with_theano_are_turned(tmp_path: Path) -> None:
    path = shutil.copy(keras2.unpack("cnn", tmp_path) / "weights.h5", tmp_path / "theano.h5")
    model = built_model(read_any(tmp_path / "cnn" / "model.h5")).model
    with h5py.File(path, "r+") as file:
        file.attrs["backend"] = b"theano"
    anyrig.open_model(path, into=model)
    (kernel, *others), wanted = model.get_weights(), list(keras2.expected("cnn", "weight").values())
    np.testing.assert_array_equal(kernel, wanted[0][::-1, ::-1])
    assert all(np.array_equal(one, two) for one, two in zip(others, wanted[1:], strict=True))
