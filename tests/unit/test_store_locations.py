"""What a path is, and what a run directory may be made of."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from anyrig.errors import AnyrigError, UsageError
from anyrig.locations import find_checkpoint, prepare_run_directory, resolve
from anyrig.store.layout import leftover_name
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint


def run_with(root: Path, *steps: int) -> Path:
    run = prepare_run_directory(root / "run")
    for step in steps:
        tensor = StoredTensor(name="model/a", array=np.array(step))
        write_checkpoint(run / "checkpoints", step, [tensor], progress={})
    return run


def test_kinds(tmp_path: Path) -> None:
    run = run_with(tmp_path, 3)
    step = run / "checkpoints" / "step-000000003"
    (tmp_path / "notes.txt").touch()
    (run / "checkpoints" / "step-000000004").mkdir()
    moved = run_with(tmp_path / "other", 3) / "checkpoints"
    moved = moved.rename(tmp_path / "moved")
    expected = {
        run: "run",
        run / "checkpoints": "checkpoints",
        moved: "checkpoints",
        step: "checkpoint",
        run / "checkpoints" / "step-000000004": "checkpoint",
        step / "model-00001-of-00001.safetensors": "safetensors",
        step / "manifest.json": "file",
        tmp_path / "notes.txt": "file",
        tmp_path: "folder",
    }
    assert {path: resolve(path).kind for path in expected} == expected


def test_find_takes_the_newest_committed(tmp_path: Path) -> None:
    run = run_with(tmp_path, 3, 20, 100)
    (run / "checkpoints" / "step-000000200").mkdir()
    newest = run / "checkpoints" / "step-000000100"
    assert find_checkpoint(run) == find_checkpoint(str(run / "checkpoints")) == find_checkpoint(newest) == newest
    assert find_checkpoint(run / "checkpoints" / "step-000000003").name == "step-000000003"


def rated_run(root: Path, values: dict[int, float], **keep: object) -> Path:
    run = prepare_run_directory(root / "rated")
    for step, value in values.items():
        progress = {"boundary": "epoch", "metrics": {"val_loss": value}}
        tensor = StoredTensor(name="model/a", array=np.array(step))
        write_checkpoint(run / "checkpoints", step, [tensor], progress=progress, record={"keep": keep} if keep else {})
    return run


def test_the_best_and_a_step_are_named_within_a_run(tmp_path: Path) -> None:
    run = rated_run(tmp_path, {3: 0.5, 20: 0.2, 100: 0.9}, monitor="val_loss")
    folder = run / "checkpoints"
    assert find_checkpoint(run / "best") == find_checkpoint(f"{folder}/best") == folder / "step-000000020"
    assert find_checkpoint(run / "step-3") == find_checkpoint(run / "step-000000003") == folder / "step-000000003"
    assert resolve(run / "best").kind == "checkpoint"
    highest = rated_run(tmp_path / "max", {3: 0.5, 20: 0.2, 100: 0.9}, monitor="val_loss", mode="max")
    assert find_checkpoint(highest / "best").name == "step-000000100"
    with pytest.raises(UsageError, match=r"no committed checkpoint of step 7: the committed steps are 3, 20, 100\."):
        find_checkpoint(run / "step-7")
    other = rated_run(tmp_path / "other", {3: 0.5}, monitor="val_acc")
    with pytest.raises(UsageError, match=r"has a value of val_acc, .* there are values of val_loss") as caught:
        find_checkpoint(other / "best")
    assert caught.value.code == "ANY-LOAD-018"
    with pytest.raises(UsageError, match="trained without `monitor`"):
        find_checkpoint(rated_run(tmp_path / "none", {3: 0.5}) / "best")
    with pytest.raises(UsageError, match="the committed steps are none"):
        find_checkpoint(run_with(tmp_path) / "best")
    with pytest.raises(UsageError, match="best does not exist"):
        find_checkpoint(tmp_path / "best")
    (run / "best").mkdir()
    assert resolve(run / "best").kind == "folder", "what bears the very name is meant"


def test_find_says_what_was_found(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    with pytest.raises(UsageError, match=r"no committed checkpoint: .*checkpoints holds nothing\.") as caught:
        find_checkpoint(run)
    assert caught.value.code == "ANY-LOAD-013"
    partial = leftover_name(7, "partial")
    (run / "checkpoints" / partial).mkdir()
    with pytest.raises(UsageError, match=rf"holds {partial}\."):
        find_checkpoint(run)
    with pytest.raises(UsageError, match="is a folder that is neither") as caught:
        find_checkpoint(tmp_path)
    assert caught.value.code == "ANY-LOAD-002"
    with pytest.raises(UsageError, match=rf"nowhere/run does not exist \({tmp_path} does\)") as caught:
        find_checkpoint(tmp_path / "nowhere" / "run")
    assert caught.value.code == "ANY-LOAD-001"


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run_with(tmp_path, 3)
    assert find_checkpoint("~/run").name == "step-000000003"
    assert prepare_run_directory("~/run2") == tmp_path / "run2"


def test_a_run_directory_is_made_and_found_again(tmp_path: Path) -> None:
    run = prepare_run_directory(tmp_path / "a" / "b")
    assert os.listdir(run) == ["checkpoints"]
    (run / "recipe.yaml").touch()
    assert prepare_run_directory(run) == run
    assert sorted(os.listdir(run)) == ["checkpoints", "recipe.yaml"]
    (tmp_path / "empty").mkdir()
    prepare_run_directory(tmp_path / "empty")


def test_paths_that_cannot_be_a_run_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    expected = {
        "file": ("ANY-STORE-010", "is a file"),
        "file/below": ("ANY-STORE-011", "Not a directory"),
        "folder": ("ANY-STORE-012", "it holds thesis.txt"),
        "dangling": ("ANY-STORE-010", "is a file"),
    }
    for name, (code, found) in expected.items():
        with pytest.raises(UsageError, match=found) as caught:
            prepare_run_directory(tmp_path / name)
        assert caught.value.code == code
    saved = write_checkpoint(tmp_path, 1, [], progress={}).path.rename(tmp_path / "saved")
    with pytest.raises(UsageError, match=r"saved is a checkpoint, not a run directory\."):
        prepare_run_directory(saved)
    assert (tmp_path / "file").read_text() == "mine"
    assert os.listdir(saved) == ["manifest.json"]
    assert os.listdir(tmp_path / "folder") == ["thesis.txt"]


AS_NOBODY = """
import os, sys
from anyrig.errors import AnyrigError
from anyrig import locations
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
for function in (locations.prepare_run_directory, locations.find_checkpoint):
    try:
        print(function(sys.argv[1]))
    except AnyrigError as error:
        print(error.code, error.message)
