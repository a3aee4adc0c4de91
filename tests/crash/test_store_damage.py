"""Damage of any byte and any missing end is found, at the opening or by verification, before the state is used."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from anyrig.store.commit import committed_steps, newest_sound
from anyrig.store.decode import decode
from anyrig.store.parse import ManifestError
from anyrig.store.read import Checkpoint, open_checkpoint, verify_checkpoint
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint


def save(root: Path, step: int) -> Checkpoint:
    tensors = [
        StoredTensor(name="model/kernel", array=np.full((4, 8), step, np.float32), aliases=("kernel",)),
        StoredTensor(name="model/bias", array=np.full(3, step, np.float16)),
        StoredTensor(name="optimizer/iterations", array=np.array(step)),
        StoredTensor(name="model/empty", array=np.zeros((0,), np.float32)),
    ]
    progress = {"epoch": 1, "loss": 0.5, "name": "ä", "best": float("inf")}
    return write_checkpoint(
        root, step, tensors, progress=progress, documents={"model.json": b'{"a": 1}'}, assets={"a/v.txt": b"x\n"}
    )


def data_files(checkpoint: Checkpoint) -> list[Path]:
    return [checkpoint.path / entry.name for entry in checkpoint.manifest.files]


def unlock(path: Path) -> Path:
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mask", [0x01, 0x20, 0xFF])
def test_U06_any_flipped_byte_of_the_manifest_is_found(tmp_path: Path, mask: int) -> None:
    raw = (save(tmp_path, 1).path / "manifest.json").read_bytes()
    for index in range(len(raw)):
        damaged = raw[:index] + bytes([raw[index] ^ mask]) + raw[index + 1 :]
        with pytest.raises(ManifestError):
            decode(damaged)


@pytest.mark.parametrize("mask", [0x01, 0x80])
def test_U06_any_flipped_byte_of_any_other_file_is_found(tmp_path: Path, mask: int) -> None:
    checkpoint = save(tmp_path, 1)
    assert len(data_files(checkpoint)) == 4
    for path in data_files(checkpoint):
        content = unlock(path).read_bytes()
        with open(path, "r+b", buffering=0) as file:
            for index, byte in enumerate(content):
                os.pwrite(file.fileno(), bytes([byte ^ mask]), index)
                found = {damage.file for damage in verify_checkpoint(checkpoint)}
                assert found == {path.relative_to(checkpoint.path).as_posix()}, index
                os.pwrite(file.fileno(), bytes([byte]), index)
    assert verify_checkpoint(checkpoint) == []


def test_U06_damage_names_the_tensor(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 1)
    piece = checkpoint.entry("model/bias").pieces[0]
    path = unlock(checkpoint.path / piece.file)
    content = bytearray(path.read_bytes())
    content[piece.start] ^= 4
    path.write_bytes(content)
    (damage,) = verify_checkpoint(checkpoint)
    assert (damage.file, damage.tensor) == (piece.file, "model/bias")


def test_a_manifest_cut_at_any_length_is_no_commit(tmp_path: Path) -> None:
    save(tmp_path, 1)
    path = unlock(save(tmp_path, 2).path / "manifest.json")
    for length in range(path.stat().st_size - 1, -1, -1):
        os.truncate(path, length)
        assert committed_steps(tmp_path) == [1], length
    path.unlink()
    assert committed_steps(tmp_path) == [1]


def test_a_manifest_with_something_added_is_no_commit(tmp_path: Path) -> None:
    path = unlock(save(tmp_path, 2).path / "manifest.json")
    with path.open("ab") as file:
        file.write(b"\n")
    assert committed_steps(tmp_path) == []


def test_any_other_file_cut_at_any_length_is_damage(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 1)
    for path in data_files(checkpoint):
        content = unlock(path).read_bytes()
        for length in range(len(content) - 1, -1, -3):
            os.truncate(path, length)
            assert verify_checkpoint(checkpoint), length
        path.write_bytes(content + b"\0")
        assert verify_checkpoint(checkpoint)
        path.write_bytes(content)
    assert verify_checkpoint(checkpoint) == []


def test_U06_the_newest_sound_one_is_used_and_the_damage_reported(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    path = unlock(tmp_path / "step-000000003" / "model-00001-of-00001.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    unlock(tmp_path / "step-000000002" / "manifest.json").write_bytes(b"{}")
    found, rejected = newest_sound(tmp_path)
    assert found is not None
    assert found.step == 1
    assert [(item.name, item.step) for item in rejected] == [("step-000000003", 3), ("step-000000002", 2)]
    assert "model-00001-of-00001.safetensors (model/bias): its bytes" in rejected[0].reason
    assert "manifest.json is damaged" in rejected[1].reason
    assert open_checkpoint(found.path).tensor("kernel")[0, 0] == 1
