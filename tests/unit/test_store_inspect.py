"""inspect and verify as plain data, and the price of starting them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyrig.diagnose.inspect import GroupLine, TensorLine, inspect
from anyrig.diagnose.verify import verify
from anyrig.errors import AnyrigError, CheckFailed, UsageError
from anyrig.locations import prepare_run_directory
from anyrig.store.layout import leftover_name
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = prepare_run_directory(tmp_path / "run")
    for step in (10, 20):
        tensors = [
            StoredTensor(name="model/kernel", array=np.full((2, 16), step, np.float32), aliases=("k",)),
            StoredTensor(name="model/bias", array=np.zeros(3, np.float32)),
            StoredTensor(name="optimizer/iterations", array=np.array(step)),
        ]
        progress = {"epoch": step // 10, "metrics": {"loss": 0.5}}
        record = {"environment": {"keras": "3.15.1"}}
        write_checkpoint(run / "checkpoints", step, tensors, progress=progress, record=record)
    return run


def test_a_run_is_described_by_its_newest_checkpoint(run: Path) -> None:
    found = inspect(run)
    newest = run / "checkpoints" / "step-000000020"
    assert (found.kind, found.path, found.checkpoint, found.steps, found.step) == ("run", run, newest, (10, 20), 20)
    assert (found.parameters, found.nbytes, found.epoch) == (35, 148, 2)
    assert found.groups == (GroupLine("model", 2, 35, 140), GroupLine("optimizer", 1, 1, 8))
    assert [name for name, _ in found.files] == [
        "model-00001-of-00001.safetensors",
        "optimizer-00001-of-00001.safetensors",
    ]
    assert found.progress["metrics"] == {"loss": 0.5}
    assert found.record == {"environment": {"keras": "3.15.1"}}
    assert found.tensors == ()
    assert inspect(run / "checkpoints").step == 20


@pytest.mark.parametrize(
    ("progress", "epoch"), [({"epoch": 3}, 3), ({"position": {"epoch": 4}}, 4), ({"position": 1}, None), ({}, None)]
)
def test_where_the_epoch_is_looked_for(tmp_path: Path, progress: dict[str, Any], epoch: int | None) -> None:
    assert inspect(write_checkpoint(tmp_path, 1, [], progress=progress).path).epoch == epoch


def test_a_checkpoint_with_its_tensors(run: Path) -> None:
    found = inspect(run / "checkpoints" / "step-000000010", tensors=True)
    assert (found.kind, found.step, found.steps) == ("checkpoint", 10, ())
    assert found.tensors[0] == TensorLine(
        "model/kernel", "F32", (2, 16), 128, "model-00001-of-00001.safetensors", ("k",)
    )
    assert found.state_digest != inspect(run).state_digest


def test_a_data_file(run: Path) -> None:
    path = run / "checkpoints" / "step-000000010" / "model-00001-of-00001.safetensors"
    found = inspect(path, tensors=True)
    assert (found.kind, found.step, found.state_digest, found.parameters) == ("file", None, None, 35)
    assert {line.name: line.shape for line in found.tensors} == {"model/kernel": (2, 16), "model/bias": (3,)}
    assert found.files == ((path.name, path.stat().st_size),)
    assert found.epoch is None


def test_what_cannot_be_inspected(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="of no format that is known here: a folder with run") as caught:
        inspect(tmp_path)
    assert caught.value.code == "ANY-FORMAT-001"
    (tmp_path / "x.safetensors").write_bytes(b"not one at all")
    with pytest.raises(AnyrigError, match="not a readable safetensors file"):
        inspect(tmp_path / "x.safetensors")


def test_verify_of_a_sound_run(run: Path) -> None:
    report = verify(run)
    assert report.sound
    report.require_sound()
    assert [(verdict.step, verdict.damage) for verdict in report.checkpoints] == [(10, ()), (20, ())]
    assert report.checkpoints[0].nbytes == sum(size for _, size in inspect(report.checkpoints[0].path).files)
    assert verify(run / "checkpoints" / "step-000000010").sound


def test_verify_names_all_damage(run: Path) -> None:
    data = run / "checkpoints" / "step-000000010" / "model-00001-of-00001.safetensors"
    data.chmod(0o600)
    data.write_bytes(data.read_bytes()[:-1] + b"\x01")
    (run / "checkpoints" / "step-000000020" / "manifest.json").unlink()
    report = verify(run)
    assert not report.sound
    with pytest.raises(CheckFailed) as caught:
        report.require_sound()
    assert caught.value.code == "ANY-VERIFY-001"
    assert "step-000000010: model-00001-of-00001.safetensors (model/bias): its bytes" in caught.value.message
    assert "step-000000020: " in caught.value.message
    one = verify(run / "checkpoints" / "step-000000020")
    assert not one.sound
    assert one.rejected[0].step == 20


def test_a_save_that_is_going_on_is_no_damage(run: Path) -> None:
    (run / "checkpoints" / leftover_name(30, "partial")).mkdir()
    assert verify(run).sound


def test_what_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="of no format that is known here") as caught:
        verify(tmp_path)
    assert caught.value.code == "ANY-FORMAT-001"


PRICE = """
import sys, time
from anyrig.diagnose.inspect import inspect
from anyrig.diagnose.verify import verify
inspect(sys.argv[1], tensors=True), verify(sys.argv[1])
heavy = {"tensorflow", "keras", "numpy", "pydantic", "rich", "h5py", "fsspec", "safetensors", "ml_dtypes"}
print(time.process_time(), sorted(heavy & set(sys.modules)))
"""


def test_inspect_and_verify_start_fast_and_import_nothing_heavy(run: Path) -> None:
    environment = os.environ | {"PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", PRICE, str(run)], capture_output=True, text=True, check=True, env=environment
    )
    seconds, heavy = done.stdout.split(" ", 1)
    assert heavy.strip() == "[]"
    assert float(seconds) < 0.3
