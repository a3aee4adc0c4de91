"""A run directory without TensorFlow, and one that `anyrig train` made, for the tests of the command line."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from anyrig.cli.main import run
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint
from anyrig.testing.processes import Finished, run_python

CLI = "from anyrig.cli.main import main; main()"
STEPS = (6, 9, 1200)
MODEL = """
import keras
layers = keras.layers

def build_model(classes=10):
    return keras.Sequential([
        keras.Input((8, 8, 1)), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.Flatten(), layers.Dropout(0.2),
        layers.Dense(classes, activation="softmax"),
    ])
"""
RECIPE = """
model: cats.py:build_model
data: {train: {npz: train.npz}, validation: {npz: validation.npz}}
batch: {global_size: 16, virtual_replicas: 2}
epochs: 2
compile: {optimizer: {adam: {learning_rate: 1e-2}}, loss: sparse_categorical_crossentropy, metrics: [accuracy]}
"""


# Runs each list of arguments in one process, and prints the list of [exit code, stdout, stderr].
_SEVERAL = """
import contextlib, io, json, sys
from anyrig.cli.main import run
results = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(arguments, debug=False)
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""


@dataclass(frozen=True)
class Result:
    """How a command ended in this process."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def anyrig() -> Command:
    """Run a command in this process: for those that need no TensorFlow."""

    def call(*arguments: object, debug: bool = False) -> Result:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([str(argument) for argument in arguments], debug=debug)
        return Result(code, out.getvalue(), err.getvalue())

    return call


class Several:
    """The outcomes of commands that ran one after another in one process, in a copy of the trained folder."""

    def __init__(self, folder: Path, commands: dict[str, str]) -> None:
        self.folder = folder
        self.names = list(commands)
        self.before = files_in(folder)
        arguments = json.dumps([text.split() for text in commands.values()])
        results = run_python(_SEVERAL, arguments, cwd=folder).json()
        self._results = dict(zip(commands, results, strict=True))

    def __getitem__(self, name: str) -> tuple[int, str, str]:
        code, out, err = self._results[name]
        return code, out, err


def files_in(folder: Path) -> dict[Path, bytes]:
    """Return the content of every file below `folder`."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def command(*arguments: object, cwd: Path, expect: int = 0) -> Finished:
    """Run a command in a process of its own: for those that use TensorFlow."""
    return run_python(CLI, *arguments, cwd=cwd, expect=expect)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A run directory with three checkpoints and one that was never finished."""
    directory = tmp_path / "stored"
    kernel = np.arange(9 * 16, dtype=np.float32).reshape(3, 3, 1, 16)
    for step in STEPS:
        tensors = [
            StoredTensor(name="model/conv/kernel", array=kernel + step),
            StoredTensor(name="model/head/bias", array=np.zeros(10, np.float32)),
            StoredTensor(name="optimizer/main/iterations", array=np.asarray(step)),
        ]
        position = {"step": step, "epoch": step // 6, "batch": step % 6}
        progress = {"position": position, "metrics": {"accuracy": 0.97123, "loss": 0.10311}}
        write_checkpoint(directory / "checkpoints", step, tensors, progress=progress)
    (directory / "checkpoints" / ".step-000001206.partial-0123abcd").mkdir()
    return directory


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, its data, and `runs/cats`, trained on two devices."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "cats.py").write_text(MODEL)
    (folder / "cats.yaml").write_text(RECIPE)
    rng = np.random.default_rng(0)
    for name, rows in (("train", 40), ("validation", 20)):
        np.savez(folder / f"{name}.npz", x=rng.random((rows, 8, 8, 1), np.float32), y=rng.integers(0, 10, rows))
    finished = command("train", "cats.yaml", "--devices", 2, cwd=folder)
    (folder / "first.txt").write_text(finished.stdout)
    return folder
