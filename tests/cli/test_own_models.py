"""Models that the newcomer writes: a class that is built with its first data, several inputs, runs from Python."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from anyrig.store.read import open_checkpoint
from anyrig.testing.processes import run_python
from tests.cli.conftest import Several

CODE = """
import keras
layers = keras.layers

class Digits(keras.Model):
    def __init__(self):
        super().__init__()
        self.flat, self.drop = layers.Flatten(), layers.Dropout(0.2)
        self.head = layers.Dense(10, activation="softmax")
    def call(self, x, training=False):
        return self.head(self.drop(self.flat(x), training=training))

class Ratings(keras.Model):
    def __init__(self):
        super().__init__()
        self.user, self.item, self.head = layers.Embedding(10, 4), layers.Embedding(10, 4), layers.Dense(1)
    def call(self, x):
        return self.head(keras.ops.concatenate([self.user(x["user"]), self.item(x["item"])], -1))

def functional():
    user, item = [keras.Input((), name=name, dtype="int64") for name in ("user", "item")]
    joined = layers.Concatenate()([layers.Embedding(10, 4)(user), layers.Embedding(10, 4)(item)])
    return keras.Model([user, item], layers.Dense(1, name="stars")(joined))

def deep():
    return keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), *[layers.Dense(3) for _ in range(15)]])

def compiled():
    model = Digits()
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model
"""
DIGITS = """
model: own.py:Digits
data: {train: {npz: digits.npz}, validation: {npz: digits.npz}}
epochs: 1
compile: {optimizer: adam, loss: sparse_categorical_crossentropy}
"""
RATINGS = """
model: own.py:Ratings
data: {train: {npz: ratings.npz, x: [user, item], y: stars}}
epochs: 1
compile: {optimizer: adam, loss: mse}
"""
BY_HAND = "--recipe digits.yaml"
COMMANDS = {
    "plan": "plan digits.yaml",
    "train": "train digits.yaml",
    "train ratings": "train ratings.yaml",
    "train functional": "train functional.yaml",
    "train compiled": "train compiled.yaml",
    "inspect": "inspect runs/digits",
    "rows": f"predict runs/digits digits.npz {BY_HAND}",
    "image": f"predict runs/digits digit.png {BY_HAND}",
    "metrics": f"evaluate runs/digits {BY_HAND}",
    "wrong recipe": "predict runs/digits digits.npz --recipe functional.yaml",
    "deep": "predict runs/digits digits.npz --recipe deep.yaml",
    "wrong class": "predict runs/digits digits.npz --recipe ratings.yaml",
    "own metrics": "evaluate runs/compiled",
    "named": "predict runs/ratings ratings.npz --recipe ratings.yaml",
    "named metrics": "evaluate runs/ratings --data ratings.npz --recipe ratings.yaml",
    "functional": "predict runs/functional ratings.npz",
    "functional metrics": "evaluate runs/functional --data ratings.npz",
    "image for names": "predict runs/functional digit.png",
    "rows for names": "predict runs/functional rows.npy",
    "other names": "evaluate runs/functional --data digits.npz",
    "wide": "predict runs/functional wide.npz",
    "unknown user": "predict runs/functional unknown.npz",
    "python": "evaluate runs/python",
    "copied": "evaluate copied",
    "inputs not recorded": f"predict runs/old digits.npz {BY_HAND}",
}
# What Python cannot do from the command line: a run without a recipe, and one as before inputs were recorded.
PREPARE = """
import json, shutil
from pathlib import Path
from anyrig.store.read import open_checkpoint
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint
run = Path("runs/digits")
shutil.copytree(run, "runs/python")
Path("runs/python/recipe.yaml").unlink()
newest = sorted((run / "checkpoints").iterdir())[-1]
shutil.copytree(newest, "copied")
stored = open_checkpoint(newest)
tensors = [StoredTensor(name=n, array=stored.tensor(n)) for n in stored.names if n.startswith("model/")]
record = {key: value for key, value in stored.record.items() if key != "inputs"}
documents = {"model.json": stored.document("model.json")}
write_checkpoint("runs/old/checkpoints", 1, tensors, progress=stored.progress, record=record, documents=documents)
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Several:
    """All commands, in one process after another."""
    folder = tmp_path_factory.mktemp("own")
    rng = np.random.default_rng(0)
    (folder / "own.py").write_text(CODE)
    (folder / "digits.yaml").write_text(DIGITS)
    (folder / "ratings.yaml").write_text(RATINGS)
    (folder / "functional.yaml").write_text(RATINGS.replace("Ratings", "functional"))
    (folder / "deep.yaml").write_text(DIGITS.replace("Digits", "deep"))
    (folder / "compiled.yaml").write_text(DIGITS.partition("compile:")[0].replace("Digits", "compiled"))
    np.savez(folder / "digits.npz", x=rng.random((40, 8, 8, 1), np.float32), y=rng.integers(0, 10, 40))
    user, item = rng.integers(0, 10, (2, 40))
    np.savez(folder / "ratings.npz", user=user, item=item, stars=rng.random(40))
    np.savez(folder / "wide.npz", user=np.zeros((4, 3), int), item=np.zeros(4, int))
    np.savez(folder / "unknown.npz", user=np.full(4, 99), item=np.zeros(4, int))
    np.save(folder / "rows.npy", np.zeros((4, 3)))
    Image.fromarray((rng.random((20, 20)) * 255).astype(np.uint8)).save(folder / "digit.png")
    trained = Several(folder, {name: line for name, line in COMMANDS.items() if line.startswith("train ")})
    assert {name: trained[name][0] for name in trained.names} == dict.fromkeys(trained.names, 0)
    run_python(PREPARE, cwd=folder)
    return Several(folder, {name: line for name, line in COMMANDS.items() if not line.startswith("train ")})


