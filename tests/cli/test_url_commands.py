"""`ls`, `inspect`, `verify`, `diff` and `sync` of a run at a URL, and who refuses one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from anyrig.locations import find_checkpoint, local_directory
from anyrig.store.read import open_checkpoint
from anyrig.store.remote.objects import Objects
from anyrig.store.remote.opened import mirror_of
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint
from tests.cli.conftest import Command

URL = "memory://bucket/cats"


@pytest.fixture
def uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run at `URL` with two steps and an unfinished one; the folder in which it was written."""
    MemoryFileSystem.store.clear()  # it is one for the whole process
    monkeypatch.setenv("ANYRIG_SPOOL", str(tmp_path / "first"))
    mirror = mirror_of(URL)
    assert mirror is not None
    mirror.checkpoints.mkdir(parents=True)
    mirror.arrive()
    for step in (4, 8):
        tensors = [StoredTensor(name="model/w", array=np.full(300, step, np.float32))]
        write_checkpoint(mirror.checkpoints, step, tensors, progress={"metrics": {"loss": 0.5}})
    assert mirror.settle() == []
    Objects(URL).write("checkpoints/step-000000012/model-00001-of-00001.safetensors", b"half")
    yield mirror.run
    MemoryFileSystem.store.clear()


def test_ls_inspect_and_verify_read_at_the_url(
    uploaded: Path, anyrig: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYRIG_SPOOL", str(tmp_path / "second"))
    lines = anyrig("ls", URL).out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["4", "8"]
    assert "newest" in lines[2]
    assert lines[3].startswith("not committed: step-000000012: an upload or a removal")
    found = json.loads(anyrig("inspect", URL, "--json").out)
    assert found["path"] == URL
    assert found["steps"] == [4, 8]
    assert found["state_digest"] == open_checkpoint(uploaded / "checkpoints/step-000000008").state_digest
    assert json.loads(anyrig("inspect", f"{URL}/checkpoints/step-000000004", "--json").out)["step"] == 4
    assert anyrig("verify", URL).out.count("sound") == 2
    assert not (tmp_path / "second").exists()  # nothing was stored here
    name = "checkpoints/step-000000004/model-00001-of-00001.safetensors"
    content = bytearray(Objects(URL).read(name))
    content[-1] ^= 1
    Objects(URL).write(name, bytes(content))
    damaged = anyrig("verify", URL)
    assert damaged.code == 3
    assert "model/w" in damaged.err


def test_a_url_stands_for_a_checkpoint_in_a_local_copy(
    uploaded: Path, tmp_path: Path, anyrig: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_checkpoint(URL) == uploaded / "checkpoints/step-000000008"  # it is here already
    monkeypatch.setenv("ANYRIG_SPOOL", str(tmp_path / "second"))
    copy = find_checkpoint(f"{URL}/checkpoints/step-000000004")
    assert copy.is_relative_to(tmp_path / "second")
    assert not local_directory(URL).exists()  # a copy is no run that could go on
    assert anyrig("diff", URL + "/checkpoints/step-000000004", uploaded / "checkpoints/step-000000004").code == 0
    newest = find_checkpoint(URL)
    assert newest.name == "step-000000008"
    assert not copy.exists()


def test_sync_uploads_what_waits(uploaded: Path, anyrig: Command) -> None:
    tensors = [StoredTensor(name="model/w", array=np.full(300, 16, np.float32))]
    write_checkpoint(uploaded / "checkpoints", 16, tensors, progress={})
    assert "1 checkpoints uploaded" in anyrig("sync", URL).out
    assert json.loads(anyrig("inspect", URL, "--json").out)["steps"] == [4, 8, 16]
    assert "0 checkpoints uploaded" in anyrig("sync", URL).out
    assert "ANY-REMOTE-010" in anyrig("sync", "memory://bucket/other").err


@pytest.mark.parametrize("command", [("prune",), ("pin", "4"), ("repair",), ("wait",)])
def test_who_works_on_a_local_run_refuses_a_url(uploaded: Path, anyrig: Command, command: tuple[str, ...]) -> None:
    error = anyrig(command[0], URL, *command[1:]).err
    assert "ANY-REMOTE-009" in error
    assert str(uploaded) in error
