"""Each rule for configurations of Keras 1, 2 and tf.keras: what it makes computes what the old words meant."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from anyrig.errors import AnyrigError
from anyrig.exchange.build import Built, built_model
from anyrig.exchange.legacy.operations import FUNCTIONS
from anyrig.exchange.legacy.own import hard_sigmoid_of_keras_2
from anyrig.formats.contents import Contents
from anyrig.formats.sniff import read_any

Config = dict[str, Any]


def built(config: Any, *, version: str = "1.2.2", compiled: Any = None, **options: Any) -> Built:
    contents = Contents(
        format="keras-h5",
        words="a Keras model in HDF5",
        path=Path("old.h5"),
        tensors=(),
        config=copy.deepcopy(config),
        compile_config=compiled,
        written_by={"keras": version},
    )
    return built_model(contents, **options)


def chain(*items: Config) -> Config:
    return {"class_name": "Sequential", "config": list(items)}


def layer(name: str, /, **config: Any) -> Config:
    return {"class_name": name, "config": {"name": f"the_{name.lower()}", **config}}


def graph(*items: Config, outputs: list[Any], inputs: list[Any] | None = None) -> Config:
    first = items[0]["name"]
    config = {"name": "m", "layers": list(items), "output_layers": outputs}
    return {"class_name": "Model", "config": {**config, "input_layers": inputs or [[first, 0, 0]]}}


def node(name: str, kind: str, calls: list[Any], **config: Any) -> Config:
    return {"class_name": kind, "name": name, "config": {"name": name, **config}, "inbound_nodes": calls}


def source(name: str, *shape: int | None, dtype: str = "float32") -> Config:
    return node(name, "InputLayer", [], batch_input_shape=[None, *shape], input_dtype=dtype, sparse=False)


def rows(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=(3, *shape)).astype("float32")


def assert_same(found: keras.Model, wanted: keras.Model, *inputs: np.ndarray[Any, Any]) -> None:
    """Both compute the same from the same weights."""
    values = [rows(*v.shape, seed=n)[0] * 0.5 for n, v in enumerate(wanted.weights)]
    wanted.set_weights(values)
    found.set_weights(values)
    given = inputs[0] if len(inputs) == 1 else list(inputs)
    for one, two in zip(keras.tree.flatten(found(given)), keras.tree.flatten(wanted(given)), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


KERAS_1: dict[str, tuple[Config, list[Any]]] = {
    "dense": (
        chain(
            layer(
                "Dense",
                output_dim=4,
                init="glorot_uniform",
                activation="relu",
                input_dim=5,
                W_regularizer={"l1": 0.0, "l2": 0.01, "name": "WeightRegularizer"},
                b_constraint={"name": "MaxNorm", "m": 2, "axis": 0},
                bias=True,
                batch_input_shape=[None, 5],
                trainable=True,
                input_dtype="float32",
            ),
            layer("Dropout", p=0.5),
            layer("GaussianNoise", sigma=0.1),
            layer("Activation", activation="softmax"),
        ),
        [keras.Input([5]), layers.Dense(4, "relu"), layers.Softmax()],
    ),
    "convolution": (
        chain(
            layer(
                "Convolution2D",
                nb_filter=3,
                nb_row=3,
                nb_col=2,
                init="he_normal",
                border_mode="same",
                subsample=[2, 1],
                dim_ordering="tf",
                activation="elu",
                batch_input_shape=[None, 6, 6, 2],
                bias=False,
            ),
            layer("MaxPooling2D", pool_size=[2, 2], strides=[2, 2], border_mode="valid", dim_ordering="tf"),
            layer(
                "BatchNormalization", epsilon=1e-3, mode=0, axis=-1, momentum=0.9, gamma_init="one", beta_init="zero"
            ),
            layer("AtrousConvolution2D", nb_filter=2, nb_row=1, nb_col=2, atrous_rate=[1, 2], border_mode="same"),
            layer("Flatten"),
        ),
        [
            keras.Input([6, 6, 2]),
            layers.Conv2D(3, (3, 2), strides=(2, 1), padding="same", activation="elu", use_bias=False),
            layers.MaxPooling2D(),
            layers.BatchNormalization(),
            layers.Conv2D(2, (1, 2), dilation_rate=(1, 2), padding="same"),
            layers.Flatten(),
        ],
    ),
    "recurrent": (
        chain(
            layer("Embedding", input_dim=9, output_dim=4, init="uniform", mask_zero=True, dropout=0.0, input_length=5)
            | {"config": {"name": "e", "input_dim": 9, "output_dim": 4, "init": "uniform", "mask_zero": True}}
        ),
        [layers.Embedding(9, 4, mask_zero=True)],
    ),
    "lstm": (
        chain(
            layer(
                "LSTM",
                output_dim=3,
                init="glorot_uniform",
                inner_init="orthogonal",
                forget_bias_init="one",
                activation="tanh",
                inner_activation="hard_sigmoid",
                W_regularizer=None,
                U_regularizer=None,
                dropout_W=0.0,
                dropout_U=0.0,
                return_sequences=True,
                go_backwards=False,
                stateful=False,
                unroll=False,
                consume_less="cpu",
                input_dim=4,
                input_length=5,
            ),
            layer("TimeDistributedDense", output_dim=2, activation="linear"),
        ),
        [
            keras.Input([5, 4]),
            layers.LSTM(3, recurrent_activation=hard_sigmoid_of_keras_2, return_sequences=True),
            layers.TimeDistributed(layers.Dense(2)),
        ],
    ),
    "pooling_in_one_dimension": (
        chain(
            layer(
                "Convolution1D",
                nb_filter=3,
                filter_length=2,
                subsample_length=2,
                border_mode="valid",
                batch_input_shape=[None, 9, 2],
            ),
            layer("MaxPooling1D", pool_length=2, stride=1, border_mode="valid"),
            layer("UpSampling1D", length=2),
        ),
        [
            keras.Input([9, 2]),
            layers.Conv1D(3, 2, strides=2),
            layers.MaxPooling1D(2, strides=1),
            layers.UpSampling1D(2),
        ],
    ),
}


@pytest.mark.parametrize("case", KERAS_1)
def test_B197_words_of_keras_1_in_a_list_of_layers(case: str) -> None:
    config, wanted = KERAS_1[case]
    twin = keras.Sequential(wanted)
    inputs = np.array([[1, 2, 0, 0, 5]] * 3) if case == "recurrent" else rows(*twin.input_shape[1:])
    model = built(config).model
    model(inputs)
    twin(inputs)
    assert_same(model, twin, inputs)


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("sum", layers.Add()),
        ("mul", layers.Multiply()),
        ("ave", layers.Average()),
        ("max", layers.Maximum()),
        ("concat", layers.Concatenate()),
        ("dot", layers.Dot(-1)),
        ("cos", layers.Dot(-1, normalize=True)),
    ],
)
def test_merge_of_keras_1(mode: str, wanted: Any) -> None:
    branch = [chain(layer("Dense", output_dim=3, batch_input_shape=[None, 2]) | {"class_name": "Dense"})] * 2
    branch[1] = copy.deepcopy(branch[1])
    branch[1]["config"][0]["config"]["name"] = "other"
    found = built(chain(layer("Merge", mode=mode, layers=branch, concat_axis=-1, dot_axes=-1))).model
    left, right = keras.Input([2]), keras.Input([2])
    assert_same(
        found, keras.Model([left, right], wanted([layers.Dense(3)(left), layers.Dense(3)(right)])), rows(2), rows(2)
    )


RECURRENT = {
    "CuDNNGRU": (layer("CuDNNGRU", units=3), layers.GRU(3, reset_after=True)),
    "CuDNNLSTM": (layer("CuDNNLSTM", units=3, return_state=False), layers.LSTM(3)),
    "GRU_without_reset_after": (
        layer("GRU", units=3, recurrent_activation="sigmoid"),
        layers.GRU(3, reset_after=False),
    ),
    "GRU_reset_after": (
        layer("GRU", units=3, reset_after=True, recurrent_activation="sigmoid", implementation=1, time_major=False),
        layers.GRU(3, reset_after=True),
    ),
    "hard_sigmoid": (
        layer("LSTM", units=3, recurrent_activation="hard_sigmoid"),
        layers.LSTM(3, recurrent_activation=hard_sigmoid_of_keras_2),
    ),
    "hard_sigmoid_both_ways": (
        layer("Bidirectional", layer=layer("LSTM", units=3, recurrent_activation="hard_sigmoid"), merge_mode="ave"),
        layers.Bidirectional(layers.LSTM(3, recurrent_activation=hard_sigmoid_of_keras_2), merge_mode="ave"),
    ),
    "cells": (
        layer("RNN", cell=[layer("GRUCell", units=2, recurrent_activation="hard_sigmoid"), layer("LSTMCell", units=3)]),
        layers.RNN(
            [layers.GRUCell(2, reset_after=False, recurrent_activation=hard_sigmoid_of_keras_2), layers.LSTMCell(3)]
        ),
    ),
}


@pytest.mark.parametrize("case", RECURRENT)
def test_B027_B035_recurrent_layers_of_keras_2(case: str) -> None:
    config, wanted = RECURRENT[case]
    start = layer("Masking", mask_value=0.0, batch_input_shape=[None, 4, 2], dtype="float32")
    twin = keras.Sequential([keras.Input([4, 2]), layers.Masking(), wanted])
    assert_same(built(chain(start, config), version="2.2.4").model, twin, rows(4, 2))


def test_the_hard_sigmoid_of_keras_2_is_not_that_of_keras_3(tmp_path: Path) -> None:
    x = np.array([-3.0, -2.5, -1.0, 0.0, 1.0, 2.5, 3.0], "float32")[None]
    config = chain(layer("Activation", activation="hard_sigmoid", batch_input_shape=[None, 7]))
    model = built(config, version="2.15.0").model
    np.testing.assert_allclose(model(x), [[0, 0, 0.3, 0.5, 0.7, 1, 1]], atol=1e-7)
    assert abs(float(keras.activations.hard_sigmoid(x)[0, 2]) - 0.3) > 0.03
    model.save(tmp_path / "again.keras")
    again = built_model(read_any(tmp_path / "again.keras")).model
    np.testing.assert_array_equal(again(x), model(x))


def test_argument_values_that_had_another_name() -> None:
    x = rows(4)
    for config, wanted in (
        (layer("LeakyReLU", alpha=0.25), np.where(x > 0, x, 0.25 * x)),
        (layer("ThresholdedReLU", theta=0.5), np.where(x > 0.5, x, 0)),
        (layer("ReLU", max_value=1.0, negative_slope=0.0, threshold=0.0), np.clip(x, 0, 1)),
        (layer("Activation", activation="relu6"), np.clip(x, 0, 6)),
        (layer("Activation", activation="swish"), x / (1 + np.exp(-x))),
    ):
        config["config"]["batch_input_shape"] = [None, 4]
        np.testing.assert_allclose(built(chain(config), version="2.3.1").model(x), wanted, rtol=1e-6, atol=1e-7)


REFUSED = {
    "time_major": (layer("LSTM", units=2, time_major=True), r"the_lstm.*time_major=True"),
    "groups": (layer("SeparableConv2D", filters=2, kernel_size=3, groups=2), r"the_separableconv2d.*groups=2"),
    "virtual": (layer("BatchNormalization", virtual_batch_size=2), "the_batchnormalization.*virtual_batch_size=2"),
    "mode": (layer("BatchNormalization", mode=1), "the_batchnormalization.*mode=1"),
    "unknown": (layer("Dense", units=2, sparsity="high"), "the_dense.*sparsity='high'"),
    "highway": (layer("Highway", activation="linear"), "the_highway.*Highway"),
    "local": (layer("LocallyConnected1D", filters=2, kernel_size=2), "LocallyConnected1D"),
    "inside": (layer("TimeDistributed", layer=layer("Dense", units=1, zoo=3)), "the_timedistributed/the_dense.*zoo=3"),
    "nested": (chain(layer("MaxoutDense", output_dim=3)), "MaxoutDense"),
    "regularizer": (layer("Dense", units=1, kernel_regularizer=layer("OwnOne")), "OwnOne"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_equal_is_refused_by_layer_and_argument(case: str) -> None:
    config, words = REFUSED[case]
    with pytest.raises(AnyrigError, match=rf"(?s){words}.*into="):
        built(chain(config), version="2.3.0")


def test_B045_an_unknown_argument_that_says_nothing_is_left_out_with_a_note() -> None:
    found = built(chain(layer("Dense", units=2, quantum=None, batch_input_shape=[None, 3])), version="2.3.0")
    assert found.notes == ("the_dense: quantum=None was left out, which Keras no longer has",)


def test_B020_shared_layers_are_called_in_turn() -> None:
    """A(B(A(B(x)))) with a nested model whose calls older Keras numbered from 1."""
    inner = chain(layer("Dense", units=3, batch_input_shape=[None, 3]))["config"]
    config = graph(
        source("x", 3),
        node("a", "Dense", [[["b", 1, 0]], [["b", 2, 0]]], units=3, activation="tanh"),
        {"class_name": "Sequential", "name": "b", "config": inner, "inbound_nodes": [[["x", 0, 0]], [["a", 0, 0]]]},
        outputs=[["a", 1, 0], ["b", 2, 0]],
    )
    x = keras.Input([3])
    a, b = layers.Dense(3, "tanh"), layers.Dense(3)
    once = a(b(x))
    model = built(config, version="2.2.0").model
    twin = keras.Model(x, [a(b(once)), b(once)])
    for weights in (twin, model):
        assert len(weights.weights) == 4
    order = [twin.layers.index(a) < twin.layers.index(b), model.layers.index(model.get_layer("a"))]
    values = {"a": [rows(3, seed=1), rows(3, seed=2)[0]], "b": [rows(3, seed=3), rows(3, seed=4)[0]]}
    a.set_weights(values["a"]), b.set_weights(values["b"])
    model.get_layer("a").set_weights(values["a"]), model.get_layer("b").set_weights(values["b"])
    for found, wanted in zip(model(rows(3)), twin(rows(3)), strict=True):
        np.testing.assert_array_equal(found, wanted, err_msg=str(order))


@pytest.mark.parametrize("form", ["list", "argument"])
def test_states_that_are_handed_on_to_a_recurrent_layer(form: str) -> None:
    states = [["first", 0, 1], ["first", 0, 2]]
    call = [["x", 0, 0], *states] if form == "list" else [["x", 0, 0, {"initial_state": states, "mask": None}]]
    config = graph(
        source("x", 4, 2),
        node("first", "LSTM", [[["x", 0, 0, {}]]], units=3, return_state=True, recurrent_activation="sigmoid"),
        node("second", "LSTM", [call], units=3, recurrent_activation="sigmoid"),
        outputs=[["second", 0, 0]],
    )
    x = keras.Input([4, 2])
    _, *held = layers.LSTM(3, return_state=True)(x)
    assert_same(built(config, version="2.2.4").model, keras.Model(x, layers.LSTM(3)(x, initial_state=held)), rows(4, 2))


def test_inputs_of_one_dictionary_and_constants() -> None:
    config = graph(
        source("x", 3),
        node(
            "minus",
            "TFOpLambda",
            [["_CONSTANT_VALUE", -1, 2.0, {"y": ["x", 0, 0], "name": None}]],
            function="math.subtract",
        ),
        outputs=["minus", 0, 0],
        inputs=["x", 0, 0],
    )
    np.testing.assert_array_equal(built(config, version="2.4.0").model(rows(3)), 2.0 - rows(3))


def test_names_with_slashes_are_renamed() -> None:
    config = chain(layer("Dense", units=2, batch_input_shape=[None, 2]) | {"class_name": "Dense"})
    config["config"][0]["config"]["name"] = "block/dense"
    found = built(config, version="2.3.0")
    assert found.renamed == {"block/dense": "block_dense"}
    assert [item.name for item in found.model.layers] == ["block_dense"]


@pytest.mark.parametrize(
    "stored",
    [
        "mixed_float16",
        {"class_name": "Policy", "config": {"name": "mixed_float16"}},
        {"class_name": "PolicyV1", "config": {"name": "mixed_float16", "loss_scale": None}},
        {"module": "keras.mixed_precision", "class_name": "Policy", "config": {"name": "mixed_float16"}},
    ],
)
def test_policies_of_any_form(stored: Any) -> None:
    model = built(chain(layer("Dense", units=2, batch_input_shape=[None, 2], dtype=stored)), version="2.6.0").model
    assert model.layers[-1].dtype_policy.name == "mixed_float16"


def tf_node(kernel: str, constants: Config, **attributes: Any) -> Config:
    stored = json.dumps({"name": "n", "op": kernel, "input": ["x"], "attr": attributes})
    return graph(
        source("x", 4, 3), node("n", "TensorFlowOpLayer", [[["x", 0, 0, {}]]], node_def=stored, constants=constants),
        outputs=[["n", 0, 0]],
    )  # fmt: skip


X = rows(4, 3)
NODES = {
    "AddV2": (tf_node("AddV2", {"1": 2.0}), X + 2),
    "Sub_first": (tf_node("Sub", {"0": 2.0}), 2 - X),
    "Mul_list": (tf_node("Mul", {"1": [1.0, 2.0, 3.0]}), X * np.array([1, 2, 3], "float32")),
    "Mean": (tf_node("Mean", {"1": [1]}, keep_dims={"b": True}), X.mean(1, keepdims=True)),
    "Sum": (tf_node("Sum", {"1": 1}), X.sum(1)),
    "Reshape": (tf_node("Reshape", {"1": [-1, 12]}), X.reshape(-1, 12)),
    "Cast": (tf_node("Cast", {}, DstT={"type": "DT_INT32"}), X.astype("int32")),
    "ExpandDims": (tf_node("ExpandDims", {"1": 1}), X[:, None]),
    "StridedSlice": (
        tf_node(
            "StridedSlice",
            {"1": [0, 1, 0], "2": [0, 3, 0], "3": [1, 1, 1]},
            begin_mask={"i": "5"},
            end_mask={"i": "1"},
            shrink_axis_mask={"i": "4"},
        ),
        X[:, 1:3, 0],
    ),
    "Transpose": (tf_node("Transpose", {"1": [0, 2, 1]}), X.transpose(0, 2, 1)),
    "Softmax": (tf_node("Softmax", {}), np.exp(X) / np.exp(X).sum(-1, keepdims=True)),
    "Relu": (tf_node("Relu", {}), np.maximum(X, 0)),
    "MatMul": (tf_node("BatchMatMulV2", {"1": np.ones((2, 3)).tolist()}, adj_y={"b": True}), X @ np.ones((3, 2))),
}


@pytest.mark.parametrize("case", NODES)
def test_nodes_of_tensorflow_2_0_to_2_3(case: str) -> None:
    config, wanted = NODES[case]
    found = np.asarray(built(config, version="2.3.0-tf").model(X))
    assert found.dtype == wanted.dtype or case == "MatMul"
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)


def test_an_operation_without_a_rule_is_refused_by_name() -> None:
    with pytest.raises(AnyrigError, match=r"(?s)'n'.*Fft3000.*OPEN-021"):
        built(tf_node("Fft3000", {}), version="2.3.0")
    config = graph(
        source("x", 3), node("f", "TFOpLambda", [["x", 0, 0, {}]], function="io.read_file"), outputs=[["f", 0, 0]]
    )
    with pytest.raises(AnyrigError, match=r"(?s)'f'.*io\.read_file.*OPEN-021"):
        built(config, version="2.9.0")


ARGUMENTS: dict[str, Config] = {
    **{name: {"dtype": "int32"} for name in ("cast", "compat.v1.cast")},
    "__operators__.getitem": {"slice_spec": [{"start": 1, "stop": None, "step": None}, 0]},
    **{name: {"multiples": [1, 2, 1]} for name in ("tile",)},
    "broadcast_to": {"shape": [3, 4, 3]},
    **{name: {"shape": [-1, 6]} for name in ("reshape",)},
    **{name: {"paddings": [[0, 0], [1, 2], [0, 1]]} for name in ("pad", "compat.v1.pad")},
    **{name: {"clip_value_min": -0.5, "clip_value_max": 0.5} for name in ("clip_by_value",)},
    **{name: {"indices": [0, 2], "axis": 1} for name in ("gather", "compat.v1.gather")},
    **{name: {"axis": 1} for name in ("expand_dims", "compat.v1.expand_dims")},
    **{name: {"num_or_size_splits": [1, 2], "axis": 2} for name in ("split",)},
    **{name: {"axis": -1} for name in ("math.l2_normalize", "nn.l2_normalize", "linalg.l2_normalize")},
    **{name: {"size": [6, 6]} for name in ("image.resize",)},
    **{name: {"perm": [0, 2, 1]} for name in ("transpose", "compat.v1.transpose")},
    **{name: {"axis": 1} for name in ("math.argmax", "compat.v1.argmax", "argmax", "math.argmin")},
    **{name: {"axis": 1} for name in ("compat.v1.argmin", "argmin")},
    **{name: {"axis": 1} for name in ("math.cumsum", "cumsum")},
    "one_hot": {"depth": 4},
}
TWO = {
    *("add", "subtract", "multiply", "divide", "truediv", "realdiv", "div", "floordiv", "floor_div", "mod", "floormod"),
    *("pow", "maximum", "minimum", "squared_difference", "equal", "not_equal", "greater", "greater_equal", "less"),
    *("less_equal", "eq", "ne", "logical_and", "logical_or"),
}


def _tensorflow(name: str) -> Callable[..., Any]:
    found: Any = {"__operators__.add": tf.add, "__operators__.eq": tf.equal, "__operators__.ne": tf.not_equal}.get(name)
    if found is None:
        found = tf
        for part in name.split("."):
            found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_compute_what_tensorflow_computes(name: str) -> None:
    x: Any = np.abs(X) + 0.25 if any(w in name for w in ("log", "sqrt", "pow", "mod")) else X
    first: list[Any] = [x]
    extra: Config
    last = name.rpartition(".")[2]
    if "logical" in name or name.endswith(("reduce_any", "reduce_all")):
        first = [x > 0]
    if name in ("concat",):
        first, extra = [[x, x + 1]], {"axis": -1}
    elif name in ("stack", "math.add_n"):
        first, extra = [[x, x + 1]], {}
    elif "matmul" in name:
        first, extra = [x, x], {"transpose_b": True}
    elif last == "where":
        first, extra = [x > 0, x, -x], {}
    elif name == "one_hot":
        first, extra = [np.array([0, 3])], ARGUMENTS[name]
    elif name == "image.resize":
        first, extra = [rows(3, 3, 2)], ARGUMENTS[name]
    elif name.endswith("squeeze"):
        first, extra = [x[:, :1]], {"axis": [1]}
    elif last.startswith("reduce_"):
        extra = {"axis": [1, 2], "keepdims": True}
    elif last in TWO:
        first, extra = [first[0], first[0][:1]], {}
    else:
        extra = ARGUMENTS.get(name, {})
    found = FUNCTIONS[name](*[_tensors(item) for item in first], **extra)
    if name == "__operators__.getitem":
        wanted: Any = x[1:, 0]
    else:
        wanted = _tensorflow(name)(*first, **extra)
    for one, two in zip(keras.tree.flatten(found), tf.nest.flatten(wanted), strict=True):
        assert np.asarray(one).dtype == np.asarray(two).dtype
        np.testing.assert_allclose(np.asarray(one), np.asarray(two), rtol=1e-5, atol=1e-6)


def _tensors(value: Any) -> Any:
    return [tf.constant(item) for item in value] if isinstance(value, list) else tf.constant(value)


DENSE = chain(layer("Dense", units=2, batch_input_shape=[None, 2]))


def compiled(optimizer: Any, loss: Any = "mse", **others: Any) -> Built:
    stored = {"optimizer_config": optimizer, "loss": loss, "loss_weights": None, "sample_weight_mode": None, **others}
    return built(DENSE, version="2.1.0", compiled=stored)


def test_optimizers_of_older_keras() -> None:
    made = compiled({"class_name": "Adam", "config": {"lr": 0.25, "beta_1": 0.5, "epsilon": None, "decay": 0.0}}).model
    assert (float(made.optimizer.learning_rate), made.optimizer.beta_1, made.optimizer.epsilon) == (0.25, 0.5, 1e-7)
    made = compiled({"class_name": "SGD", "config": {"lr": 0.5, "decay": 1.0, "momentum": 0.5, "nesterov": True}}).model
    assert float(made.optimizer._learning_rate(3)) == 0.125
    made = compiled({"class_name": "nadam", "config": {"lr": 0.5, "schedule_decay": 0.004}}).model
    assert isinstance(made.optimizer, keras.optimizers.Nadam)
    inner = {"class_name": "Adam", "config": {"learning_rate": 0.5}}
    scaled = {
        "class_name": "LossScaleOptimizer",
        "config": {"inner_optimizer": inner, "initial_scale": 8.0, "dynamic": True},
    }
    made = compiled(scaled).model
    assert (made.optimizer.initial_scale, type(made.optimizer.inner_optimizer).__name__) == (8.0, "Adam")
    notes = compiled({"class_name": "Nadam", "config": {"lr": 0.5, "schedule_decay": 0.5}}).notes
    assert notes == ("it is not compiled: the optimizer Nadam has schedule_decay=0.5, which Keras 3 does not have",)
    assert "TFOptimizer" in compiled({"class_name": "TFOptimizer", "config": {}}).notes[0]


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [
        ("mse", "mse"),
        ("kullback_leibler_divergence", "kl_divergence"),
        ("logcosh", "log_cosh"),
        ("cosine_proximity", "cosine_similarity"),
        ("huber_loss", "huber"),
        ({"class_name": "LossFunctionWrapper", "config": {"fn": "mean_squared_error"}}, "mean_squared_error"),
        ({"class_name": "function", "config": "logcosh", "module": "builtins"}, "log_cosh"),
    ],
)
def test_B042_losses_by_their_old_names(loss: Any, wanted: str) -> None:
    made = compiled({"class_name": "SGD", "config": {"lr": 0.5}}, loss, metrics=["acc", "mae", "cosine_proximity"])
    assert (made.notes, made.model.loss) == ((), wanted)
    assert {"loss", "acc", "mae"} <= set(made.model.evaluate(rows(2), rows(2), verbose=0, return_dict=True))


def test_B042_a_loss_of_ones_own_keeps_nobody_from_predicting() -> None:
    sgd = {"class_name": "SGD", "config": {"lr": 0.5}}
    assert "'my_loss' is not Keras's own" in compiled(sgd, "my_loss").notes[0]
    stored = {"optimizer_config": sgd, "loss": "my_loss"}
    made = built(DENSE, version="2.1.0", compiled=stored, custom_objects={"my_loss": keras.losses.mean_squared_error})
    assert (made.notes, made.model.compiled) == ((), True)
    evil = {"class_name": "Lambda", "config": {"function": ["4wAA", None, None], "function_type": "lambda"}}
    made = compiled(sgd, evil)
    assert (made.model.compiled, "Lambda is not among" in made.notes[0]) == (False, True)


def test_B050_B051_objects_of_the_caller_take_their_places() -> None:
    class Scaled(layers.Layer):
        def __init__(self, factor: float, **options: Any) -> None:
            super().__init__(**options)
            self.factor = factor

        def call(self, x: Any) -> Any:
            return x * self.factor

        def get_config(self) -> Config:
            return {**super().get_config(), "factor": self.factor}

    def thrice(x: Any) -> Any:
        return x * 3.0

    def plus(x: Any, much: float) -> Any:
        return x + much

    config = chain(
        layer("Scaled", factor=2.0, batch_input_shape=[None, 2], dtype="float32"),
        layer("Activation", activation="thrice"),
        layer("Lambda", function=["4wAA", None, None], function_type="lambda", arguments={"much": 1.0}),
    )
    handed = {"Scaled": Scaled, "thrice": thrice, "the_lambda": plus}
    made = built(config, version="2.2.0", custom_objects=handed).model
    np.testing.assert_array_equal(made(rows(2)), rows(2) * 6.0 + 1.0)
    with pytest.raises(AnyrigError, match=r"(?s)the_lambda.*custom_objects=\{'the_lambda': FUNCTION\}.*OPEN-003"):
        built(config, version="2.2.0", custom_objects={"Scaled": Scaled, "thrice": thrice})
    with pytest.raises(AnyrigError, match=r"(?s)the class Scaled.*OPEN-00"):
        built(config, version="2.2.0")
    with pytest.raises(AnyrigError, match=r"(?s)the_lambda.*OPEN-021"):
        built(config, version="2.2.0", custom_objects={"Scaled": Scaled, "thrice": thrice}, trust="program")


@pytest.mark.parametrize(("size", "fits"), [([None, 9, 9, 2], True), ([None, 10, 10, 2], False), ([3, 9, 9], False)])
def test_a_deconvolution_that_was_told_a_size_makes_that_size(size: list[int | None], fits: bool) -> None:
    told = layer(
        "Deconvolution2D",
        nb_filter=2,
        nb_row=3,
        nb_col=3,
        subsample=[2, 2],
        border_mode="valid",
        dim_ordering="tf",
        output_shape=size,
        batch_input_shape=[None, 4, 4, 1],
    )
    if fits:
        assert built(chain(told)).model.output_shape == (None, 9, 9, 2)
        return
    with pytest.raises(AnyrigError, match=r"(?s)the_deconvolution2d.*output_shape=.*\[None, 9, 9, 2\].*OPEN-021"):
        built(chain(told))


THEIRS = """
import keras

