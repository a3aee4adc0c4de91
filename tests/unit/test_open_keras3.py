"""Every file that Keras 3 writes of a model opens as that model: equal outputs, and the next training step is equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.legacy.saving.legacy_h5_format import save_model_to_hdf5

import anyrig
from anyrig.cli.main import run
from anyrig.exchange.open import open_with_report
from tests.corpus import keras3
from tests.corpus.opening import NO_VOCABULARY, Outcome, outcome
from tests.unit.state_models import state_of

FILLED = ("model.weights.h5", "sharded.weights.json", "checkpoint")
OTHERWISE = {
    ("words", "model.h5"): NO_VOCABULARY,
}


@pytest.mark.sampled(26)
@pytest.mark.parametrize("file", keras3.FILES)
@pytest.mark.parametrize("name", keras3.NAMES)
def test_a_file_of_keras_3_opens_as_its_model(tmp_path: Path, name: str, file: str) -> None:
    found = outcome(keras3, name, keras3.unpack(name, tmp_path), file)
    if (name, file) in OTHERWISE:
        assert found == Outcome(OTHERWISE[name, file])
        return
    assert found.how == ("filled" if file in FILLED else "predicts" if file == "saved_model" else "model")
    assert found.outputs is not None
    assert found.outputs < 1e-6
    assert (found.step is not None) == (found.how == "model")
    assert (found.step or 0) < 1e-6


@pytest.mark.parametrize("name", ["attention", "bidirectional", "mixed", "nested", "shared"])
def test_explain_says_of_a_file_what_opening_it_does(tmp_path: Path, name: str) -> None:
    folder = keras3.unpack(name, tmp_path)
    build = tmp_path / "build.py"
    build.write_text(
        f"import anyrig\n\n\ndef build():\n    return anyrig.open_model({str(folder / 'model.keras')!r})\n"
    )
    for file in ("model.keras", "model.h5", *FILLED):
        try:
            anyrig.open_model(folder / file, into=anyrig.open_model(folder / "model.keras"))
            opens = 0
        except anyrig.AnyrigError:
            opens = 3
        assert run(["explain", str(folder / file), f"{build}:build"], debug=False) == opens


def test_a_folder_of_orbax_opens_as_the_model_with_its_optimizer() -> None:
    """Keras itself gives random weights for such a folder of a Sequential model."""
    others = Path(__file__).parents[1] / "corpus" / "others"
    expected = np.load(others / "expected.npz")
    keras.backend.clear_session()  # the names of optimizers are counted
    model = anyrig.open_model(others / "orbax")
    for kind, variables in (("weight", model.weights), ("optimizer", model.optimizer.variables)):
        for variable in variables:
            assert np.array_equal(keras.ops.convert_to_numpy(variable), expected[f"{kind}/{variable.path}"])
    assert int(model.optimizer.iterations) == 2


def compiled(kind: str) -> keras.Model:
    optimizer: dict[str, Any] = {
        "averages": keras.optimizers.Adam(0.125, use_ema=True),
        "schedule": keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.125, 1, 0.5)),
        "scaled": keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.125, momentum=0.5)),
        "accumulating": keras.optimizers.Nadam(0.125, gradient_accumulation_steps=2),
    }
    keras.config.set_dtype_policy("mixed_float16" if kind == "mixed" else "float32")
    try:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="head")])
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile(optimizer.get(kind, "adam"), "mse", run_eagerly=True)
    return model


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("kind", ["plain", "averages", "schedule", "scaled", "accumulating", "mixed"])
def test_B060_the_optimizer_goes_on_also_where_the_model_was_saved_before_its_first_step(
    tmp_path: Path, kind: str, steps: int
) -> None:
    """Keras itself takes nothing of an optimizer without slots, and no loss scale of a model in mixed precision."""
    x, y = np.ones((4, 4), "float32"), np.ones((4, 2), "float32")
    model = compiled(kind)
    for _ in range(steps):
        model.train_on_batch(x, y)
    model.save(tmp_path / "a.keras")
    opened = anyrig.open_model(tmp_path / "a.keras")
    for each in (model, opened):
        each.run_eagerly = True
        each.train_on_batch(x, y)
    expected, found = state_of(model), state_of(opened)
    assert {name: value for name, value in found.items() if not name.startswith("metrics/")} == {
        name: value for name, value in expected.items() if not name.startswith("metrics/")
    }


def test_an_optimizer_that_keras_forgot_is_not_made_up(tmp_path: Path) -> None:
    model = compiled("plain")
    model.train_on_batch(np.ones((4, 4), "float32"), np.ones((4, 2), "float32"))
    save_model_to_hdf5(model, str(tmp_path / "a.h5"))
    model.save(tmp_path / "a.keras")
    found = open_with_report(tmp_path / "a.keras")
    assert not found.model.compiled
    assert "the file does not say with which optimizer" in found.notes[0]
    assert found.report.ignored["optimizer/vars/2"] == "the model has no optimizer"
    assert found.model.get_layer("head").kernel.numpy().tobytes() == model.get_layer("head").kernel.numpy().tobytes()


def test_bfloat16_in_hdf5_is_read_as_the_configuration_says_and_else_not_at_all(tmp_path: Path) -> None:
    """HDF5 has no such type: Keras writes two bytes each, and their type only into the configuration of the layer."""
    folder = keras3.unpack("mixed", tmp_path)
    opened = open_with_report(folder / "model.h5")
    expected = [array for path, array in keras3.expected("mixed", "weight").items() if "seed" not in path]
    found = [keras.ops.convert_to_numpy(variable) for variable in opened.model.weights]
    assert [array.astype("float32").tobytes() for array in found] == [a.astype("float32").tobytes() for a in expected]
    assert {array.dtype.name for array in found} == {"float32", "bfloat16"}
    assert {str(v.dtype) for v in opened.model.optimizer.variables} >= {"bfloat16"}
    assert opened.report.cast == {}
    with pytest.raises(anyrig.AnyrigError) as refused:
        anyrig.open_model(folder / "model.h5", into=opened.model)
    assert refused.value.code == "ANY-MAP-007"


def test_U07_what_waits_for_a_vocabulary_is_named_and_what_keeps_its_own_is_not(tmp_path: Path) -> None:
    """Keras writes vocabularies that were adapted to into no .h5 file; bins, moments and given words it does write."""
    layers, words, numbers = keras.layers, tf.constant([["a b"], ["b c"]]), np.arange(8, dtype="float32").reshape(-1, 1)
    texts = layers.TextVectorization(output_mode="count", name="texts")
    texts.adapt(words)
    x = keras.Input((1,), dtype="string")
    keras.Model(x, texts(x)).save(tmp_path / "texts.h5")
    with pytest.warns(UserWarning, match="no vocabulary of texts: give it with"):
        notes = open_with_report(tmp_path / "texts.h5").notes
    assert notes == ("the file holds no vocabulary of texts: give it with adapt() or set_vocabulary()",)
    kept = {"bins": layers.Discretization(num_bins=3), "moments": layers.Normalization()}
    for name, layer in kept.items():
        layer.adapt(numbers)
        x = keras.Input((1,))
        model = keras.Model(x, layer(x))
        model.save(tmp_path / f"{name}.h5")
        opened = open_with_report(tmp_path / f"{name}.h5")
        assert opened.notes == ()
        assert np.array_equal(opened.model.predict(numbers, verbose=0), model.predict(numbers, verbose=0))
