"""`train`, `plan`, `predict` and `evaluate` in processes of their own, on one run that was trained on two devices."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anyrig.store.read import open_checkpoint
from anyrig.train.recipe.schema import load_recipe
from tests.cli.conftest import Several, command, files_in

OWN_MODEL = """
import keras
class Twice(keras.layers.Layer):
    def call(self, x): return 2 * x
def build_model():
    layers = [keras.Input((8, 8, 1)), Twice(), keras.layers.Flatten(), keras.layers.Dense(10)]
    return keras.Sequential(layers)
"""


def _newest(folder: Path) -> Path:
    return sorted((folder / "runs" / "cats" / "checkpoints").iterdir())[-1]


def _copy(trained: Path, factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(trained, factory.mktemp("copy") / "folder"))


REFUSED = {
    "train cats.yaml seed=1": "recipe: seed: 0 -> 1",
    "train cats.yaml --resume never": "already holds a run",
    "train cats.yaml --run file": "The run directory file is a file",
    "train cats.yaml --run .": "is not a run directory and is not empty",
    "train cats.yaml --resume must --run runs/new": "holds no checkpoint to resume from",
    "train cats.yaml --allow-changes everything": "'everything'",
    "train cats.yaml --devices 0": "devices: expected a positive number, cpu or gpu, found 0",
    "train cats.yaml batch.virtual_replicas=0": "batch.virtual_replicas: expected a positive integer, found 0",
    "train cats.yaml model=cats.py:build_modl": "did you mean build_model?",
    "train cats.yaml data.train.y=x_": "data.train.y: train.npz has no array x_",
}
PLANS = {"plan": "plan cats.yaml --devices 1", "dry run": "train cats.yaml --dry-run --devices 1 --run runs/dry"}
USES = {
    "rows": "predict runs/cats rows.npy",
    "rows into a file": "predict runs/cats rows.npy --output out.npy",
    "rows of a checkpoint": "predict CHECKPOINT validation.npz --json",
    "image": "predict runs/cats cat.png",
    "all rows": "predict runs/cats many.npy",
    "metrics": "evaluate runs/cats --json",
    "metrics of a file": "evaluate CHECKPOINT --data train.npz",
    "metrics of other names": "evaluate runs/cats --data other.npz",
    "metrics of one array": "evaluate runs/cats --data rows.npy",
    "wrong shape": "predict runs/cats wrong.npy",
    "no image": "predict runs/cats none.png",
    "neither": "predict runs/cats cats.yaml",
    "no source": "predict cats.yaml cat.png",
    "damaged run": "evaluate runs/damaged",
    "damaged checkpoint": "predict DAMAGED validation.npz",
    "own": "train own.yaml",
    "own refused": "predict runs/own validation.npz",
    "own named": "predict runs/own validation.npz --recipe own.yaml",
}


@pytest.fixture(scope="module")
def refused(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Several:
    """Commands that train nothing: refused ones, and plans."""
    folder = _copy(trained, tmp_path_factory)
    (folder / "file").touch()
    return Several(folder, {**{text: text for text in REFUSED}, **PLANS})


@pytest.fixture(scope="module")
def used(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Several:
    """Commands that use a run, without its code at first."""
    folder = _copy(trained, tmp_path_factory)
    rows = np.load(folder / "validation.npz")["x"]
    np.save(folder / "rows.npy", rows)
    np.save(folder / "wrong.npy", np.zeros((2, 5)))
    np.save(folder / "many.npy", np.concatenate([rows] * 100))
    np.savez(folder / "other.npz", x=rows, labels=np.zeros(20))
    pixels = (rows[3, :, :, 0] * 255).round().astype(np.uint8)
    Image.fromarray(pixels).resize((64, 64), Image.Resampling.NEAREST).save(folder / "cat.png")
    (folder / "cats.py").unlink()
    (folder / "own.py").write_text(OWN_MODEL)
    text = (folder / "cats.yaml").read_text().replace("cats.py", "own.py").replace("epochs: 2", "epochs: 1")
    (folder / "own.yaml").write_text(text)
    shutil.copytree(folder / "runs" / "cats", folder / "runs" / "damaged")
    damaged = folder / "runs" / "damaged" / "checkpoints" / _newest(folder).name
    _flip_a_byte(next(damaged.glob("model-*.safetensors")))
    names = {"CHECKPOINT": _newest(folder).relative_to(folder), "DAMAGED": damaged.relative_to(folder)}
    commands = {}
    for name, line in USES.items():
        commands[name] = " ".join(str(names.get(word, word)) for word in line.split())
    return Several(folder, commands)


def _flip_a_byte(file: Path) -> None:
    file.chmod(0o600)
    content = bytearray(file.read_bytes())
    content[-8] ^= 1
    file.write_bytes(content)


def test_training_prints_the_plan_and_the_end(trained: Path) -> None:
    out = (trained / "first.txt").read_text()
    digest = open_checkpoint(_newest(trained)).state_digest
    assert "because devices=2 was asked for" in out
    assert "\nepoch 2/2  " in out
    assert out.splitlines()[-1] == f"state digest  {digest}"
    assert "done          runs/cats" in out
    assert "step          6, after epoch 2 of 2" in out


def test_the_run_keeps_a_recipe_that_is_one_itself(trained: Path) -> None:
    kept = load_recipe(trained / "runs" / "cats" / "recipe.yaml")
    assert (kept.base_dir / kept.model.partition(":")[0]).resolve() == (trained / "cats.py").resolve()
    assert str(trained) not in (trained / "runs" / "cats" / "recipe.yaml").read_text()
    given = load_recipe(trained / "cats.yaml").canonical()
    assert {**kept.canonical(), "model": "", "data": ""} == {**given, "model": "", "data": ""}


def test_a_run_goes_on_by_itself_on_another_number_of_devices(
    trained: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = _copy(trained, tmp_path_factory)
    finished = command("train", "cats.yaml", "epochs=3", "--devices", 1, cwd=folder)
    assert "resuming runs/cats at step 6, after epoch 2 of 3" in finished.stdout
    assert "epochs: 2 -> 3" in finished.stdout
    assert _newest(folder).name == "step-000000009"
    assert load_recipe(folder / "runs" / "cats" / "recipe.yaml").epochs == 3
    straight = command("train", "cats.yaml", "epochs=3", "--run", "runs/straight", "--devices", 2, cwd=folder)
    assert straight.stdout.splitlines()[-1] == finished.stdout.splitlines()[-1]


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_done_is_refused_in_one_message(refused: Several, line: str) -> None:
    code, _, err = refused[line]
    assert code == 2
    assert REFUSED[line] in err
    assert "\n  next: " in err


def test_what_was_refused_or_planned_changed_nothing(refused: Several) -> None:
    after = files_in(refused.folder)
    changed = {path.name for path, content in refused.before.items() if after[path] != content}
    assert changed <= {"events.jsonl", "environment.json"}
    added = {path.relative_to(refused.folder) for path in after.keys() - refused.before.keys()}
    assert {path.parts[:2] for path in added} <= {("runs", "new")}
    assert not any("step-" in str(path) for path in added)


def test_plan_and_dry_run_show_the_same(refused: Several) -> None:
    assert refused["plan"] == refused["dry run"]
    code, out, _ = refused["plan"]
    assert code == 0
    for text in (
        "CPU:0              replicas 0 to 1, 16 rows of each full batch",
        "full batches       2 of 16 rows per epoch; virtual replicas get 8 rows x 2",
        "last batch         8 rows; virtual replicas get 4 rows x 2",
        "3 steps per epoch, 6 in 2 epochs",
        "every 1 epoch",
        "optimizer          Adam",
        "memory\n  CPU:0              about ",
    ):
        assert text in out


def test_predictions_of_rows(used: Several) -> None:
    (code, table, _), (_, listed, _) = used["rows"], used["rows of a checkpoint"]
    outputs = np.load(used.folder / "out.npy")
    assert (code, outputs.shape) == (0, (20, 10))
    assert table.splitlines()[1].split() == ["rows.npy[0]", str(outputs[0].argmax()), f"{outputs[0].max():.4f}"]
    np.testing.assert_array_equal(np.array([row["output"] for row in json.loads(listed)], np.float32), outputs)


def test_predictions_into_a_file_are_not_printed(used: Several) -> None:
    assert used["rows into a file"] == (0, "wrote out.npy: 20 x 10 float32\n", "")


def test_only_the_first_of_many_rows_are_printed(used: Several) -> None:
    lines = used["all rows"][1].splitlines()
    assert len(lines) == 1 + 20 + 1
    assert lines[-1] == "… 1,980 more rows (--output FILE.npy or --json for all)"


def test_prediction_of_an_image_says_what_was_done_to_it(used: Several) -> None:
    code, out, err = used["image"]
    assert code == 0
    assert int(out.splitlines()[1].split()[1]) == np.load(used.folder / "out.npy")[3].argmax()
    assert "cat.png: 64 x 64 grayscale -> 8 x 8 grayscale, pixels x 1/255" in err


def test_evaluation_gives_the_numbers_of_training(used: Several) -> None:
    logged = open_checkpoint(_newest(used.folder)).progress["metrics"]
    assert json.loads(used["metrics"][1]) == {"loss": logged["val_loss"], "accuracy": logged["val_accuracy"]}
    assert used["metrics of a file"][0] == 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrong shape", "it takes rows of 8 x 8 x 1 (float32); given are rows of 5 (float32)"),
        ("neither", "cats.yaml: it is neither an array file nor an image"),
        ("metrics of other names", "other.npz has no array y; it holds x, labels"),
        ("metrics of one array", "rows.npy holds one array, without a name"),
        ("no image", "none.png: there is no such file"),
        ("no source", "cats.yaml is of no format that is known here"),
    ],
)
def test_inputs_and_sources_that_cannot_be_used(used: Several, name: str, message: str) -> None:
    code, _, err = used[name]
    assert code == 2
    assert message in err


def test_damage_is_found_before_use(used: Several) -> None:
    code, _, err = used["damaged run"]
    assert code == 0
    assert "step-000000006 was passed over" in err
    code, _, err = used["damaged checkpoint"]
    assert code == 1
    assert "is damaged, and is not used" in err


def test_a_model_of_ones_own_classes_needs_the_recipe(used: Several) -> None:
    assert used["own"][0] == 0, used["own"]
    code, _, err = used["own refused"]
    assert code == 2
    assert "own.Twice" in err
    assert "--recipe RECIPE" in err
    assert used["own named"][0] == 0, used["own named"]
