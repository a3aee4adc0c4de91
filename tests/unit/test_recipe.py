"""Recipes: every mistake is told with the dotted key first, what was expected, and what was found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from anyrig.errors import UsageError
from anyrig.train.every import Every, parse_every
from anyrig.train.recipe.diff import changes
from anyrig.train.recipe.schema import Recipe, load_recipe, parse_recipe

MINIMAL = """
model: cats.py:build_model
data: {train: {npz: train.npz}}
epochs: 3
"""


def _load(tmp_path: Path, text: str = MINIMAL, *overrides: str) -> Recipe:
    path = tmp_path / "cats.yaml"
    path.write_text(text)
    return load_recipe(path, overrides)


def _error(tmp_path: Path, text: str = MINIMAL, *overrides: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        _load(tmp_path, text, *overrides)
    assert caught.value.exit_code == 2
    return caught.value


def test_a_minimal_recipe_has_defaults_and_a_complete_canonical_form(tmp_path: Path) -> None:
    recipe = _load(tmp_path)
    assert recipe.base_dir == tmp_path
    assert recipe.canonical() == {
        "model": "cats.py:build_model",
        "model_args": {},
        "data": {
            "train": {"npz": "train.npz", "arrays": None, "x": "x", "y": "y", "sample_weight": None},
            "validation": None,
        },
        "batch": {"global_size": 32, "virtual_replicas": None, "per_device": None},
        "epochs": 3,
        "phases": None,
        "init_from": None,
        "compile": None,
        "precision": "auto",
        "on_nonfinite": "raise",
        "on_oom": "split",
        "loggers": [],
        "limits": {"max_time": None, "max_steps": None, "batches_per_epoch": None},
        "checkpoint": {
            "every": "1 epoch",
            "keep_last": 3,
            "keep_best": None,
            "monitor": None,
            "mode": "auto",
            "keep_every": None,
            "max_total_size": None,
            "min_free": None,
            "max_shard_size": "5 GiB",
            "split": "size",
        },
        "seed": 0,
    }
    assert parse_recipe(recipe.canonical(), base_dir=tmp_path) == recipe


def test_the_hash_depends_on_values_and_not_on_order_or_defaults_written_out(tmp_path: Path) -> None:
    reordered = "epochs: 3\nseed: 0\ndata: {train: {y: y, npz: train.npz}}\nmodel: cats.py:build_model\n"
    assert _load(tmp_path).canonical() == _load(tmp_path, reordered).canonical()
    assert _load(tmp_path).canonical() != _load(tmp_path, MINIMAL, "seed=1").canonical()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("batch: {global_size: big}", 'batch.global_size: expected a positive integer, found "big"'),
        ("batch: {virtual_replicas: 0}", "batch.virtual_replicas: expected a positive integer, found 0"),
        ("batch: {virtual_replicas: true}", "batch.virtual_replicas: expected a positive integer, found true"),
        ("batch: {global_size: 8, per_device: 4}", "batch: expected one of global_size, per_device, found both"),
        ("batch: 3", "batch: expected a mapping, found 3"),
        ("bach: {global_size: 8}", "bach: unknown key; did you mean batch?"),
        ("batch: {size: 8}", "batch.size: unknown key; use one of: global_size, per_device, virtual_replicas"),
        ("callbacks: []", "callbacks: not available in this version; use one of: batch, checkpoint,"),
        ("on_oom: halve", 'on_oom: expected split or raise, found "halve"'),
        (
            "precision: float16",
            'precision: expected one of auto, float32, mixed_bfloat16, mixed_float16, found "float16"',
        ),
        ("seed: -1", "seed: expected an integer, 0 or more, found -1"),
        ("checkpoint: {every: 3 hours}", 'checkpoint.every: expected "n steps", "n epochs", "n minutes" or "auto"'),
        ("checkpoint: {every: 0 steps}", 'found "0 steps"'),
        ("checkpoint: {keep_best: 1}", "checkpoint: keep_best=1 needs `monitor`"),
        ("checkpoint: {keep_bset: 1}", "checkpoint.keep_bset: unknown key; did you mean keep_best?"),
        ("checkpoint: {keep_best: -1}", "checkpoint.keep_best: expected an integer, 0 or more, found -1"),
        ("checkpoint: {keep_last: 0}", "checkpoint.keep_last: expected a positive integer or all, found 0"),
        ("checkpoint: {keep_best: 1, monitor: quality}", "whether a small or a large quality is better is not known"),
        ("checkpoint: {mode: less}", 'checkpoint.mode: expected one of auto, min, max, found "less"'),
        ("checkpoint: {max_total_size: 20 bananas}", 'expected "20 GB", "512 MiB" or a number of bytes, found "20 ba'),
        ("checkpoint: {min_free: 0}", 'checkpoint.min_free: expected "20 GB", "512 MiB" or a number of bytes, found 0'),
        (
            "compile: {optimizer: {adam: {}, sgd: {}}, loss: mse}",
            "compile.optimizer: expected a name, or one name with",
        ),
        ("compile: {optimizer: adam}", "compile.loss: is missing; expected a name"),
        ("compile: {optimizer: adam, loss: mse, metrics: accuracy}", "compile.metrics: expected a list of names"),
        ("model_args: [1]", "model_args: expected a mapping of argument names to values, found [1]"),
        ("phases: [{epochs: 1}]", "recipe: expected one of epochs, phases, found both"),
    ],
)
def test_mistakes_name_the_key(tmp_path: Path, line: str, message: str) -> None:
    error = _error(tmp_path, MINIMAL + line)
    assert error.code == "ANY-RECIPE-004"
    assert message in error.message
    assert len(error.message.splitlines()) == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{images: cats}", "data.train.images: not available in this version; use one of: arrays, npz"),
        ("{npz: a.npz, size: big}", "data.train.size: not available in this version; use one of: arrays, npz"),
        ("{}", "data.train: expected exactly one of arrays, npz, found none of them"),
        ("{npz: a.npz, arrays: {x: a.npy}}", "data.train: expected exactly one of arrays, npz, found arrays and npz"),
        ("{arrays: {x: a.npy}, y: b}", "data.train: expected x, y and sample_weight inside arrays, found y beside it"),
        ("{npz: a.npz, x: []}", "data.train.x: expected a key, a list of keys, or a mapping"),
        ("{npz: 3}", "data.train.npz: expected a path, found 3"),
        ("null", "data.train: expected a mapping, found nothing"),
    ],
)
def test_data_has_one_source(tmp_path: Path, source: str, message: str) -> None:
    text = f"model: a.py:f\nepochs: 1\ndata: {{train: {source}}}"
    assert message in _error(tmp_path, text).message


def test_every_mistake_is_listed_at_once(tmp_path: Path) -> None:
    text = "model: nonsense\ndata: {train: {npz: a.npz}, tests: {}}\nseed: x\n"
    assert _error(tmp_path, text).message.splitlines() == [
        'model: expected "file.py:function" or "package.module:function", found "nonsense"',
        "data.tests: unknown key; use one of: train, validation",
        'seed: expected an integer, 0 or more, found "x"',
    ]


def test_one_phase_is_the_same_as_epochs(tmp_path: Path) -> None:
    assert _load(tmp_path, MINIMAL.replace("epochs: 3", "phases: [{epochs: 3}]")) == _load(tmp_path)


def test_phases_have_names_and_a_total(tmp_path: Path) -> None:
    recipe = _load(tmp_path, MINIMAL.replace("epochs: 3", "phases: [{epochs: 3}, {epochs: 4, name: fine}]"))
    assert [phase.name for phase in recipe.phases or ()] == ["phase 1", "fine"]
    assert recipe.total_epochs == 7


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("seed: 1", "recipe: expected one of epochs, phases, found none of them"),
        ("epochs: 2\nphases: [{epochs: 3}]", "recipe: expected one of epochs, phases, found both"),
        ("phases: 3", "phases: expected a list, found 3"),
        ("phases: [{epochs: 3, freze: [a]}]", "phases.0.freze: unknown key; did you mean freeze?"),
        (
            "phases: [{epochs: 1, name: a}, {epochs: 1, name: a}]",
            'recipe: expected a name of its own for each phase, found ["a", "a"]',
        ),
        ("epochs: 1\nlimits: {max_time: soon}", 'limits.max_time: expected "90 s", "30 min", "2 h", "1 d" or'),
    ],
)
def test_wrong_phases_and_limits_are_told(tmp_path: Path, given: str, message: str) -> None:
    assert message in _error(tmp_path, MINIMAL.replace("epochs: 3", given)).message


def test_overrides_are_yaml_and_make_mappings_on_the_way(tmp_path: Path) -> None:
    text = MINIMAL + "compile: {optimizer: adam, loss: mse}"
    recipe = _load(
        tmp_path, text, "compile.optimizer.adamw.learning_rate=1e-3", "batch.global_size=64", "model_args.n=[1]"
    )
    assert recipe.compile is not None
    assert recipe.compile.optimizer == {"adamw": {"learning_rate": 0.001}}
    assert recipe.batch.global_size == 64
    assert recipe.model_args == {"n": [1]}


@pytest.mark.parametrize(
    ("override", "code", "message"),
    [
        ("epochs", "ANY-RECIPE-005", '"epochs" is not an override: expected key=value'),
        ("=3", "ANY-RECIPE-005", "expected key=value"),
        ("a..b=3", "ANY-RECIPE-005", "expected key=value"),
        ("epoch=3", "ANY-RECIPE-004", "epoch: unknown key; did you mean epochs?"),
        ("epochs=three", "ANY-RECIPE-004", 'epochs: expected a positive integer, found "three"'),
        ("seed=[", "ANY-RECIPE-002", "the value of seed"),
    ],
)
def test_overrides_have_the_same_errors(tmp_path: Path, override: str, code: str, message: str) -> None:
    error = _error(tmp_path, MINIMAL, override)
    assert error.code == code
    assert message in error.message


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", "ANY-RECIPE-003", "it is empty"),
        ("- a\n", "ANY-RECIPE-003", "found list"),
        ("a: 1\nb: 2\na: 3\n", "ANY-RECIPE-002", 'cats.yaml:3: not valid YAML: the key "a" stands twice'),
        ("a: {b: 1, b: 2}\n", "ANY-RECIPE-002", 'the key "b" stands twice'),
        ("a: [1\nb: 2\n", "ANY-RECIPE-002", "cats.yaml:2: not valid YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", "ANY-RECIPE-002", "could not determine a constructor"),
    ],
)
def test_files_that_are_no_recipe(tmp_path: Path, text: str, code: str, message: str) -> None:
    error = _error(tmp_path, text)
    assert error.code == code
    assert message in error.message


def test_paths_that_are_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path, message in (("none.yaml", "no such file"), (".", "this is a folder"), ("binary", "not a text file")):
        with pytest.raises(UsageError, match=message) as caught:
            load_recipe(tmp_path / path)
        assert caught.value.code == "ANY-RECIPE-001"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("010", 10),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("~", None),
        ("1:30", "1:30"),
        ("", None),
    ],
)
def test_plain_values_follow_yaml_1_2(tmp_path: Path, text: str, value: Any) -> None:
    found = _load(tmp_path, MINIMAL, f"model_args.a={text}").model_args["a"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "every"),
    [("1 epoch", (1, "epoch")), ("200 steps", (200, "step")), ("2 Epochs", (2, "epoch")), ("epoch", (1, "epoch"))],
)
def test_intervals(text: str, every: tuple[int, str]) -> None:
    assert parse_every(text) == Every(count=every[0], unit=every[1])


@pytest.mark.parametrize("text", ["", "5", "0 steps", "-1 steps", "1.5 epochs", "3 hours", "1 epoch 2", 5, None])
def test_what_is_no_interval(text: object) -> None:
    with pytest.raises(ValueError, match="n steps"):
        parse_every(text)


def test_differences_that_stop_a_resume(tmp_path: Path) -> None:
    old = _load(tmp_path).canonical()
    new = _load(
        tmp_path, MINIMAL, "seed=1", "epochs=9", "checkpoint.keep_last=1", "model_args.n=4", "compile.loss=mse",
        "compile.optimizer=sgd",
    ).canonical()  # fmt: skip
    assert [str(change) for change in changes(old, new) if not change.free] == [
        'compile.loss: (not set) -> "mse"',
        'compile.optimizer: (not set) -> "sgd"',
        "model_args.n: (not set) -> 4",
        "seed: 0 -> 1",
    ]
    assert {change.key for change in changes(old, new) if change.free} == {"epochs", "checkpoint.keep_last"}
    assert changes(old, old) == []


def test_keys_of_a_later_version_are_no_difference_at_their_defaults(tmp_path: Path) -> None:
    new = _load(tmp_path, MINIMAL, "compile.loss=mse", "compile.optimizer=sgd").canonical()
    old = {key: value for key, value in new.items() if key not in ("limits", "phases", "on_nonfinite", "precision")}
    old["compile"] = {"optimizer": "sgd", "loss": "mse"}
    assert changes(old, new) == changes(new, old) == []
    assert [str(c) for c in changes(old, {**new, "precision": "float32"})] == ['precision: "auto" -> "float32"']


def test_reading_a_recipe_imports_no_framework(tmp_path: Path) -> None:
    (tmp_path / "cats.yaml").write_text(MINIMAL)
    code = (
        "import sys; from anyrig.train.recipe.schema import load_recipe; load_recipe(sys.argv[1]);"
        "assert not {'tensorflow', 'keras', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "cats.yaml"], check=True, timeout=60)
