"""`anyrig.save_model`: every format by its suffix, read back, and run by Keras or TensorFlow as a receiver would."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest

import anyrig
from anyrig.errors import AnyrigError, UsageError
from anyrig.exchange.open import open_with_report
from anyrig.exchange.proof import TOLERANCE, largest_difference
from anyrig.exchange.rerun import outputs_of
from anyrig.exchange.sample import sample_for
from anyrig.exchange.targets import TARGETS

layers = keras.layers
HERE = list(TARGETS)


@pytest.fixture(scope="module")
def trained() -> keras.Model:
    numbers, words = keras.Input((5,), name="numbers"), keras.Input((None,), name="words", dtype="int32")
    read = layers.GlobalAveragePooling1D()(layers.Embedding(11, 3)(words))
    joined = layers.Dropout(0.5)(layers.Concatenate()([layers.Dense(4)(numbers), read]))
    outputs = {"one": layers.Dense(1, name="one")(joined), "many": layers.Dense(3, name="many")(joined)}
    model = keras.Model({"numbers": numbers, "words": words}, outputs)
    model.compile("adam", loss={"one": "mse", "many": "mse"})
    x = {"numbers": np.ones((4, 5), "float32"), "words": np.ones((4, 7), "int32")}
    model.fit(x, {"one": np.ones((4, 1)), "many": np.ones((4, 3))}, epochs=2, verbose=0)
    return model


@pytest.fixture(scope="module")
def rows(trained: keras.Model) -> Any:
    return sample_for(trained)[0]


@pytest.mark.parametrize("suffix", HERE)
def test_B190_each_format_predicts_the_same(suffix: str, trained: keras.Model, rows: Any, tmp_path: Path) -> None:
    saved = anyrig.save_model(trained, tmp_path / f"model{suffix}", lossy=True)
    expected = keras.tree.flatten(trained.predict(rows, verbose=0))
    found = keras.tree.flatten(outputs_of(saved.format, saved.path, trained, rows))
    exact = saved.format not in ("savedmodel", "tflite", "onnx")
    largest = max(float(np.abs(each).max()) for each in expected)
    assert largest_difference(expected, found) <= (0 if exact else TOLERANCE * largest)
    assert sorted(path.name.partition(".")[0] for path in tmp_path.iterdir()) in (["model"], ["model", "model"])


def test_U14_keras_loads_what_was_written(trained: keras.Model, tmp_path: Path) -> None:
    """A loss called mse stops Keras's reader of HDF5; it is written by its long name, and the model stays as it was."""
    compiled = trained.get_compile_config()
    for suffix in (".h5", ".keras"):
        anyrig.save_model(trained, tmp_path / f"model{suffix}")
        again = keras.saving.load_model(tmp_path / f"model{suffix}")
        assert again.compiled
        assert int(again.optimizer.iterations.numpy()) == 2
        assert trained.get_compile_config() == compiled
    assert data_of(again.optimizer.variables) == data_of(trained.optimizer.variables)


def data_of(variables: Any) -> list[bytes]:
    return [variable.numpy().tobytes() for variable in variables]


def test_a_loss_is_refused_and_nothing_is_written(trained: keras.Model, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"would lose: the optimizer \(Adam, 2 updates\)") as refused:
        anyrig.save_model(trained, tmp_path / "model.tflite")
    assert refused.value.code == "ANY-CONVERT-002"
    assert not list(tmp_path.iterdir())


def test_U07_B143_a_vocabulary_is_no_weight(tmp_path: Path) -> None:
    look_up = layers.StringLookup(vocabulary=["a", "b"])
    model = keras.Sequential([keras.Input((1,), dtype="string"), look_up, layers.Embedding(3, 2)])
    for suffix in (".h5", ".weights.h5", ".safetensors", ".ckpt"):
        with pytest.raises(UsageError, match="the vocabulary or files of the layer"):
            anyrig.save_model(model, tmp_path / f"model{suffix}")
    anyrig.save_model(model, tmp_path / "model.keras")
    assert [path.name for path in tmp_path.iterdir()] == ["model.keras"]


@pytest.mark.parametrize("name", ["model.pt", "model.json", ".h5", "model.v2"])
def test_a_suffix_that_is_no_format(name: str, trained: keras.Model, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="names no format") as refused:
        anyrig.save_model(trained, tmp_path / name)
    assert refused.value.code == "ANY-CONVERT-001"


