"""Failures that others reported of saving, sending and opening files; each name begins with the ids of the reports."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import anyrig
from anyrig.cli.main import run
from anyrig.errors import AnyrigError
from anyrig.exchange.open import open_with_report
from anyrig.formats.sniff import read_any
from tests.unit.state_models import state_of

layers = keras.layers
SUFFIXES = [".keras", ".h5", ".weights.h5", ".safetensors", ".ckpt"]


def block(name: str) -> keras.Model:
    x = keras.Input((6, 3))
    return keras.Model(x, layers.BatchNormalization()(layers.Conv1D(3, 2, padding="same")(x)), name=name)


def three_deep() -> keras.Model:
    inner, middle = block("inner"), keras.Sequential([keras.Input((6, 3)), block("first")], name="middle")
    x = keras.Input((6, 3))
    nested = keras.Model(x, inner(middle(x)), name="nested")
    nested.get_layer("middle").trainable = False
    y = keras.Input((6, 3))
    return keras.Model(y, layers.Dense(2, name="head")(nested(y)))


def used_twice() -> keras.Model:
    part, a, b = block("part"), keras.Input((6, 3), name="a"), keras.Input((6, 3), name="b")
    return keras.Model([a, b], layers.Dense(2, name="head")(layers.Subtract()([part(a), part(b)])))


def attending() -> keras.Model:
    x = keras.Input((6, 4))
    y = layers.MultiHeadAttention(2, 3, name="attention")(x, x)
    return keras.Model(x, layers.EinsumDense("abc,cd->abd", (None, 2), name="out")(y))


def weights_of(model: keras.Model) -> dict[str, Any]:
    return {name: value[2] for name, value in state_of(model).items() if name.startswith("model/")}


def filled_with_noise(model: keras.Model) -> keras.Model:
    generator = np.random.default_rng(1)
    for variable in model.weights:
        if variable.dtype == "float32":
            variable.assign(generator.uniform(0.5, 1.5, variable.shape))
    return model


def refusal(act: Callable[[], Any]) -> str:
    with pytest.raises(AnyrigError) as caught:
        act()
    return str(caught.value)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "build", [three_deep, used_twice, attending], ids=["nested", "B005_shared", "B172_B177_attention"]
)
def test_every_array_comes_back_to_its_layer(tmp_path: Path, build: Callable[[], keras.Model], suffix: str) -> None:
    model = filled_with_noise(build())
    path = tmp_path / f"sent{suffix}"
    anyrig.save_model(model, path)
    again = anyrig.open_model(path, into=None if suffix in (".keras", ".h5") else build)
    assert weights_of(again) == weights_of(model)


def test_B007_a_body_inside_a_model_fills_the_same_body_under_another_head(tmp_path: Path) -> None:
    def headed(units: int, name: str) -> keras.Model:
        x = keras.Input((6, 3))
        return keras.Model(x, layers.Dense(units, name=name)(block("body")(x)))

    model = filled_with_noise(headed(2, "old"))
    anyrig.save_model(model, tmp_path / "a.weights.h5")
    said = refusal(lambda: anyrig.open_model(tmp_path / "a.weights.h5", into=headed(5, "new")))
    assert "new/kernel" in said
    (tmp_path / "rules.yaml").write_text("version: 1\nrules: [{keep: model/new/*}, {drop: '*old*'}]\n")
    try:
        anyrig.open_model(tmp_path / "a.weights.h5", into=headed(5, "new"), rules=tmp_path / "rules.yaml")
    except AnyrigError:
        names = [t.name for t in read_any(tmp_path / "a.weights.h5").tensors if t.shape in ((3, 2), (2,))]
        rules = [{"keep": "model/new/*"}, *({"drop": name} for name in names)]
        (tmp_path / "rules.yaml").write_text(json.dumps({"version": 1, "rules": rules}))
    other = headed(5, "new")
    anyrig.open_model(tmp_path / "a.weights.h5", into=other, rules=tmp_path / "rules.yaml")
    assert weights_of(other.get_layer("body")) == weights_of(model.get_layer("body"))


def test_B010_weights_of_a_whole_model_fill_one_like_it_and_no_other(tmp_path: Path) -> None:
    def dense(units: int) -> keras.Model:
        return keras.Sequential([keras.Input((4,)), layers.Dense(units, name="head")])

    model, other = filled_with_noise(dense(3)), dense(5)
    anyrig.save_model(model, tmp_path / "whole.h5")
    assert weights_of(anyrig.open_model(tmp_path / "whole.h5", into=dense(3))) == weights_of(model)
    before = weights_of(other)
    assert "head/kernel" in refusal(lambda: anyrig.open_model(tmp_path / "whole.h5", into=other))
    assert weights_of(other) == before


def test_B017_names_that_do_not_fit_into_one_attribute(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep = [layers.Dense(1, name=f"{index:03d}_{'n' * 500}") for index in range(150)]
    model = filled_with_noise(keras.Sequential([keras.Input((1,)), *deep]))
    anyrig.save_model(model, tmp_path / "deep.h5")
    with h5py.File(tmp_path / "deep.h5") as file:
        assert "layer_names1" in file["model_weights"].attrs
    assert run(["inspect", str(tmp_path / "deep.h5")], debug=False) == 0
    assert "300" in capsys.readouterr().out
    assert weights_of(anyrig.open_model(tmp_path / "deep.h5")) == weights_of(model)


def test_B021_a_layer_that_is_renamed_after_the_model_was_made(tmp_path: Path) -> None:
    x = keras.Input((4,))
    model = filled_with_noise(keras.Model(x, layers.Dense(2, name="old")(x)))
    model.layers[1]._name = "new"
    for suffix in (".keras", ".h5"):
        anyrig.save_model(model, tmp_path / f"a{suffix}")
        again = anyrig.open_model(tmp_path / f"a{suffix}")
        assert [v.numpy().tobytes() for v in again.weights] == [v.numpy().tobytes() for v in model.weights]


def test_B031_which_versions_read_a_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    anyrig.save_model(keras.Sequential([keras.Input((4,)), layers.Dense(2)]), tmp_path / "a.keras")
    assert run(["inspect", str(tmp_path / "a.keras")], debug=False) == 0
    assert "Keras 3 of the same version or later" in capsys.readouterr().out


@keras.saving.register_keras_serializable("cases")
def half(x: Any) -> Any:
    return x / 2


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_B036_a_registered_activation_of_the_callers_own(tmp_path: Path, suffix: str) -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2, half)])
    anyrig.save_model(model, tmp_path / f"a{suffix}")
    again = anyrig.open_model(tmp_path / f"a{suffix}", custom_objects={"cases>half": half, "half": half})
    x = np.ones((2, 4), "float32")
    assert again.predict(x, verbose=0).tobytes() == model.predict(x, verbose=0).tobytes()


def test_B037_B057_a_group_that_was_renamed_in_the_file_is_named_and_nothing_is_loaded(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Conv2D(1, 1), layers.Conv2D(1, 1)])
    model.save(tmp_path / "a.keras")
    with zipfile.ZipFile(tmp_path / "a.keras") as archive:
        archive.extractall(tmp_path / "a")
    with h5py.File(tmp_path / "a" / "model.weights.h5", "r+") as file:
        file.move("layers/conv2d_1", "layers/conv2d_9")
    with zipfile.ZipFile(tmp_path / "b.keras", "w") as archive:
        for name in ("metadata.json", "config.json", "model.weights.h5"):
            archive.write(tmp_path / "a" / name, name)
    said = refusal(lambda: anyrig.open_model(tmp_path / "b.keras"))
    assert "conv2d_9" in said


@keras.saving.register_keras_serializable("cases")
class Some(layers.Layer):
    """Makes two layers, and calls one."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.parts = [layers.Dense(2), layers.Dense(2)]

    def call(self, x: Any) -> Any:
        return self.parts[0](x)


