"""Models that Keras 2 wrote, made by today's Keras: they predict the same, and are compiled as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from anyrig.errors import AnyrigError
from anyrig.exchange.build import Built, built_model
from anyrig.formats.sniff import read_any
from tests.corpus.keras2 import NAMES, expected, unpack

WHOLE = sorted(set(NAMES) - {"subclassed"})
OPTIMIZERS = {
    "attention": "AdamW",
    "bidirectional": "RMSprop",
    "cnn": "RMSprop",
    "distributed": "Adamax",
    "gru_after": "Nadam",
    "gru_before": "SGD",
    "lstm": "Adam",
    "mixed": "SGD",
    "mlp": "Adam",
    "moving": "Ftrl",
    "nested": "Adagrad",
    "operations": "Adam",
    "separable": "Adagrad",
    "shared": "Adadelta",
    "two_two": "SGD",
}


def built(name: str, file: str, folder: Path) -> Built:
    return built_model(read_any(unpack(name, folder) / file))


def fill(model: keras.Model, name: str) -> None:
    """Assign the stored weights in the order of Keras 2, which is that of the layers."""
    kept = [variable for variable in model.weights if "seed_generator" not in variable.path]
    for variable, array in zip(kept, expected(name, "weight").values(), strict=True):
        variable.assign(array)


def outputs_of(model: keras.Model, name: str) -> list[np.ndarray[Any, Any]]:
    inputs = list(expected(name, "inputs").values())
    found = model(inputs[0] if len(inputs) == 1 else inputs, training=False)
    return [keras.ops.convert_to_numpy(one) for one in keras.tree.flatten(found)]


@pytest.mark.parametrize("file", ["model.h5", "model.keras", "saved_model"])
@pytest.mark.parametrize("name", WHOLE)
def test_B030_B032_B035_B042_models_of_keras_2_predict_the_same(name: str, file: str, tmp_path: Path) -> None:
    made = built(name, file, tmp_path)
    fill(made.model, name)
    for found, wanted in zip(outputs_of(made.model, name), expected(name, "outputs").values(), strict=True):
        tolerance = 2e-3 if name == "mixed" else 1e-6  # float16 rounds differently in an eager call
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)
    assert (made.notes, made.renamed) == ((), {})
    assert made.model.compiled
    assert type(made.model.optimizer).__name__ == OPTIMIZERS[name]


def test_what_was_compiled_is_compiled_again(tmp_path: Path) -> None:
    for file in ("model.h5", "model.keras"):
        model = built("two_two", file, tmp_path).model
        rate = model.optimizer._learning_rate
        assert isinstance(rate, keras.optimizers.schedules.InverseTimeDecay)
        assert (rate.decay_rate, model.optimizer.momentum, model.optimizer.nesterov) == (0.5, pytest.approx(0.9), True)
        results = model.evaluate(
            list(expected("two_two", "inputs").values()),
            list(expected("two_two", "targets").values()),
            verbose=0,
            return_dict=True,
        )
        assert {"loss", "main_area", "side_mae"} <= set(results), results
        model = built("cnn", file, tmp_path).model
        assert model.optimizer.centered
        assert (model.loss.label_smoothing, model.loss.from_logits) == (0.1, True)
        model = built("lstm", file, tmp_path).model
        assert model.optimizer.amsgrad
        assert isinstance(model.optimizer._learning_rate, keras.optimizers.schedules.ExponentialDecay)


def test_names_and_trainable_flags_are_those_of_the_file(tmp_path: Path) -> None:
    model = built("nested", "model.h5", tmp_path).model
    inner = model.get_layer("middle").get_layer("inner")
    assert (model.name, inner.get_layer("deep").trainable) == ("outer", False)
    assert len(model.trainable_weights) == 6


def test_a_model_of_the_users_own_class_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(AnyrigError, match=r"(?s)the class Own.*into=.*OPEN-002"):
        built("subclassed", "saved_model", tmp_path)
    with pytest.raises(AnyrigError, match=r"(?s)no architecture.*into=.*OPEN-020"):
        built("mlp", "weights.h5", tmp_path)
    with pytest.raises(AnyrigError, match="OPEN-001"):
        built_model(read_any(unpack("cnn", tmp_path) / "model.h5"), trust="arrays")