class Doubling(keras.layers.Layer):
    def call(self, inputs):
        return inputs * 2.0
"""


def test_modules_that_a_file_names_are_imported_only_when_code_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_layers.py").write_text(THEIRS)
    monkeypatch.delitem(sys.modules, "their_layers", raising=False)
    doubling = layer("Doubling", batch_input_shape=[None, 2]) | {"registered_name": "theirs>Doubling"}
    with pytest.raises(AnyrigError, match=r"(?s)their_layers\.Doubling, which cannot.*custom_objects=.*OPEN-023"):
        built(chain(doubling | {"module": "their_layers"}), version="2.15.0", trust="code")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(AnyrigError, match="OPEN-002"):
        built(chain(doubling | {"module": "their_layers"}), version="2.15.0")
    assert "their_layers" not in sys.modules
    with pytest.raises(AnyrigError, match=r"(?s)their_layers\.Tripling, which cannot.*OPEN-023"):
        built(chain(doubling | {"module": "their_layers", "class_name": "Tripling"}), version="2.15.0", trust="code")
    made = built(chain(doubling | {"module": "their_layers"}), version="2.15.0", trust="code").model
    np.testing.assert_array_equal(made(rows(2)), rows(2) * 2.0)


@pytest.mark.parametrize("file", ["new.keras", "new.h5"])
def test_models_of_keras_3_are_made_by_keras_under_the_same_checks(file: str, tmp_path: Path) -> None:
    inputs = keras.Input([4, 3])
    x = layers.Bidirectional(layers.LSTM(2, recurrent_activation="hard_sigmoid"))(inputs) * 2.0
    x = keras.Sequential([keras.Input([4]), layers.Dense(2, "relu", kernel_regularizer="l2")])(x)
    model = keras.Model(inputs, layers.Dense(1)(x))
    model.compile("adam", "mse", metrics=["mae"])
    model.save(tmp_path / file)
    made = built_model(read_any(tmp_path / file))
    assert_same(made.model, model, rows(4, 3))
    assert (made.notes, made.model.compiled, type(made.model.optimizer).__name__) == ((), True, "Adam")


def test_graphs_that_cannot_be_are_named_errors() -> None:
    loop = graph(source("x", 3), node("a", "Dense", [[["a", 0, 0]]], units=1), outputs=[["a", 0, 0]])
    lost = graph(source("x", 3), node("a", "Dense", [[["b", 0, 0]]], units=1), outputs=[["a", 0, 0]])
    odd = graph(source("x", 3), node("a", "Dense", [[["x", "y"]]], units=1), outputs=[["a", 0, 0]])
    twice = graph(source("x", 3), source("x", 3), outputs=[["x", 0, 0]])
    wrong = chain(layer("Dense", units="many", batch_input_shape=[None, 2]))
    for config in (loop, lost, odd, twice, wrong):
        with pytest.raises(AnyrigError, match="OPEN-022"):
            built(config, version="2.2.0")


@pytest.mark.parametrize(
    "big",
    [
        layer("Dense", units=10**12, batch_input_shape=[None, 10**6]),
        layer("Embedding", input_dim=10**11, output_dim=64, batch_input_shape=[None, 3]),
        layer("TimeDistributed", layer=layer("Dense", units=10**10), batch_input_shape=[None, 3, 10**5]),
        layer("Bidirectional", layer=layer("LSTM", units=10**8), batch_input_shape=[None, 3, 2]),
    ],
)
def test_CVE_2026_0897_no_room_is_made_for_what_the_file_does_not_hold(big: Config) -> None:
    with pytest.raises(AnyrigError, match=r"(?s)far more than it holds.*OPEN-005"):
        built(chain(big), version="2.3.0")
    new = keras.Sequential([keras.Input([3]), layers.Dense(2)])
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(new)))
    config["config"]["layers"][1]["config"]["units"] = 10**12
    with pytest.raises(AnyrigError, match=r"(?s)far more than it holds.*OPEN-005"):
        built(config, version="3.12.0")
    assert layers.Layer.add_weight.__module__.startswith("keras.")


def test_a_function_of_constants_alone_is_not_run() -> None:
    call = ["_CONSTANT_VALUE", -1, [1.0], {"multiples": [10**12]}]
    config = graph(source("x", 3), node("t", "TFOpLambda", [call], function="tile"), outputs=[["t", 0, 0]])
    with pytest.raises(AnyrigError, match=r"(?s)without any input.*OPEN-022"):
        built(config, version="2.9.0")


def test_CVE_2026_12479_names_of_layers_are_no_paths() -> None:
    config = chain(layer("Dense", units=2, batch_input_shape=[None, 2]))
    config["config"][0]["config"]["name"] = "../../evil"
    assert [item.name for item in built(config, version="2.3.0").model.layers] == [".._.._evil"]
    new = keras.Sequential([keras.Input([3]), layers.Dense(2)])
    stored = json.loads(json.dumps(keras.saving.serialize_keras_object(new)))
    stored["config"]["layers"][1]["config"]["name"] = "../../evil"
    with pytest.raises(AnyrigError, match="OPEN-022"):
        built(stored, version="3.12.0")
