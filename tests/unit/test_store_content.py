"""Reading tensors: mapped or read, in parts, compared with their checksums as asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyrig.errors import AnyrigError, UsageError
from anyrig.store import content
from anyrig.store.content import Verify
from anyrig.store.digest import CHUNK_BYTES
from anyrig.store.mounts import type_of
from anyrig.store.read import Checkpoint, first_rows, open_checkpoint
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint

Array = np.ndarray[Any, Any]
ARRAYS: dict[str, Array] = {
    "model/big": np.arange(16 * 1024, dtype=np.float32).reshape(64, 256),
    "model/odd": np.arange(37, dtype=np.int16),
    "model/scalar": np.array(2.5),
    "model/empty": np.zeros((2, 0, 3), np.int8),
    "optimizer/main/big/momentum": np.ones((64, 256), np.float32),
}
MODEL_FILE = "model-00001-of-00001.safetensors"


@pytest.fixture
def stored(tmp_path: Path) -> Checkpoint:
    tensors = [StoredTensor(name=name, array=array) for name, array in ARRAYS.items()]
    return write_checkpoint(tmp_path, 3, tensors, progress={})


def flip(checkpoint: Checkpoint, name: str) -> None:
    piece = checkpoint.entry(name).pieces[0]
    path = checkpoint.path / piece.file
    path.chmod(0o600)
    with open(path, "r+b") as file:
        file.seek(piece.start + 5)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("mapped", [True, False])
def test_all_tensors_come_back_read_only_and_aligned(stored: Checkpoint, mapped: bool) -> None:
    found = open_checkpoint(stored.path, mapped=mapped).tensors(ARRAYS, verify="full")
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()
        assert found[name].ctypes.data % 64 == 0 or not array.size
        assert not found[name].flags.writeable


def test_what_is_read_outlives_a_file_that_is_cut_and_what_is_mapped_a_removed_one(stored: Checkpoint) -> None:
    read = open_checkpoint(stored.path, mapped=False).tensors(ARRAYS)
    mapped = open_checkpoint(stored.path, mapped=True).tensors(ARRAYS)
    for file in stored.path.glob("*.safetensors"):
        file.unlink()  # as retention does
    for found in (read, mapped):
        assert all(found[name].tobytes() == array.tobytes() for name, array in ARRAYS.items())


INDICES: list[Any] = [
    3,
    -1,
    slice(10, 20),
    slice(None, None, 2),
    slice(5, 2),
    (slice(2, 5), slice(0, 7)),
    (-2, slice(3, 4)),
    (Ellipsis, 4),
    (slice(None), 5),
    [1, 7],
    np.int64(5),
]


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_a_part_is_what_numpy_gives(stored: Checkpoint, mapped: bool, index: Any) -> None:
    checkpoint = open_checkpoint(stored.path, mapped=mapped)
    part = checkpoint.tensor("model/big", index)
    np.testing.assert_array_equal(part, ARRAYS["model/big"][index])
    assert not part.flags.writeable
    assert checkpoint.tensor("model/scalar", ()) == 2.5


def test_only_the_rows_wanted_are_read(stored: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    real = content.empty

    def noted(size: int) -> Array:
        sizes.append(size)
        return real(size)

    monkeypatch.setattr("anyrig.store.read.empty", noted)
    open_checkpoint(stored.path, mapped=False).tensor("model/big", (slice(10, 12), 3))
    assert sizes == [2 * 256 * 4]
    assert first_rows((slice(10, 12), 3), (64, 256)) == (slice(10, 12), (slice(None), 3))


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("name", ["model/big", "model/odd"])  # the second starts where it cannot be mapped
def test_U06_a_flipped_byte_is_found_and_named_before_use(stored: Checkpoint, mapped: bool, name: str) -> None:
    flip(stored, name)
    checkpoint = open_checkpoint(stored.path, mapped=mapped)
    levels: list[Verify] = ["full", "fast"]  # so few chunks are all in the sample
    for verify in levels:
        with pytest.raises(AnyrigError, match=f"{name} is not what was written") as caught:
            checkpoint.tensors(ARRAYS, verify=verify)
        assert caught.value.code == "ANY-LOAD-008"
    assert checkpoint.tensors(ARRAYS, verify="off").keys() == ARRAYS.keys()
    others = [other for other in ARRAYS if other != name]
    assert checkpoint.tensors(others, verify="full").keys() == set(others), "only what is loaded is verified"


def test_fast_compares_a_sample_that_is_spread(stored: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    many = {f"model/t{i:03}": np.full((16,), i, np.float32) for i in range(100)}
    tensors = [StoredTensor(name=name, array=array) for name, array in many.items()]
    checkpoint = write_checkpoint(stored.path.parent, 4, tensors, progress={})
    for name in many:
        flip(checkpoint, name)
    with pytest.raises(AnyrigError, match="nor are 16 other parts"):
        checkpoint.tensors(many, verify="fast")
    with pytest.raises(AnyrigError, match="nor are 99 other parts"):
        checkpoint.tensors(many, verify="full")


def test_chunks_and_batches_over_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_BATCH_BYTES", 1)  # each chunk on its own
    big = np.frombuffer(np.random.default_rng(0).bytes(2 * CHUNK_BYTES + 640), np.uint8)
    checkpoint = write_checkpoint(tmp_path, 1, [StoredTensor(name="model/big", array=big)], progress={})
    for mapped in (True, False):
        found = open_checkpoint(checkpoint.path, mapped=mapped).tensors(["model/big"], verify="full")
        assert np.array_equal(found["model/big"], big)
    path = checkpoint.path / MODEL_FILE
    path.chmod(0o600)
    with open(path, "r+b") as file:
        file.seek(-1, 2)
        file.write(bytes([big[-1] ^ 1]))
    for mapped in (True, False):
        with pytest.raises(AnyrigError, match="model/big is not what was written"):
            open_checkpoint(checkpoint.path, mapped=mapped).tensors(["model/big"], verify="full")


def test_an_unknown_level(stored: Checkpoint) -> None:
    with pytest.raises(UsageError, match="expected full, fast or off, found 'most'"):
        stored.tensors(ARRAYS, verify="most")  # type: ignore[arg-type]


TABLE = """/dev/root / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
server:/home /home nfs4 rw 0 0
server:/odd\\040name /home/odd\\040name fuse.sshfs rw 0 0
/dev/sdb /home/local xfs rw 0 0
store /home/local smb3 rw 0 0
"""


def test_the_file_system_of_a_path() -> None:
    assert type_of("/data/run", TABLE) == "ext4"
    assert type_of("/dev/shm", TABLE) == "tmpfs"
    assert type_of("/homes", TABLE) == "ext4"
    assert type_of("/home/a/run", TABLE) == "nfs4"
    assert type_of("/home/odd name/run", TABLE) == "fuse.sshfs"
    assert type_of("/home/local/run", TABLE) == "smb3", "the later of two mounts on one point is seen"


@pytest.mark.parametrize(("kind", "mapped"), [("nfs4", False), ("fuse.s3fs", False), ("smb3", False), ("btrfs", True)])
def test_network_file_systems_are_read(
    stored: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mapped: bool
) -> None:
    table = tmp_path / "mounts"
    table.write_text(f"somewhere / {kind} rw 0 0\n")
    monkeypatch.setattr("anyrig.store.mounts._TABLE", table)
    assert open_checkpoint(stored.path).mapped is mapped
