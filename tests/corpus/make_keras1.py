"""Writes tests/corpus/keras1: files as Keras 1 wrote them, with what `tf-keras` computes from the same files.

Run by a Python that has `tf-keras==2.21.*` and `tensorflow-cpu==2.21.*` and not this project:

    TF_USE_LEGACY_KERAS=1 python tests/corpus/make_keras1.py [NAME...]

Keras 1 runs nowhere today, so NAME.h5 is put together here: its description, its names and layouts of arrays, random
numbers. NAME.npz has `inputs`, `outputs`, and `weight/NN` in the order of `get_weights()`, after a model of `tf-keras`
with the same layers loaded NAME.h5 by its converter of Keras 1 files.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import h5py
import numpy as np
import tf_keras as keras  # type: ignore[import-not-found,unused-ignore]

HERE = Path(__file__).parent / "keras1"
layers = keras.layers

Array = np.ndarray[Any, Any]
Weights = list[tuple[str, tuple[int, ...]]]
Layer = tuple[dict[str, Any], Weights, Any]
"""The layer in the words of Keras 1, its arrays by name and shape in the file's order, and the layer of `tf-keras`."""


def described(kind: str, name: str, /, **config: Any) -> dict[str, Any]:
    return {"class_name": kind, "config": {"name": name, "trainable": True, **config}}


def gates(name: str, order: str, inputs: int, units: int, *window: int) -> Weights:
    made: Weights = []
    for gate in order:
        made += [(f"{name}_W_{gate}", (*window, inputs, units)), (f"{name}_U_{gate}", (*window, units, units))]
        made.append((f"{name}_b_{gate}", (units,)))
    return made


def lstm(name: str, inputs: int, units: int, **config: Any) -> dict[str, Any]:
    return described(
        *("LSTM", name), output_dim=units, init="glorot_uniform", inner_init="orthogonal", forget_bias_init="one",
        activation="tanh", inner_activation="hard_sigmoid", W_regularizer=None, U_regularizer=None, b_regularizer=None,
        dropout_W=0.0, dropout_U=0.0, go_backwards=False, stateful=False, unroll=False, consume_less="cpu",
        input_dim=inputs, input_length=None, **config,
    )  # fmt: skip


def gru(name: str, inputs: int, units: int, **config: Any) -> dict[str, Any]:
    found = lstm(name, inputs, units, **config)["config"]
    return described("GRU", name, **{k: v for k, v in found.items() if k not in _NOT_OF_GRU})


_NOT_OF_GRU = ("forget_bias_init", "name", "trainable")


def dense(name: str, inputs: int, units: int) -> Layer:
    config = described("Dense", name, output_dim=units, init="glorot_uniform", activation="linear", bias=True)
    return config, [(f"{name}_W", (inputs, units)), (f"{name}_b", (units,))], layers.Dense(units)


def recurrent() -> Iterator[Layer]:
    config = lstm("lstm_1", 3, 4, return_sequences=True, batch_input_shape=[None, 5, 3])
    old = {"recurrent_activation": "hard_sigmoid", "return_sequences": True}
    yield config, gates("lstm_1", "icfo", 3, 4), layers.LSTM(4, **old)
    config = gru("gru_1", 4, 3, return_sequences=True)
    yield config, gates("gru_1", "zrh", 4, 3), layers.GRU(3, reset_after=False, **old)
    found = {k: v for k, v in config["config"].items() if k not in ("name", "trainable", "inner_activation")}
    config = described("SimpleRNN", "simplernn_1", **{**found, "output_dim": 2, "return_sequences": False})
    shapes: Weights = [("simplernn_1_W", (3, 2)), ("simplernn_1_U", (2, 2)), ("simplernn_1_b", (2,))]
    yield config, shapes, layers.SimpleRNN(2)
    yield dense("dense_1", 2, 2)


def bidirectional() -> Iterator[Layer]:
    inner = lstm("lstm_1", 3, 3, return_sequences=True)
    config = described("Bidirectional", "bidirectional_1", merge_mode="concat", layer=inner)
    config["config"]["batch_input_shape"] = [None, 5, 3]
    made = layers.LSTM(3, recurrent_activation="hard_sigmoid", return_sequences=True)
    both = gates("forward_lstm_1", "icfo", 3, 3) + gates("backward_lstm_1", "icfo", 3, 3)
    yield config, both, layers.Bidirectional(made)
    inner = dense("dense_1", 6, 2)[0]
    shapes: Weights = [("dense_1_W", (6, 2)), ("dense_1_b", (2,))]
    yield (
        described("TimeDistributed", "timedistributed_1", layer=inner),
        shapes,
        layers.TimeDistributed(layers.Dense(2)),
    )


def convolution(kind: str, name: str, order: str, channels: int, **config: Any) -> Layer:
    """Three filters on 3 x 3, so that with three channels nothing but the rules tells the axes apart."""
    th = order == "th"
    shape = (3, channels, 3, 3) if th else (3, 3, channels, 3)
    found = described(
        *(kind, name), nb_filter=3, nb_row=3, nb_col=3, init="glorot_uniform", activation="tanh", border_mode="valid",
        subsample=[1, 1], dim_ordering=order, W_regularizer=None, b_regularizer=None, activity_regularizer=None,
        W_constraint=None, b_constraint=None, bias=True, **config,
    )  # fmt: skip
    now = {"Convolution2D": layers.Conv2D, "Deconvolution2D": layers.Conv2DTranspose}[kind]
    layer = now(3, 3, activation="tanh", data_format="channels_first" if th else "channels_last")
    return found, [(f"{name}_W", shape), (f"{name}_b", (3,))], layer