@pytest.mark.filterwarnings("ignore:.*build.*")
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_B040_B041_a_layer_without_build_and_a_part_that_is_never_called(tmp_path: Path, suffix: str) -> None:
    def build() -> keras.Model:
        return keras.Sequential([keras.Input((4,)), Some(name="some")])

    model = filled_with_noise(build())
    anyrig.save_model(model, tmp_path / f"a{suffix}")
    again = anyrig.open_model(
        tmp_path / f"a{suffix}", custom_objects={"Some": Some}, into=build if "weights" in suffix else None
    )
    assert weights_of(again) == weights_of(model)


@pytest.mark.filterwarnings("ignore:.*build.*")
def test_B052_an_unknown_class_is_named_with_what_to_give(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), Some(name="some")])
    anyrig.save_model(model, tmp_path / "a.keras")
    said = refusal(lambda: anyrig.open_model(tmp_path / "a.keras"))
    assert "Some" in said
    assert "custom_objects" in said


def test_B055_byte_code_is_written_into_no_file(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Lambda(lambda x: x * 2, name="double")])
    for suffix in (".keras", ".h5"):
        said = refusal(lambda suffix=suffix: anyrig.save_model(model, tmp_path / f"a{suffix}"))  # type: ignore[misc]
        assert "the Lambda layer 'double'" in said
    assert list(tmp_path.iterdir()) == []
    named = keras.Sequential([keras.Input((4,)), layers.Lambda(half)])
    anyrig.save_model(named, tmp_path / "a.keras")
    assert b"__lambda__" not in zipfile.ZipFile(tmp_path / "a.keras").read("config.json")