def test_the_plan_counts_the_parameters_that_inspect_counts(done: Several) -> None:
    assert "parameters         650 (2.5 KiB)" in done["plan"][1]
    assert "parameters    650\n" in done["inspect"][1]


@pytest.mark.parametrize("name", ["rows", "image", "inputs not recorded", "named", "named metrics", "functional"])
def test_what_waits_for_its_first_data_is_built(done: Several, name: str) -> None:
    code, out, err = done[name]
    assert (code, err.count("\n") <= 1) == (0, True), err
    assert out


def test_the_same_model_predicts_the_same(done: Several) -> None:
    assert done["inputs not recorded"][1] == done["rows"][1]


def test_evaluation_gives_the_numbers_of_training(done: Several) -> None:
    newest = sorted((done.folder / "runs" / "digits" / "checkpoints").iterdir())[-1]
    logged = open_checkpoint(newest).progress["metrics"]["val_loss"]
    assert done["metrics"][1].split() == ["loss", f"{logged:.4f}"]


def test_the_image_is_made_into_the_recorded_input(done: Several) -> None:
    assert "digit.png: 20 x 20 grayscale -> 8 x 8 grayscale, pixels x 1/255" in done["image"][2]


def test_labels_are_found_by_the_name_of_the_output(done: Several) -> None:
    assert done["functional metrics"][1].startswith("loss ")


def test_only_the_first_differences_are_shown(done: Several) -> None:
    lines = done["deep"][2].splitlines()
    pairs = [line for line in lines if line.startswith(("  stored", "  wanted"))]
    assert len(pairs) == 2 * 10
    assert f"  ... and {15 * 2 + 3 - 10} more" in lines


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        (
            "wrong recipe",
            ["the model of own.py:functional shares 0 of 3 weights with the checkpoint: is it the right recipe?\n"],
        ),
        ("wrong class", ["own.py:Ratings cannot be called with its inputs, 8 x 8 x 1 (float32): ", "name the recipe"]),
        ("own metrics", ["set by the code of own.py:compiled, which"]),
        ("image for names", ["this model takes item, user, and not one array", "give an .npz with these names"]),
        ("rows for names", ["this model takes item, user, and not one array", "give an .npz with these names"]),
        ("other names", ["digits.npz has no array item, user; it holds x, y", "this model takes item, user"]),
        ("wide", ["it takes rows of item: one value (int64), user: one value (int64); given are", "user: 3 (int64)"]),
        ("unknown user", ["does not fit the model: InvalidArgumentError: indices[0] = 99 is not in [0, 10)"]),
        ("python", ["this run was started from Python, so it has no recipe.yaml"]),
        ("copied", ["copied is not in a run directory with a recipe.yaml"]),
    ],
)
def test_what_does_not_fit_is_told_by_name(done: Several, name: str, messages: list[str]) -> None:
    code, _, err = done[name]
    assert code == (1 if name == "wrong recipe" else 2)
    assert [message for message in messages if message not in err] == [], err
    assert "\n  next: " in err
