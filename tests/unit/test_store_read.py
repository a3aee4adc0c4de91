"""Opening and reading: maps, copies, aliases; and errors that tell the truth about what is wrong."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from anyrig.errors import AnyrigError, UsageError
from anyrig.store.digest import tensor_hash
from anyrig.store.manifest import FileEntry, Manifest, Piece, TensorEntry, encode
from anyrig.store.parse import ManifestError
from anyrig.store.read import Checkpoint, Replaced, open_checkpoint, verify_checkpoint
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint


def stored(root: Path) -> Checkpoint:
    tensors = [
        StoredTensor(name="model/lines", array=np.arange(32, dtype=np.float32).reshape(2, 16), aliases=("l", "both")),
        StoredTensor(name="model/odd", array=np.arange(5, dtype=ml_dtypes.bfloat16), aliases=("both", "model/lines")),
        StoredTensor(name="model/scalar", array=np.array(2.5)),
        StoredTensor(name="model/empty", array=np.zeros((2, 0, 3), np.int8)),
    ]
    return write_checkpoint(
        root, 9, tensors, progress={}, documents={"model.json": b"{}"}, assets={"a/words.txt": b"one"}
    )


def unlock(path: Path) -> Path:
    path.chmod(0o600)
    return path


def test_tensors_come_back_and_cannot_be_written_by_accident(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path)
    lines = checkpoint.tensor("model/lines")
    np.testing.assert_array_equal(lines, np.arange(32, dtype=np.float32).reshape(2, 16))
    assert lines.ctypes.data % 64 == 0
    assert not lines.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        lines[0, 0] = 1
    odd = checkpoint.tensor("model/odd")
    assert odd.dtype == ml_dtypes.bfloat16
    assert odd.flags.aligned
    assert not odd.flags.writeable
    assert (checkpoint.tensor("model/scalar").shape, checkpoint.tensor("model/scalar").item()) == ((), 2.5)
    assert checkpoint.tensor("model/empty").shape == (2, 0, 3)


def test_the_map_is_private(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path)
    lines = checkpoint.tensor("model/lines")
    lines.flags.writeable = True
    lines[:] = -1
    assert verify_checkpoint(checkpoint) == []
    assert open_checkpoint(checkpoint.path).tensor("model/lines")[0, 1] == 1


def test_aliases(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path)
    assert checkpoint.tensor("l").shape == (2, 16)
    assert checkpoint.tensor("model/lines").shape == (2, 16), "a name comes before an alias"
    with pytest.raises(UsageError, match="has 2 tensors with the alias 'both'"):
        checkpoint.tensor("both")
    with pytest.raises(UsageError, match="has no 'none'") as caught:
        checkpoint.tensor("none")
    assert caught.value.code == "ANY-LOAD-009"


def test_documents_and_assets(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path)
    assert checkpoint.documents == ("model.json",)
    assert (checkpoint.document("model.json"), checkpoint.asset("a/words.txt")) == (b"{}", b"one")
    for name in ("manifest.json", "model-00001-of-00001.safetensors", "other", "../x"):
        with pytest.raises(UsageError, match="has no document"):
            checkpoint.document(name)
    with pytest.raises(UsageError, match="has no asset"):
        checkpoint.asset("../model.json")


def test_U06_a_changed_document_or_asset_is_refused(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path)
    unlock(checkpoint.path / "model.json").write_bytes(b"[]")
    with pytest.raises(AnyrigError, match=r"'model.json' .* has changed since it was written"):
        checkpoint.document("model.json")
    unlock(checkpoint.path / "assets/a/words.txt").write_bytes(b"two")
    with pytest.raises(AnyrigError, match="has changed since it was written"):
        checkpoint.asset("a/words.txt")
    assert [damage.file for damage in verify_checkpoint(checkpoint)] == ["model.json", "assets/a/words.txt"]


@pytest.mark.parametrize(
    ("change", "fault"),
    [("remove", "is missing"), ("shorten", "has 200 bytes instead of"), ("link", "link"), ("folder", "is not a file")],
)
def test_a_data_file_that_is_not_the_listed_one(tmp_path: Path, change: str, fault: str) -> None:
    checkpoint = stored(tmp_path / "c")
    path = checkpoint.path / "model-00001-of-00001.safetensors"
    if change == "shorten":
        os.truncate(unlock(path), 200)
    else:
        path.rename(tmp_path / "elsewhere")
    if change == "link":
        path.symlink_to(tmp_path / "elsewhere")
    if change == "folder":
        path.mkdir()
    with pytest.raises(AnyrigError, match=fault) as caught:
        checkpoint.tensor("model/lines")
    assert caught.value.code == "ANY-LOAD-008"
    assert [(damage.file, damage.tensor) for damage in verify_checkpoint(checkpoint)] == [(path.name, None)]


def test_an_asset_behind_a_linked_folder(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path / "c")
    (checkpoint.path / "assets").rename(tmp_path / "elsewhere")
    (checkpoint.path / "assets").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AnyrigError, match="goes through a link"):
        checkpoint.asset("a/words.txt")


def test_ten_billion_elements_are_refused_without_allocating(tmp_path: Path) -> None:
    size, digest = 64 + 4 * 10**10, "0" * 32
    piece = Piece((0,), (10**10,), "model-00001-of-00001.safetensors", 64, size, (digest,) * 597)
    tensor = TensorEntry("model/a", (), "F32", (10**10,), digest, None, (piece,))
    manifest = Manifest(step=1, files=(FileEntry(piece.file, size, digest),), tensors=(tensor,))
    folder = tmp_path / "step-000000001"
    folder.mkdir()
    (folder / "manifest.json").write_bytes(encode(manifest))
    (folder / piece.file).write_bytes(b"\0" * 100)
    tracemalloc.start()
    try:
        with pytest.raises(AnyrigError, match="has 100 bytes instead of 40000000064"):
            open_checkpoint(folder).tensor("model/a")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_paths_that_are_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    checkpoint = stored(tmp_path)
    manifest = tmp_path / "manifest.json"
    (checkpoint.path / "manifest.json").rename(manifest)
    (checkpoint.path / "manifest.json").symlink_to(manifest)
    expected = {
        "none": "ANY-LOAD-001",
        "file": "ANY-LOAD-002",
        "folder": "ANY-LOAD-002",
        "dangling": "ANY-LOAD-002",
        checkpoint.path.name: "ANY-LOAD-002",
    }
    for name, code in expected.items():
        with pytest.raises(ManifestError) as caught:
            open_checkpoint(tmp_path / name)
        assert caught.value.code == code, name


def test_a_partial_folder_is_none_even_when_complete(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path)
    partial = checkpoint.path.rename(tmp_path / ".step-000000009.partial-0123abcd")
    with pytest.raises(ManifestError, match="was not finished") as caught:
        open_checkpoint(partial)
    assert caught.value.code == "ANY-LOAD-003"


def test_a_checkpoint_may_be_copied_under_another_name_but_not_to_another_step(tmp_path: Path) -> None:
    copied = stored(tmp_path).path.rename(tmp_path / "mine")
    assert open_checkpoint(copied).step == 9
    with pytest.raises(ManifestError, match="holds step 9: the folder was renamed"):
        open_checkpoint(copied.rename(tmp_path / "step-000000010"))


AS_NOBODY = """
import os, sys, numpy
from anyrig.store.read import open_checkpoint, verify_checkpoint
from anyrig.store.commit import committed_steps
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
checkpoint = open_checkpoint(sys.argv[1])
print(checkpoint.tensor("model/lines").sum(), verify_checkpoint(checkpoint), committed_steps(checkpoint.path.parent))
"""


def open_to_all(folder: Path) -> None:
    """Let every user reach a temporary folder: pytest makes its parents for the owner alone."""
    for parent in (folder, *folder.parents):
        if parent != Path(tempfile.gettempdir()) and parent.is_relative_to(tempfile.gettempdir()):
            parent.chmod(0o755)


def as_nobody(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a user whom file modes hold for (the tests may run as root)."""
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, timeout=60, cwd="/"
    )


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """A folder that every user can reach."""
    open_to_all(tmp_path)
    return tmp_path