def test_B056_a_function_that_no_file_can_hold_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    words = layers.TextVectorization(standardize=lambda text: tf.strings.lower(text) + "!")
    words.adapt(["A b"])
    x = keras.Input((1,), dtype="string")
    model = keras.Model(x, words(x))
    refusal(lambda: anyrig.save_model(model, tmp_path / "a.keras"))
    assert list(tmp_path.iterdir()) == []


def test_B137_B140_B142_B143_vocabularies_survive_any_number_of_files_and_no_file_loses_them(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a\nb\nc")
    text, number = keras.Input((1,), dtype="string"), keras.Input((1,), dtype="int64")
    numbers = layers.IntegerLookup()
    numbers.adapt([7, 9, 9])
    model = keras.Model(
        [text, number], [layers.StringLookup(vocabulary=str(tmp_path / "words.txt"))(text), numbers(number)]
    )
    rows = [tf.constant([["a"], ["c"], ["z"]]), tf.constant([[7], [9], [1]], tf.int64)]
    expected = [part.tobytes() for part in model.predict(rows, verbose=0)]
    (tmp_path / "a").mkdir()
    anyrig.save_model(model, tmp_path / "a" / "0.keras")
    (tmp_path / "words.txt").unlink()
    for cycle in range(3):
        model = anyrig.open_model(tmp_path / "a" / f"{cycle}.keras")
        anyrig.save_model(model, tmp_path / "a" / f"{cycle + 1}.keras")
    assert [part.tobytes() for part in model.predict(rows, verbose=0)] == expected
    assert "vocabulary" in refusal(lambda: anyrig.save_model(model, tmp_path / "a.h5"))
    assert [part.tobytes() for part in pickle.loads(pickle.dumps(model)).predict(rows, verbose=0)] == expected


def test_B130_the_root_of_an_object_checkpoint_may_be_called_anything(tmp_path: Path) -> None:
    def build() -> keras.Model:
        return keras.Sequential([keras.Input((4,)), layers.Dense(3, name="body"), layers.Dense(3, name="head")])

    model = filled_with_noise(build())
    for root in ("model", "net", "encoder"):
        path = tf.train.Checkpoint(**{root: model}).write(str(tmp_path / root))
        assert weights_of(anyrig.open_model(path, into=build)) == weights_of(model)


def test_B135_B136_weights_are_taken_from_a_saved_model_by_name(tmp_path: Path) -> None:
    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = tf.Variable(tf.random.normal((4, 3)), name="body/kernel")
            self.bias = tf.Variable(tf.random.normal((3,)), name="body/bias")

        @tf.function(input_signature=[tf.TensorSpec((None, 4))])
        def __call__(self, x: Any) -> Any:
            return x @ self.body + self.bias

    module = Module()
    tf.saved_model.save(module, str(tmp_path / "hub"), signatures={"serving_default": module.__call__})
    model = anyrig.open_model(
        tmp_path / "hub", into=lambda: keras.Sequential([keras.Input((4,)), layers.Dense(3, name="body")])
    )
    x = np.ones((2, 4), "float32")
    assert np.allclose(model.predict(x, verbose=0), module(x).numpy())


def test_B182_B185_outputs_keep_their_order_and_inputs_their_names(tmp_path: Path) -> None:
    a, b = keras.Input((2,), name="zeta"), keras.Input((2,), name="alpha")
    outputs = {"scores": layers.Dense(1, name="scores")(a), "boxes": layers.Dense(1, name="boxes")(b)}
    model = keras.Model({"zeta": a, "alpha": b}, outputs)
    rows = {"alpha": np.ones((2, 2), "float32"), "zeta": np.zeros((2, 2), "float32")}
    for suffix in (".keras", ".h5"):
        anyrig.save_model(model, tmp_path / f"a{suffix}")
        found = anyrig.open_model(tmp_path / f"a{suffix}").predict(rows, verbose=0)
        assert list(found) == ["scores", "boxes"]
        assert all(found[name].tobytes() == value.tobytes() for name, value in model.predict(rows, verbose=0).items())


def test_B191_what_cannot_be_had_of_a_saved_model_is_said(tmp_path: Path) -> None:
    tf.saved_model.save(tf.Module(), str(tmp_path / "plain"))
    said = refusal(lambda: anyrig.open_model(tmp_path / "plain"))
    assert "program" in said
    assert "into=" in said


@keras.saving.register_keras_serializable("cases")
class Subclassed(keras.Model):
    """Has no configuration of layers."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.head = layers.Dense(2)

    def call(self, x: Any) -> Any:
        return self.head(x)


def called() -> keras.Model:
    model = Subclassed()
    model(np.ones((1, 4), "float32"))
    return model


@pytest.mark.parametrize(("suffix", "into"), [(".keras", None), (".h5", called)])
def test_B195_a_subclassed_model_comes_back_from_each_format_that_takes_it(
    tmp_path: Path, suffix: str, into: Callable[[], keras.Model] | None
) -> None:
    x = np.ones((1, 4), "float32")
    model, path = called(), tmp_path / f"a{suffix}"
    anyrig.save_model(model, path)
    again = anyrig.open_model(path, custom_objects={"Subclassed": Subclassed}, into=into)
    assert again.predict(x, verbose=0).tobytes() == model.predict(x, verbose=0).tobytes()
    if into is not None:
        said = refusal(lambda: anyrig.open_model(path, custom_objects={"Subclassed": Subclassed}))
        assert "into=" in said


def test_B206_a_checkpoint_by_names_becomes_one_by_objects_with_proof(tmp_path: Path) -> None:
    values = {"net/body/kernel": np.random.default_rng(0).normal(size=(4, 3)), "net/body/bias": np.arange(3.0)}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        made = {name: tf.compat.v1.get_variable(name, initializer=v.astype("float32")) for name, v in values.items()}
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver(made).save(session, str(tmp_path / "old"))

    def build() -> keras.Model:
        return keras.Sequential([keras.Input((4,)), layers.Dense(3, name="body")])

    done = anyrig.convert(tmp_path / "old", tmp_path / "new.ckpt", into=build)
    assert done.saved.arrays == 2
    other = build()
    tf.train.Checkpoint(model=other).read(str(tmp_path / "new.ckpt")).expect_partial()
    assert other.get_layer("body").kernel.numpy().tobytes() == values["net/body/kernel"].astype("float32").tobytes()


def test_U03_files_of_the_same_shapes_and_other_numbers_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = [layers.Dense(3), layers.BatchNormalization(), layers.BatchNormalization()]  # many of one shape, unnamed
    model = keras.Sequential([keras.Input((4,)), *hidden, layers.Dense(2)])
    model.compile("adam", "mse")
    model.train_on_batch(np.ones((8, 4), "float32"), np.ones((8, 2), "float32"))
    model.save(tmp_path / "a.keras")
    anyrig.save_model(model, tmp_path / "a.h5")
    model.save_weights(tmp_path / "a.weights.h5")
    bias = model.layers[3].bias
    bias.assign(bias + 2)
    model.save(tmp_path / "b.keras")
    for other in ("a.h5", "a.weights.h5"):
        assert run(["diff", str(tmp_path / "a.keras"), str(tmp_path / other)], debug=False) == 0
        assert "equal: 30 tensors" in capsys.readouterr().out
    assert run(["diff", str(tmp_path / "a.keras"), str(tmp_path / "b.keras"), "--json"], debug=False) == 3
    found = json.loads(capsys.readouterr().out)
    assert [change["b"]["name"] for change in found["changed"]] == ["layers/dense_1/vars/1"]
    assert found["changed"][0]["values"]["max_abs"] == pytest.approx(2.0)


class OwnCompile(keras.Model):
    """Takes an argument of its own to `compile`."""

    def compile(self, temperature: float = 1.0, **kwargs: Any) -> None:
        super().compile(**kwargs)
        self.temperature = temperature


def test_U17_settings_of_an_own_compile_are_not_lost_in_silence(tmp_path: Path) -> None:
    x = keras.Input((4,))
    model = OwnCompile(x, layers.Dense(2)(x))
    model.compile(temperature=3.0, optimizer="sgd", loss="mse")
    model.save(tmp_path / "a.keras")
    found = open_with_report(tmp_path / "a.keras", custom_objects={"OwnCompile": OwnCompile})
    assert not found.model.compiled or found.model.temperature == 3.0
    shutil.rmtree(tmp_path)


class Aside(layers.Layer):
    """Has state of TensorFlow's own, which is no variable of Keras."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.old = tf.Variable([1.0, 2.0])
        self.words = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        self.inner = [tf.Module()]
        self.inner[0].number = tf.Variable(3.0)

    def call(self, x: Any) -> Any:
        return x + self.old

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def test_B047_B141_state_that_keras_does_not_know_of_is_named_before_it_is_lost(tmp_path: Path) -> None:
    x = keras.Input((2,))
    model = keras.Model(x, Aside(name="mine")(layers.Dense(2)(x)))
    named = ["tf.Module 'mine/inner/0'", "tf.Variable 'mine/old'", "lookup table 'mine/words'"]
    for suffix in (".keras", ".h5", ".weights.h5", ".safetensors"):
        with pytest.raises(AnyrigError) as refused:
            anyrig.save_model(model, tmp_path / f"model{suffix}")
        assert refused.value.code == "ANY-CONVERT-002"
        assert all(what in refused.value.message for what in named)
    with pytest.warns(UserWarning, match=f"not saved: {', '.join(named)}"):
        anyrig.save(tmp_path / "checkpoint", model, optimizer=False)
    anyrig.save_model(model, tmp_path / "model.ckpt")
    stored = {name.rpartition("old")[2] for name, _ in tf.train.list_variables(str(tmp_path / "model.ckpt"))}
    assert "/.ATTRIBUTES/VARIABLE_VALUE" in stored  # tf.train.Checkpoint does know of it


def test_B145_statistics_of_a_file_that_lists_them_in_another_order(tmp_path: Path) -> None:
    normalize = layers.Normalization(name="normalize")
    normalize.adapt(np.array([[1.0, 10.0], [3.0, 40.0]], "float32"))
    model = keras.Sequential([keras.Input((2,)), normalize, layers.Dense(1)])
    path, rows = tmp_path / "model.h5", np.array([[2.0, 40.0]], "float32")
    anyrig.save_model(model, path)
    with h5py.File(path, "r+") as file:
        listed = file["model_weights/normalize"].attrs
        listed["weight_names"] = [listed["weight_names"][i] for i in (1, 0, 2)]
    assert np.array_equal(anyrig.open_model(path).predict(rows, verbose=0), model.predict(rows, verbose=0))


def test_B160_an_array_in_the_configuration_is_told(tmp_path: Path) -> None:
    table = keras.initializers.Constant(np.ones((30_000, 8), "float32"))
    model = keras.Sequential([keras.Input((1,)), layers.Embedding(30_000, 8, embeddings_initializer=table)])
    with pytest.warns(UserWarning, match="has 1 MiB: a layer keeps an array in it"):
        anyrig.save(tmp_path / "checkpoint", model, optimizer=False)
    graph = tmp_path / "model" / "saved_model.pb"
    with pytest.warns(UserWarning, match="keeps an array in it"):
        anyrig.save_model(model, tmp_path / "model")
    assert graph.stat().st_size < 100_000


def test_B180_nested_inputs_are_written_and_opened_as_they_are(tmp_path: Path) -> None:
    inputs = {"a": {"b": keras.Input((2,), name="b")}, "c": keras.Input((2,), name="c")}
    model = keras.Model(inputs, layers.Dense(1)(layers.Subtract()([inputs["a"]["b"], inputs["c"]])))
    rows = {"a": {"b": np.array([[1.0, 2.0]], "float32")}, "c": np.array([[5.0, 3.0]], "float32")}
    for suffix in (".keras", ".h5", ""):
        anyrig.save_model(model, tmp_path / f"model{suffix}")
        opened = anyrig.open_model(tmp_path / f"model{suffix}")
        assert np.array_equal(opened.predict(rows, verbose=0), model.predict(rows, verbose=0))


def test_B186_sparse_inputs_keep_their_names_when_exported(tmp_path: Path) -> None:
    x = keras.Input((5,), sparse=True, name="clicks")
    model = keras.Model(x, layers.Dense(2)(x))
    anyrig.save_model(model, tmp_path / "model")
    signatures = {each.name: each for each in read_any(tmp_path / "model").signatures}
    assert [each.name for each in signatures["serving_default"].inputs] == ["clicks"]
    rows = tf.sparse.from_dense(np.eye(5, dtype="float32"))
    assert np.array_equal(anyrig.open_model(tmp_path / "model").predict(rows), model.predict(rows))


@keras.saving.register_keras_serializable("ragged")
class Doubled(layers.Layer):
    def call(self, x: Any) -> Any:
        return x * 2.0

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor(x.shape, x.dtype, ragged=True)


def test_B187_ragged_rows_go_with_the_layers_and_what_an_export_cannot_do_is_told(tmp_path: Path) -> None:
    x = keras.Input((None,), ragged=True, name="words")
    model, rows = keras.Model(x, Doubled()(x)), tf.ragged.constant([[1.0, 2.0], [3.0]])
    anyrig.save_model(model, tmp_path / "model.keras")
    opened = anyrig.open_model(tmp_path / "model.keras", custom_objects={"ragged>Doubled": Doubled})
    assert opened(rows).to_list() == [[2.0, 4.0], [6.0]]
    saved = anyrig.save_model(model, tmp_path / "model")
    assert saved.notes == ("ragged rows for the input 'words': its program takes rows of one length",)


def test_B192_a_folder_of_a_hub_with_its_own_files_beside_the_model(tmp_path: Path) -> None:
    model = filled_with_noise(keras.Sequential([keras.Input((3,)), layers.Dense(2)]))
    anyrig.save_model(model, tmp_path / "model")
    for name in ("README.md", "config.json", "metadata.json", ".gitattributes"):
        (tmp_path / "model" / name).write_text("{}")
    assert weights_of(anyrig.open_model(tmp_path / "model")) == weights_of(model)
    with pytest.raises(AnyrigError, match=r"has '\.gitattributes' as well, which would be lost"):
        anyrig.save_model(model, tmp_path / "model")
