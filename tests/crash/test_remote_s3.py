"""A real S3 server, killed in the middle of an upload and started again: whole steps only, and equal bytes (B157)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from s3fs import S3FileSystem

from anyrig.store.commit import committed_steps
from anyrig.store.read import open_checkpoint, verify_checkpoint
from anyrig.store.remote.listing import Shelf
from anyrig.store.remote.mirror import Mirror
from anyrig.store.remote.objects import Objects
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint
from anyrig.testing.processes import run_python
from tests.s3 import S3Server

URL = "s3://bucket/runs/cats"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with S3Server(tmp_path / "server") as started:
        for name, value in started.variables.items():
            monkeypatch.setenv(name, value)
        yield started


def state(step: int, megabytes: int) -> list[StoredTensor]:
    numbers = np.random.default_rng(step).integers(0, 256, megabytes * 2**20, np.uint8)
    halves = np.array_split(numbers, 2)
    return [StoredTensor(name="model/w", array=halves[0]), StoredTensor(name="optimizer/m", array=halves[1])]


def machine(tmp_path: Path, name: str) -> Mirror:
    run = tmp_path / name
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    (run / "environment.json").write_text("{}")
    return Mirror(Objects(URL, attempts=2, backoff=0.05), run)


def same_files(one: Path, other: Path) -> bool:
    return contents(one) == contents(other)


def contents(folder: Path) -> dict[Path, bytes]:
    """All files but the temporary ones that a killed server has left."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".rclone")]
    return {path.relative_to(folder): path.read_bytes() for path in files}


def test_B157_the_server_is_killed_in_the_middle_of_an_upload(server: S3Server, tmp_path: Path) -> None:
    first = machine(tmp_path, "first")
    assert first.arrive() == []
    write_checkpoint(first.checkpoints, 10, state(10, 2), progress={})
    first.wake()
    assert first.settle() == []
    remote = server.bucket / "runs/cats/checkpoints"
    assert same_files(remote / "step-000000010", first.checkpoints / "step-000000010")

    write_checkpoint(first.checkpoints, 20, state(20, 64), progress={})
    killer = threading.Thread(target=kill_when, args=(server, remote / "step-000000020"))
    killer.start()
    first.wake()
    [line] = first.settle()
    killer.join()
    assert "1 checkpoints (step 20)" in line
    assert f"anyrig sync {URL}" in line
    assert str(first.run) in line
    assert (remote / "step-000000010/manifest.json").exists()
    assert not (remote / "step-000000020/manifest.json").exists()
    assert committed_steps(first.checkpoints) == [10, 20]

    server.start()
    assert [step.step for step in Shelf(Objects(URL)).list().steps] == [10]
    again = machine(tmp_path, "first")
    again.arrive()
    assert again.settle() == []
    assert same_files(remote / "step-000000020", first.checkpoints / "step-000000020")

    other = machine(tmp_path, "other")
    assert "fetched step 20" in other.arrive()[0]
    other.close()
    fetched = open_checkpoint(other.checkpoints / "step-000000020")
    assert verify_checkpoint(fetched) == []
    assert same_files(fetched.path, first.checkpoints / "step-000000020")
    assert committed_steps(other.checkpoints) == [20]


def test_B157_a_large_file_goes_up_in_parts(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("s3fs.core.calculate_chunksize", lambda size, chunksize=None: 5 * 2**20)  # the least of S3
    plain, calls = S3FileSystem._call_s3, []

    def call(self: Any, method: str, *arguments: Any, **options: Any) -> Any:
        calls.append(method)
        return plain(self, method, *arguments, **options)

    monkeypatch.setattr(S3FileSystem, "_call_s3", call)
    first = machine(tmp_path, "first")
    first.arrive()
    write_checkpoint(first.checkpoints, 10, state(10, 24), progress={})
    assert first.settle() == []
    remote = server.bucket / "runs/cats/checkpoints/step-000000010"
    assert same_files(remote, first.checkpoints / "step-000000010")
    assert calls.count("upload_part") == 2 * 3


RESUMED = """
import sys

import numpy as np

import anyrig

url, local, spool = sys.argv[1:]


def build():
    import keras

    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
    model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def train(directory, epochs, spool):
    import os

    os.environ["ANYRIG_SPOOL"] = spool
    numbers = np.random.default_rng(0)
    data = numbers.normal(size=(32, 4)).astype("float32"), numbers.integers(0, 3, 32)
    batch = anyrig.Batch(global_size=8, virtual_replicas=2)
    run = anyrig.Run(directory, build, train=data, batch=batch, epochs=epochs)
    run.train(verbose=0)
    return run


once = train(local, 2, spool)
train(url, 1, spool + "/first")
again = train(url, 2, spool + "/second")
assert len(again.history["loss"]) == 2
assert again.history["loss"] == once.history["loss"]
assert anyrig.digest(again.model) == anyrig.digest(once.model)
print(again.directory)
"""


def test_B157_a_run_at_a_url_goes_on_on_another_machine(server: S3Server, tmp_path: Path) -> None:
    finished = run_python(RESUMED, URL, tmp_path / "local", tmp_path / "spool", env=server.variables)
    assert str(tmp_path / "spool/second") in finished.stdout
    remote = server.bucket / "runs/cats"
    assert (remote / "environment.json").exists()
    assert (remote / "events.jsonl").exists()
    assert not (remote / "lease.json").exists()
    for path in tmp_path.joinpath("spool/second").glob("*/checkpoints/step-*"):
        assert same_files(remote / "checkpoints" / path.name, path)
    assert committed_steps(remote / "checkpoints") == [4, 8]


def kill_when(server: S3Server, folder: Path) -> None:
    """Kill the server as soon as it has begun to take files into `folder`."""
    until = time.monotonic() + 20
    while time.monotonic() < until and not any(folder.rglob("*")):
        time.sleep(0.001)
    server.kill()
