"""A fork begins with the bytes of the old run, changes only what was asked, and goes on as a run of its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import anyrig
from anyrig.errors import AnyrigError, UsageError
from anyrig.store.commit import newest_sound
from anyrig.store.read import Checkpoint
from anyrig.train import fork as forking
from anyrig.train.fork import fork
from anyrig.train.recipe.run import run_from_recipe, train_recipe
from anyrig.train.recipe.schema import load_recipe

X = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
Y = np.random.default_rng(1).normal(size=(20, 1)).astype("float32")


def build() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Dropout(0.2), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def run(folder: Path, epochs: int, v: int | None = None, **more: Any) -> Checkpoint:
    batch = anyrig.Batch(global_size=10, virtual_replicas=v)
    anyrig.Run(folder, build, train=(X, Y), batch=batch, epochs=epochs, **more).train(verbose=0)
    stored, _ = newest_sound(folder / "checkpoints")
    assert stored is not None
    return stored


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return run(tmp_path_factory.mktemp("fork") / "old", 2, 2)


def test_a_fork_has_the_state_of_the_old_run_and_says_what_changes(old: Checkpoint, tmp_path: Path) -> None:
    made = fork(old.path.parent.parent, tmp_path / "new", virtual_replicas=5)
    assert made.checkpoint.state_digest == old.state_digest
    assert made.checkpoint.progress["forked_from"]["state_digest"] == old.state_digest
    assert made.messages[1:] == (
        "virtual_replicas: 2 -> 5",
        "from here on sums are made in another order and masks are drawn anew; the run can use at most 5 devices",
    )


def test_a_checkpoint_that_the_old_run_removes_meanwhile_gives_way_to_its_next_one(
    old: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old run goes on while it is forked: at each of the first moments its newest checkpoint is another one."""
    real, source = forking._hold, tmp_path / "old"
    shutil.copytree(old.path.parent.parent, source)
    steps = sorted((source / "checkpoints").iterdir())

    def removed_at(moment: str, step: Path) -> Any:
        def hold(stored: Checkpoint) -> Any:
            if stored.path == step:
                next(step.glob(moment)).unlink()
                shutil.rmtree(step)
            return real(stored)

        return hold

    for moment in ("*.safetensors", "model.json"):
        monkeypatch.setattr(forking, "_hold", removed_at(moment, steps[-1]))
        assert fork(source, tmp_path / moment[:5]).checkpoint.step == int(steps[-2].name[5:])
        shutil.copytree(old.path, steps[-1])
    monkeypatch.setattr(forking, "_hold", removed_at("model.json", steps[-1]))
    with pytest.raises(AnyrigError, match="no committed checkpoint of step"):
        fork(steps[-1], tmp_path / "one")


def test_the_old_v_is_refused_in_the_new_run_and_the_new_one_is_used(old: Checkpoint, tmp_path: Path) -> None:
    fork(old.path, tmp_path / "new", virtual_replicas=5)
    with pytest.raises(UsageError, match="ANY-RUN-010"):
        run(tmp_path / "new", 3, 2)
    gone_on = run(tmp_path / "new", 3, 5)
    assert (gone_on.step, gone_on.progress["virtual_replicas"]) == (6, 5)


def test_an_unchanged_fork_goes_on_to_the_bytes_of_the_old_run(old: Checkpoint, tmp_path: Path) -> None:
    made = fork(old.path, tmp_path / "new")
    assert made.messages[-1].startswith("nothing changes in the numbers")
    assert run(tmp_path / "new", 3, 2).state_digest == run(tmp_path / "whole", 3, 2).state_digest


def test_a_fork_into_another_precision_goes_on_in_it(old: Checkpoint, tmp_path: Path) -> None:
    fork(old.path, tmp_path / "new", precision="mixed_bfloat16")
    assert run(tmp_path / "new", 3, 2).progress["precision"] == "mixed_bfloat16"


def test_a_run_is_not_forked_into_one_that_is_there(old: Checkpoint, tmp_path: Path) -> None:
    fork(old.path, tmp_path / "new")
    with pytest.raises(UsageError, match="ANY-RUN-036"):
        fork(old.path, tmp_path / "new")


@pytest.mark.parametrize("given", [{"virtual_replicas": 0}, {"precision": "float8"}, {"precision": "auto"}])
def test_what_is_not_possible_is_refused_before_anything_is_made(
    old: Checkpoint, tmp_path: Path, given: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="ANY-RUN-037"):
        fork(old.path, tmp_path / "new", **given)
    assert not (tmp_path / "new").exists()


SOURCE = """
import keras
def build_model():
    image = keras.Input((6, 6, 1), name="image")
    hidden = keras.layers.BatchNormalization()(keras.layers.Conv2D(2, 3)(image))
    output = keras.layers.Dense(2, "softmax", dtype="float32")(keras.layers.Flatten()(hidden))
    model = keras.Model(image, output)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model
"""


def test_the_recipes_that_run_and_fork_keep_are_recipes_to_go_on_with(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(20, 6, 6, 1)).astype("float32"), generator.integers(0, 2, 20)
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    (tmp_path / "model.py").write_text(SOURCE, encoding="utf-8")
    text = "model: model.py:build_model\ndata: {train: {npz: rows.npz}}\nbatch: {virtual_replicas: 2}\nepochs: 1\n"
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")

    def train(recipe: Path, folder: Path, *changes: str) -> Checkpoint:
        loaded = load_recipe(recipe, changes)
        train_recipe(run_from_recipe(loaded, folder), loaded, verbose=0)
        stored, _ = newest_sound(folder / "checkpoints")
        assert stored is not None
        return stored

    old, new = tmp_path / "runs" / "old", tmp_path / "elsewhere" / "new"
    train(tmp_path / "recipe.yaml", old)
    assert train(old / "recipe.yaml", old, "epochs=2").step == 2
    fork(old, new, virtual_replicas=3, precision="mixed_bfloat16")
    gone_on = train(new / "recipe.yaml", new, "epochs=3")
    assert (gone_on.step, gone_on.progress["precision"], gone_on.progress["virtual_replicas"]) == (
        3,
        "mixed_bfloat16",
        3,
    )