def test_B150_a_read_only_checkpoint_opens_for_a_plain_user(open_folder: Path) -> None:
    checkpoint = stored(open_folder)
    for folder in (checkpoint.path, open_folder):
        folder.chmod(0o555)
    done = as_nobody(AS_NOBODY, str(checkpoint.path))
    open_folder.chmod(0o755)
    assert done.stdout == "496.0 [] [9]\n", done.stderr


@pytest.mark.parametrize("victim", ["manifest.json", "."])
def test_B150_what_may_not_be_read_is_not_called_missing(open_folder: Path, victim: str) -> None:
    checkpoint = stored(open_folder)
    (checkpoint.path / victim).chmod(0o000)
    program = AS_NOBODY.replace("open_checkpoint(sys.argv[1])", "print(committed_steps(sys.argv[1] + '/..'))")
    for tried in (AS_NOBODY, program):
        done = as_nobody(tried, str(checkpoint.path))
        assert "cannot be read: [Errno 13] Permission denied" in done.stderr, tried
        assert done.stdout == ""
    checkpoint.path.chmod(0o755)


def test_what_is_not_aligned_is_a_copy(tmp_path: Path) -> None:
    checkpoint = stored(tmp_path)
    odd = checkpoint.tensor("model/odd")
    odd.flags.writeable = True
    odd[:] = 9
    assert checkpoint.tensor("model/odd")[1] == 1


