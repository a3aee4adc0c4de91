"""What the README shows is run: its Python, its recipe, its commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from anyrig.cli.main import COMMANDS
from anyrig.testing.processes import run_python

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PREPARE = """
import keras, numpy as np
def build_model():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="body"), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model
x, y = np.ones((70, 3), "float32"), np.ones((70, 1), "float32")
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_python_examples_run_and_save(tmp_path: Path) -> None:
    run_python(PREPARE + "\n".join(blocks("python")), cwd=tmp_path)
    newest = {run.name: max(path.name for path in (run / "checkpoints").iterdir()) for run in tmp_path.glob("runs/*")}
    assert newest == {"mine": "step-000000009", "fine": "step-000000021", "plain": "step-000000009"}


def test_the_recipe_is_one(tmp_path: Path) -> None:
    (recipe,) = blocks("yaml")
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    (tmp_path / "digits.py").write_bytes((ROOT / "src/anyrig/demo/digits.py").read_bytes())
    x, y = np.zeros((70, 8, 8, 1), "float32"), np.zeros(70, "int64")
    np.savez(tmp_path / "digits.npz", train_x=x, train_y=y, held_out_x=x, held_out_y=y)
    done = run_python(
        "from anyrig.cli.main import main; main()", "plan", "recipe.yaml", "--devices", 3, cwd=tmp_path, timeout=100
    )
    assert "virtual replicas   4 (at most 4 devices)" in done.stdout


@pytest.mark.parametrize("line", [line for block in blocks("") for line in block.splitlines() if "anyrig " in line])
def test_every_command_and_option_shown_exists(line: str) -> None:
    command, *options = re.findall(r"anyrig (\w+)|(--[a-z-]+)", line)
    assert command[0] in COMMANDS
    shown = subprocess.run(
        [sys.executable, "-m", "anyrig", command[0], "--help"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert all(option in shown for _, option in options)


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", README, flags=re.MULTILINE))
def test_every_make_target_shown_exists(target: str) -> None:
    assert f"\n{target}: " in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)#:]+)\)", README) + re.findall(r"`(tests/[\w/*.]+)`", README))
def test_every_file_named_exists(path: str) -> None:
    assert list(ROOT.glob(path.rstrip("/")))