@pytest.mark.parametrize("suffix", [".keras", ""])
def test_U05_the_former_file_stays_until_the_new_one_is_whole(
    suffix: str, trained: keras.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keras overwrites in place; a writer that dies here leaves what was there."""
    path = tmp_path / f"model{suffix}"
    anyrig.save_model(trained, path)
    before = contents(path)

    def dies(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(keras.Model, "save", dies)
        patched.setattr(keras.Model, "export", dies)
        with pytest.raises(AnyrigError, match="No space left"):
            anyrig.save_model(trained, path)
    assert contents(path) == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    anyrig.save_model(trained, path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_something_else_is_never_replaced(trained: keras.Model, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("years")
    (tmp_path / "file").write_text("years")
    (tmp_path / "dir.keras").mkdir()
    (tmp_path / "dir.keras" / "thesis.txt").write_text("years")
    anyrig.save_model(trained, tmp_path / "old.ckpt", lossy=True)
    for name in ("folder", "file", "dir.keras", "old.ckpt"):
        with pytest.raises(UsageError) as refused:
            anyrig.save_model(trained, tmp_path / name, lossy=True)
        assert refused.value.code == "ANY-CONVERT-004"
    assert (tmp_path / "folder" / "thesis.txt").read_text() == (tmp_path / "file").read_text() == "years"


def test_B175_a_layer_that_keeps_state_aside_is_noticed(tmp_path: Path) -> None:
    """What Keras's writer leaves out is found by reading back, not believed."""

    class Forgets(layers.Dense):
        def save_own_variables(self, store: Any) -> None:
            store["0"] = self._kernel

    model = keras.Sequential([keras.Input((3,)), Forgets(2)])
    with pytest.raises(AnyrigError, match="without 1 of the 2 arrays") as found:
        anyrig.save_model(model, tmp_path / "model.keras")
    assert found.value.code == "ANY-CONVERT-003"
    assert not list(tmp_path.iterdir())


def test_the_check_of_the_caller_comes_before_the_place(trained: keras.Model, tmp_path: Path) -> None:
    def refuse(*_: Any) -> None:
        raise AnyrigError("ANY-CONVERT-006", "no", hint="no")

    with pytest.raises(AnyrigError, match="no"):
        anyrig.save_model(trained, tmp_path / "model.keras", check=refuse)
    assert not list(tmp_path.iterdir())


def test_a_saved_model_becomes_a_keras_model_again(trained: keras.Model, tmp_path: Path) -> None:
    """Beside the program lies a checkpoint, which needs no trust and has the optimizer."""
    anyrig.save_model(trained, tmp_path / "served")
    into = keras.models.clone_model(trained)
    into.compile("adam", loss={"one": "mse", "many": "mse"})
    anyrig.load(tmp_path / "served" / "assets.extra" / "anyrig", into=into)
    assert data_of(into.variables) == data_of(trained.variables)
    assert data_of(into.optimizer.variables) == data_of(trained.optimizer.variables)


def test_how_a_saved_model_was_compiled_needs_trust_like_all_else(trained: keras.Model, tmp_path: Path) -> None:
    """The settings beside the checkpoint go through the same list; code in them leaves the model uncompiled."""
    anyrig.save_model(trained, tmp_path / "served")
    settings = tmp_path / "served" / "assets.extra" / "anyrig.compile.json"
    opened = open_with_report(tmp_path / "served")
    assert opened.model.compiled
    assert data_of(opened.model.optimizer.variables) == data_of(trained.optimizer.variables)
    config = json.loads(settings.read_text())
    for loss in (
        {"class_name": "function", "config": "main", "module": "this", "registered_name": "main"},
        {"class_name": "TFSMLayer", "config": {"filepath": "."}, "module": "keras.layers", "registered_name": None},
    ):
        settings.write_text(json.dumps({**config, "loss": loss}))
        opened = open_with_report(tmp_path / "served")
        assert not opened.model.compiled
        assert "not opened at the level of trust 'known'" in opened.notes[0]
    for text in ("[" * 100_000, "{", "[]"):
        settings.write_text(text)
        with pytest.raises(AnyrigError, match=r"FORMAT-00[23]"):
            open_with_report(tmp_path / "served")


def test_largest_difference() -> None:
    nan, inf = float("nan"), float("inf")
    one = np.array([1.0, nan, inf], "float32")
    assert largest_difference([one], [one.copy()]) == 0
    assert largest_difference([one], [np.array([1.5, nan, inf])]) == 0.5
    assert largest_difference([one], [np.array([1.0, 0.0, inf])]) == inf
    assert largest_difference([one], [np.array([1.0, nan, 2.0])]) == inf
    assert largest_difference([one], [one[:2]]) == inf
    assert largest_difference([one], []) == inf


def contents(path: Path) -> list[tuple[str, bytes]]:
    return sorted((str(each.relative_to(path)), each.read_bytes()) for each in files(path))


def files(path: Path) -> Iterator[Path]:
    yield from (each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]


def small(value: float) -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1, name="head")])
    model.get_layer("head").bias.assign([value])
    return model


def bias_in(path: Path) -> float:
    return float(anyrig.open_model(path).get_layer("head").bias.numpy()[0])


@pytest.mark.parametrize("name", ["m[1].keras", "m[1]", "a*?.h5"])
def test_names_that_are_patterns_elsewhere_are_names_here(name: str, tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        anyrig.save_model(small(value), tmp_path / name)
        assert bias_in(tmp_path / name) == value
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("place", ["file/model.keras", f"{'x' * 260}.keras"])
def test_a_place_that_the_system_refuses(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("years")
    with pytest.raises(AnyrigError, match="was not written") as refused:
        anyrig.save_model(small(1.0), tmp_path / place)
    assert refused.value.code == "ANY-CONVERT-009"
    assert os.listdir(tmp_path) == ["file"]


def test_a_name_as_long_as_the_system_allows(tmp_path: Path) -> None:
    name = f"{'x' * 249}.keras"
    anyrig.save_model(small(1.0), tmp_path / name)
    assert os.listdir(tmp_path) == [name]


def test_samples_and_targets_that_cannot_be(tmp_path: Path) -> None:
    source = tmp_path / "model"
    anyrig.save_model(small(1.0), source)
    with pytest.raises(UsageError, match="does not predict the sample") as refused:
        anyrig.convert(source, tmp_path / "other.keras", sample=np.ones((3, 7)))
    assert refused.value.code == "ANY-CONVERT-010"
    with pytest.raises(UsageError, match="which it is made of") as refused:
        anyrig.convert(source, source / "other.keras")
    assert refused.value.code == "ANY-CONVERT-011"