"""


def open_to_all(folder: Path) -> None:
    """Let every user reach a temporary folder: pytest makes its parents for the owner alone."""
    for parent in (folder, *folder.parents):
        if parent != Path(tempfile.gettempdir()) and parent.is_relative_to(tempfile.gettempdir()):
            parent.chmod(0o755)


def as_nobody(path: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(path)], capture_output=True, text=True, check=False, timeout=60, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_B150_a_folder_that_may_not_be_written_or_read(tmp_path: Path) -> None:
    open_to_all(tmp_path)
    run = run_with(tmp_path, 3)
    prepared, found = as_nobody(run)
    assert prepared.startswith("ANY-STORE-011")
    assert "cannot be written to: Permission denied" in prepared
    assert found == str(run / "checkpoints" / "step-000000003")
    prepared, found = as_nobody(tmp_path / "new")
    assert "ANY-STORE-011" in prepared
    assert "ANY-LOAD-001" in found
    run.chmod(0o000)
    prepared, found = as_nobody(run)
    assert "Permission denied" in prepared
    assert "ANY-LOAD-012" in found
    run.chmod(0o755)


def test_a_read_only_file_system(tmp_path: Path) -> None:
    """/proc takes no new folders, even from root."""
    with pytest.raises(AnyrigError, match="cannot be written to"):
        prepare_run_directory("/proc/anyrig-run")
