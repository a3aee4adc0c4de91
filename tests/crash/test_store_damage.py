"""Damage of any byte and any missing end is found, at the opening or by verification, before the state is used."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyrig.errors import AnyrigError
from anyrig.store.commit import committed_steps, newest_sound
from anyrig.store.decode import decode
from anyrig.store.digest import hash_bytes
from anyrig.store.header import ALIGNMENT
from anyrig.store.manifest import SEAL, FileEntry, Piece, TensorEntry, encode
from anyrig.store.parse import ManifestError
from anyrig.store.read import Checkpoint, open_checkpoint, verify_checkpoint
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint
from anyrig.testing.faults import in_child
from tests.crash.conftest import Measured


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


def two_steps(root: Path) -> Checkpoint:
    """Save two steps of the same shapes; return the newer one, unlocked."""
    for step in (1, 2):
        draws = np.random.default_rng(step)
        tensors = [
            StoredTensor(name="model/kernel", array=draws.normal(size=(300, 100)).astype(np.float32)),
            StoredTensor(name="model/bias", array=draws.normal(size=3).astype(np.float16)),
            StoredTensor(name="optimizer/kernel", array=draws.normal(size=(300, 100)).astype(np.float32)),
            StoredTensor(name="optimizer/bias", array=draws.normal(size=3).astype(np.float16)),
        ]
        documents, assets = {"model.json": b"{}" * 50}, {"words.txt": b"word " * 50}
        made = write_checkpoint(root, step, tensors, progress={}, documents=documents, assets=assets)
    for path in made.path.rglob("*"):
        path.chmod(0o700)
    return made


def classes(checkpoint: Checkpoint) -> dict[str, list[tuple[Path, int]]]:
    """Return every byte of a checkpoint, by what it is part of."""
    found: dict[str, list[tuple[Path, int]]] = {}
    for path in (path for path in sorted(checkpoint.path.rglob("*")) if path.is_file()):
        content = path.read_bytes()
        if path.suffix != ".safetensors":
            found.setdefault(path.name, []).extend((path, index) for index in range(len(content)))
            continue
        data = 8 + int.from_bytes(content[:8], "little")
        text = len(content[8:data].rstrip(b" ")) + 8
        assert data % ALIGNMENT == 0
        for name, start, stop in (
            ("length of a header", 0, 8),
            ("header", 8, text),
            ("padding", text, data),
            ("data", data, len(content)),
        ):
            found.setdefault(name, []).extend((path, index) for index in range(start, stop))
    return found


def outcome(root: Path, path: Path) -> str:
    """Look at step 2, whose file `path` is damaged, as a run does, as a load does; it is found and never used."""
    found, rejected = newest_sound(root)
    assert found is not None
    assert (found.step, [item.step for item in rejected]) == (1, [2])
    try:
        loaded = open_checkpoint(root / "step-000000002")
        assert {damage.file for damage in verify_checkpoint(loaded)} == {path.relative_to(loaded.path).as_posix()}
        loaded.tensors(loaded.names, verify="full")
    except AnyrigError as error:
        return error.code
    return "none: what it takes is sound"


def test_U06_one_flipped_byte_of_each_class_and_random_ones(
    place: Path, rng: random.Random, full: bool, measured: Measured
) -> None:
    checkpoint, found = two_steps(place), Counter[tuple[str, str]]()
    by_class = classes(checkpoint)
    assert len(by_class) == 7
    everywhere = [(name, *at) for name, places in by_class.items() for at in places]
    tried = [(name, *rng.choice(places)) for name, places in by_class.items() for _ in range(20 if full else 4)]
    tried += rng.sample(everywhere, 2000 if full else 200)
    for name, path, index in tried:
        with open(path, "r+b", buffering=0) as file:
            (byte,) = os.pread(file.fileno(), 1, index)
            os.pwrite(file.fileno(), bytes([byte ^ (1 << rng.randrange(8))]), index)
            found[name, outcome(place, path)] += 1
            os.pwrite(file.fileno(), bytes([byte]), index)
    assert verify_checkpoint(checkpoint) == []
    assert {told for name, told in found if name == "data"} == {"ANY-LOAD-008"}
    for (name, told), count in found.items():
        measured("damage", damage="one flipped bit", where=name, tried=count, found=count, load=told)


def test_U05_cut_short_at_random_lengths(place: Path, rng: random.Random, full: bool, measured: Measured) -> None:
    checkpoint, found = two_steps(place), Counter[tuple[str, str]]()
    paths = [path for path in sorted(checkpoint.path.rglob("*")) if path.is_file()]
    for number in range(200 if full else 50):
        path = paths[number % len(paths)]
        content = path.read_bytes()
        os.truncate(path, rng.randrange(len(content)))
        found[path.suffix, outcome(place, path)] += 1
        path.write_bytes(content)
    assert verify_checkpoint(checkpoint) == []
    for (name, told), count in found.items():
        measured("damage", damage="cut short", where=f"a file *{name}", tried=count, found=count, load=told)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("step-000000002/model-00001-of-00001.safetensors", "step-000000002/optimizer-00001-of-00001.safetensors"),
        ("step-000000002/model-00001-of-00001.safetensors", "step-000000001/model-00001-of-00001.safetensors"),
        ("step-000000002/manifest.json", "step-000000001/manifest.json"),
        ("step-000000002", "step-000000001"),
    ],
)
def test_U06_swapped_files_are_found(tmp_path: Path, one: str, other: str, measured: Measured) -> None:
    two_steps(tmp_path)
    os.rename(tmp_path / one, tmp_path / "aside")
    os.rename(tmp_path / other, tmp_path / one)
    os.rename(tmp_path / "aside", tmp_path / other)
    found, rejected = newest_sound(tmp_path)
    inside = one.startswith("step-000000002/") and other.startswith("step-000000002/")
    assert [item.step for item in rejected] == ([2] if inside else [2, 1])
    assert (found is not None) is inside
    measured("damage", damage="swapped", where=f"{one} and {other}", tried=1, found=1, load="refused")


def sealed(path: Path, change: Callable[[Any], None]) -> None:
    """Change a manifest and seal it again, as somebody does who means it."""
    document = json.loads(path.read_bytes())
    del document["manifest_checksum"]
    change(document)
    body = json.dumps(document).encode()
    path.write_bytes(body[:-1] + SEAL % hash_bytes(body).encode())


def test_a_manifest_of_another_schema_is_named(tmp_path: Path, measured: Measured) -> None:
    checkpoint = two_steps(tmp_path)
    for version in (0, 2, "1", None, True):
        sealed(checkpoint.path / "manifest.json", lambda document, v=version: document.update(schema_version=v))  # type: ignore[misc]
        with pytest.raises(ManifestError, match=f"schema version {version!r}") as caught:
            open_checkpoint(checkpoint.path)
        assert caught.value.code == "ANY-LOAD-006"
        found, _ = newest_sound(tmp_path)
        assert found is not None
        assert found.step == 1
    measured("damage", damage="unknown schema", where="manifest.json", tried=5, found=5, load="ANY-LOAD-006")


HUGE = 10**10
GIB = 2**30


@pytest.mark.parametrize("sparse", [False, True], ids=["small file", "sparse file of that size"])
@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
def test_ten_billion_elements_are_refused_without_memory_for_them(
    tmp_path: Path, mapped: bool, sparse: bool, measured: Measured
) -> None:
    """A manifest that lists a tensor of 40 GB, in a process that may take one GiB more than it has."""
    checkpoint = two_steps(tmp_path)
    name, size = "model-00001-of-00001.safetensors", 4 * HUGE
    piece = Piece((0,), (HUGE,), name, 0, size, ("0" * 32,) * -(-size // 2**26))
    entry = TensorEntry("model/kernel", (), "F32", (HUGE,), "0" * 32, None, (piece,))
    manifest = replace(checkpoint.manifest, files=(FileEntry(name, size, "0" * 32),), tensors=(entry,))
    (checkpoint.path / "manifest.json").write_bytes(encode(manifest))
    if sparse:
        os.truncate(checkpoint.path / name, size)

    def load() -> None:
        signal.alarm(60)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + GIB,) * 2)
        opened = open_checkpoint(checkpoint.path, mapped=mapped)
        if not sparse:
            assert [damage.what for damage in verify_checkpoint(opened)] != []
        opened.tensors(["model/kernel"], verify="fast")

    assert in_child(load) == 1
    file, how = "a sparse file of their size" if sparse else "a small file", "mapped" if mapped else "read"
    where = f"ten billion elements in {file}, {how}"
    measured("damage", damage="lists too much", where=where, tried=1, found=1, load="refused")