def test_big_endian_arrays_are_stored_little_endian(tmp_path: Path) -> None:
    big = np.arange(5, dtype=">f4")
    found = write_checkpoint(tmp_path, 1, [StoredTensor(name="model/a", array=big)], progress={}).tensor("model/a")
    assert found.dtype == np.dtype("<f4")
    np.testing.assert_array_equal(found, big)
    assert tensor_hash(big) == tensor_hash(found)


def test_a_tensor_checksum_that_its_chunks_contradict_is_damage(tmp_path: Path) -> None:
    """The digests are taken over it, so it may not lie even when every byte of the files is right."""
    checkpoint = stored(tmp_path)
    first, *others = checkpoint.manifest.tensors
    lying = dataclasses.replace(checkpoint.manifest, tensors=(dataclasses.replace(first, checksum="0" * 32), *others))
    unlock(checkpoint.path / "manifest.json").write_bytes(encode(lying))
    (damage,) = verify_checkpoint(open_checkpoint(checkpoint.path))
    assert (damage.tensor, damage.what) == ("model/lines", "its checksum does not match its content")


READS = {
    "off": lambda checkpoint: checkpoint.tensors(["model/w"], verify="off"),
    "full": lambda checkpoint: checkpoint.tensors(["model/w"], verify="full"),
    "rows": lambda checkpoint: checkpoint.tensor("model/w", slice(0, 2)),
    "asset": lambda checkpoint: checkpoint.asset("words.txt"),
}


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("read", READS)
def test_a_checkpoint_that_was_replaced_or_removed_gives_nothing_of_the_next_one(
    tmp_path: Path, read: str, mapped: bool
) -> None:
    def write(value: float) -> Path:
        tensors = [StoredTensor(name="model/w", array=np.full((4, 16), value))]
        return write_checkpoint(
            tmp_path, 9, tensors, progress={}, assets={"words.txt": str(value).encode()}, replace=True
        ).path

    opened = open_checkpoint(write(1.0), mapped=mapped)
    kept = open_checkpoint(opened.path, mapped=True)
    before = kept.tensor("model/w")
    write(2.0)
    write(1.0)
    again = open_checkpoint(opened.path, mapped=mapped)
    write(3.0)
    for checkpoint in (opened, again):
        with pytest.raises(Replaced):
            READS[read](checkpoint)
    shutil.rmtree(opened.path)
    with pytest.raises(Replaced):
        READS[read](opened)
    assert before[0, 0] == kept.tensor("model/w")[0, 0] == 1, "what was mapped stays what it was"