def pictures(order: str, channels: int = 3) -> Iterator[Layer]:
    inputs = [channels, 6, 7] if order == "th" else [6, 7, channels]
    yield convolution("Convolution2D", "convolution2d_1", order, channels, batch_input_shape=[None, *inputs])
    outputs = [None, 3, 6, 7] if order == "th" else [None, 6, 7, 3]
    yield convolution("Deconvolution2D", "deconvolution2d_1", order, 3, output_shape=outputs)
    yield described("Flatten", "flatten_1"), [], layers.Flatten()
    yield dense("dense_1", 126, 2)


def signals() -> Iterator[Layer]:
    """Kernels of Convolution1D as Keras 1.2 wrote them, then as 1.0 did."""
    for number, (shape, more) in enumerate(
        [((2, 1, 3, 4), {"batch_input_shape": [None, 7, 3]}), ((5, 4, 2, 1), {})], start=1
    ):
        name, filters = f"convolution1d_{number}", 3 + number
        config = described(
            *("Convolution1D", name), nb_filter=filters, filter_length=2, init="uniform", activation="relu",
            border_mode="valid", subsample_length=1, bias=True, input_dim=None, input_length=None, **more,
        )  # fmt: skip
        yield config, [(f"{name}_W", shape), (f"{name}_b", (filters,))], layers.Conv1D(filters, 2, activation="relu")


def moving() -> Iterator[Layer]:
    config = described(
        *("ConvLSTM2D", "convlstm2d_1"), nb_filter=2, nb_row=3, nb_col=3, init="he_normal", inner_init="orthogonal",
        forget_bias_init="one", activation="tanh", inner_activation="hard_sigmoid", dim_ordering="tf",
        border_mode="same", subsample=[1, 1], return_sequences=False, go_backwards=False, stateful=False,
        batch_input_shape=[None, 3, 5, 5, 2],
    )  # fmt: skip
    layer = layers.ConvLSTM2D(2, 3, padding="same", recurrent_activation="hard_sigmoid")
    yield config, gates("convlstm2d_1", "icfo", 2, 2, 3, 3), layer


INPUTS: dict[str, tuple[int, ...]] = {
    "recurrent": (5, 3),
    "bidirectional": (5, 3),
    "signals": (7, 3),
    "moving": (3, 5, 5, 2),
    "pictures": (6, 7, 3),
    "pictures_th": (3, 6, 7),
    "pictures_theano": (3, 6, 7),
}
MODELS: dict[str, Callable[[], Iterator[Layer]]] = {
    "recurrent": recurrent,
    "bidirectional": bidirectional,
    "signals": signals,
    "moving": moving,
    "pictures": lambda: pictures("tf"),
    "pictures_th": lambda: pictures("th"),
    "pictures_theano": lambda: pictures("th"),
}


def write(name: str) -> None:
    keras.backend.clear_session()
    made = list(MODELS[name]())
    path = HERE / f"{name}.h5"
    _write_file(path, made, b"theano" if name.endswith("_theano") else None)
    model = keras.Sequential([keras.Input(INPUTS[name]), *(layer for _, _, layer in made)])
    model.load_weights(path)
    if name.endswith("_theano"):
        _flip(model)
    inputs = np.random.default_rng(1).normal(size=(4, *INPUTS[name])).astype("float32")
    found: dict[str, Any] = {"inputs": inputs, "outputs": model.predict(inputs, verbose=0)}
    found |= {f"weight/{n:02d}": array for n, array in enumerate(model.get_weights())}
    np.savez_compressed(HERE / f"{name}.npz", **found)


def _flip(model: Any) -> None:
    """Turn the windows, which Keras 2 did while it had several backends, and `tf-keras` no longer does."""
    for layer in model.layers:
        if isinstance(layer, layers.Conv2D):
            kernel, bias = layer.get_weights()
            layer.set_weights([kernel[::-1, ::-1], bias])


def _write_file(path: Path, made: Sequence[Layer], backend: bytes | None) -> None:
    """Write what `model.save` of Keras 1.2 did: its version stands beside the weights, and not with them."""
    random = np.random.default_rng(0)
    with h5py.File(path, "w", libver="earliest") as file:
        file.attrs["keras_version"] = b"1.2.2"
        file.attrs["model_config"] = json.dumps(
            {"class_name": "Sequential", "config": [config for config, _, _ in made]}
        ).encode()
        root = file.create_group("model_weights")
        if backend is not None:
            root.attrs["backend"] = backend
        root.attrs["layer_names"] = [config["config"]["name"].encode() for config, _, _ in made]
        for config, shapes, _ in made:
            group = root.create_group(config["config"]["name"])
            group.attrs["weight_names"] = np.array([f"{name}:0".encode() for name, _ in shapes], dtype="S64")
            for name, shape in shapes:
                group[f"{name}:0"] = (random.normal(size=shape) * 0.5).astype("float32")


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for each in sys.argv[1:] or MODELS:
        write(each)
        print(each, (HERE / f"{each}.h5").stat().st_size)
