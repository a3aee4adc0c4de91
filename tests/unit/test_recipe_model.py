"""From a recipe to a compiled model: the user's function, its arguments, and `compile`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from anyrig.errors import UsageError
from anyrig.train.recipe.code import resolve_function
from anyrig.train.recipe.model import model_builder
from anyrig.train.recipe.schema import parse_recipe

CODE = """
import keras
from neighbour_of_cats import WIDTH

def build_model(classes=10):
    return keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(classes, name="head")])

def compiled():
    model = build_model()
    model.compile("sgd", "mse")
    return model

def needs(classes):
    return build_model(classes)

def fails():
    nothing = None
    return nothing.layers

def returns_text():
    return "model"

table = [1]
count = 1
"""
COMPILE = {"optimizer": "adam", "loss": "mse"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A recipe's folder with modules in it; what importing them changed is put back."""
    path, modules = list(sys.path), set(sys.modules)
    (tmp_path / "cats_of_test.py").write_text(CODE)
    (tmp_path / "neighbour_of_cats.py").write_text("WIDTH = 4\n")
    (tmp_path / "missing_import.py").write_text("import os\nimport not_there_at_all\n")
    (tmp_path / "bad_syntax.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "divides.py").write_text("x = 1\ny = x / 0\n")
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def _build(folder: Path, model: str = "cats_of_test.py:build_model", **keys: Any) -> keras.Model:
    recipe = {"model": model, "data": {"train": {"npz": "a.npz"}}, "epochs": 1, **keys}
    return model_builder(parse_recipe(recipe, base_dir=folder))()


def _optimizer(model: keras.Model) -> str:
    return type(model.optimizer).__name__


def test_the_recipe_compiles_or_the_function_does(folder: Path) -> None:
    assert _optimizer(_build(folder, compile=COMPILE)) == "Adam"
    assert _optimizer(_build(folder, "cats_of_test.py:compiled")) == "SGD"
    assert _optimizer(_build(folder, "cats_of_test:compiled")) == "SGD"
    assert _optimizer(_build(folder, "cats_of_test.py:compiled", compile=COMPILE)) == "Adam"


def test_arguments_reach_the_function(folder: Path) -> None:
    assert _build(folder, compile=COMPILE, model_args={"classes": 3}).output_shape == (None, 3)


def test_the_function_is_found_once(folder: Path) -> None:
    spec = "cats_of_test.py:build_model"
    assert resolve_function(spec, folder) is resolve_function(spec, folder)


def test_a_file_named_like_a_loaded_module_does_not_replace_it(folder: Path) -> None:
    (folder / "json.py").write_text("def build(): return 'ours'\n")
    import json

    assert resolve_function("json.py:build", folder)() == "ours"
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("model", "code", "message"),
    [
        ("cats_of_test.py:build_modl", "ANY-RECIPE-007", "has no function build_modl; did you mean build_model?"),
        ("cats_of_tests.py:f", "ANY-RECIPE-006", "cats_of_tests.py; did you mean cats_of_test.py?"),
        ("no_such_package.inner:f", "ANY-RECIPE-006", "there is no module no_such_package"),
        ("cats_of_test.py:table", "ANY-RECIPE-008", "is a list, not a function"),
        ("cats_of_test.py:count", "ANY-RECIPE-008", "is an int, not a function"),
        ("cats_of_test.py:returns_text", "ANY-RECIPE-011", "returned str, not a keras.Model"),
        (
            "cats_of_test.py:fails",
            "ANY-RECIPE-010",
            "model: fails failed at cats_of_test.py:18: AttributeError: 'NoneType'",
        ),
        ("cats_of_test.py:needs", "ANY-RECIPE-009", "needs: missing a required argument: 'classes'"),
        ("cats_of_test.py:build_model", "ANY-RECIPE-013", "compile: is missing"),
        (
            "missing_import.py:f",
            "ANY-RECIPE-012",
            "failed at missing_import.py:2: ModuleNotFoundError: No module named",
        ),
        ("missing_import:f", "ANY-RECIPE-012", "failed at missing_import.py:2: ModuleNotFoundError: No module named"),
        ("bad_syntax.py:f", "ANY-RECIPE-012", "failed at bad_syntax.py:2: SyntaxError"),
        ("divides.py:f", "ANY-RECIPE-012", "failed at divides.py:2: ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_wrong_with_the_function_is_told(folder: Path, model: str, code: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        _build(folder, model)
    assert caught.value.code == code
    assert message in caught.value.message


def test_a_wrong_argument_is_told_with_the_nearest_one(folder: Path) -> None:
    with pytest.raises(
        UsageError, match=r"model_args.clases: build_model takes no such argument; did you mean classes\?"
    ):
        _build(folder, model_args={"clases": 3})


def test_the_next_step_names_the_nearest_function(folder: Path) -> None:
    for name, hint in (("build_modl", "correct the name to build_model, or define build_modl"), ("xyz", "define xyz")):
        with pytest.raises(UsageError) as caught:
            _build(folder, f"cats_of_test.py:{name}")
        assert caught.value.hint == hint


def test_a_failed_import_leaves_no_half_module(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(UsageError, match="ZeroDivisionError"):
            _build(folder, "divides.py:f")
    assert "divides" not in sys.modules


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"optimizer": "adamm"}, "compile.optimizer: Keras knows no adamm; did you mean Adam?"),
        ({"optimizer": {"adamw": {"rate": 1}}}, "compile.optimizer.adamw.rate: AdamW takes no such argument"),
        ({"optimizer": {"adamw": {"learning_rate": "x"}}}, "compile.optimizer.adamw: Argument `learning_rate`"),
        ({"loss": "no_such_loss"}, "compile.loss: Keras knows no no_such_loss"),
        ({"loss": {"head": "msee"}}, "compile.loss.head: Keras knows no msee"),
        ({"metrics": ["acuracy"]}, "compile.metrics: Keras knows no acuracy; did you mean Accuracy?"),
        ({"metrics": [{"mae": {"k": 1}}]}, "compile.metrics.mae: mae is a function and takes no arguments here"),
    ],
)
def test_what_keras_does_not_know_is_told_by_key(folder: Path, rules: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        _build(folder, compile={**COMPILE, **rules})
    assert caught.value.code == "ANY-RECIPE-014"
    assert message in caught.value.message


def test_all_that_keras_does_not_know_is_told_at_once(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        _build(folder, compile={"optimizer": "adamm", "loss": {"a": "xyz", "b": "zyx"}, "metrics": ["mae", "acuracy"]})
    keys = [line.partition(": ")[0] for line in caught.value.message.splitlines()]
    assert keys == ["compile.optimizer", "compile.loss.a", "compile.loss.b", "compile.metrics"]
    assert caught.value.hint == "correct the name"


def test_losses_and_metrics_with_arguments(folder: Path) -> None:
    model = _build(
        folder,
        compile={
            "optimizer": {"adamw": {"learning_rate": 0.5}},
            "loss": {"sparse_categorical_crossentropy": {"from_logits": True}},
            "metrics": ["accuracy", {"SparseTopKCategoricalAccuracy": {"k": 3}}],
        },
    )
    assert float(model.optimizer.learning_rate) == 0.5
    assert model.loss.get_config()["from_logits"] is True
    logs = model.evaluate(np.zeros((2, 4)), np.zeros(2), verbose=0, return_dict=True)
    assert set(logs) == {"loss", "accuracy", "sparse_top_k_categorical_accuracy"}


def test_names_in_the_logs_are_those_of_keras(folder: Path) -> None:
    model = _build(folder, compile={**COMPILE, "metrics": ["mae", "mean_squared_error"]})
    logs = model.evaluate(np.zeros((2, 4)), np.zeros((2, 10)), verbose=0, return_dict=True)
    assert set(logs) == {"loss", "mae", "mean_squared_error"}


def test_a_loss_for_each_output(folder: Path) -> None:
    assert _build(folder, compile={**COMPILE, "loss": {"head": "mse"}}).loss == {
        "head": keras.losses.mean_squared_error
    }
