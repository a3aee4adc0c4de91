"""A save commits everything or leaves nothing behind; what cannot be stored is refused before the first byte."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from anyrig.errors import AnyrigError, UsageError
from anyrig.store.digest import model_digest_of, state_digest_of
from anyrig.store.local import LOCAL, LocalFiles
from anyrig.store.read import open_checkpoint, verify_checkpoint
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint
from anyrig.testing.faults import Fault, Faults, fail, interrupt, short, walk


def some_tensors(value: float = 1.0) -> list[StoredTensor]:
    return [
        StoredTensor(name="model/dense/kernel", array=np.full((4, 8), value, np.float32), aliases=("dense/kernel",)),
        StoredTensor(name="model/dense/bias", array=np.arange(3, dtype=np.float16), place="0f"),
        StoredTensor(name="optimizer/main/iterations", array=np.array(7, np.int64)),
        StoredTensor(name="callbacks/early/wait", array=np.array(2, np.int32)),
    ]


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_success_leaves_exactly_the_files_of_the_format(tmp_path: Path) -> None:
    root = tmp_path / "new" / "checkpoints"
    checkpoint = write_checkpoint(
        root,
        1200,
        some_tensors(),
        progress={"epoch": 3},
        documents={"model.json": b"{}"},
        assets={"words/vocabulary.txt": b"a\nb\n"},
        record={"recipe_hash": "ab"},
    )
    assert listing(root) == [
        "step-000001200",
        "step-000001200/assets",
        "step-000001200/assets/words",
        "step-000001200/assets/words/vocabulary.txt",
        "step-000001200/callbacks-00001-of-00001.safetensors",
        "step-000001200/manifest.json",
        "step-000001200/model-00001-of-00001.safetensors",
        "step-000001200/model.json",
        "step-000001200/optimizer-00001-of-00001.safetensors",
    ]
    assert checkpoint.path == root / "step-000001200"
    assert (checkpoint.step, checkpoint.progress, checkpoint.record) == (1200, {"epoch": 3}, {"recipe_hash": "ab"})
    assert checkpoint.names == tuple(tensor.name for tensor in some_tensors())
    assert checkpoint.document("model.json") == b"{}"
    assert (checkpoint.assets, checkpoint.asset("words/vocabulary.txt")) == (("words/vocabulary.txt",), b"a\nb\n")
    assert checkpoint.entry("model/dense/bias").place == "0f"
    assert verify_checkpoint(checkpoint) == []


def test_files_are_read_only_and_folders_are_not(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, 1, some_tensors(), progress={}, assets={"a/b": b"c"})
    for path in [checkpoint.path, *checkpoint.path.rglob("*")]:
        assert bool(stat.S_IMODE(path.stat().st_mode) & 0o222) == path.is_dir(), path


def test_a_private_umask_is_kept(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        checkpoint = write_checkpoint(tmp_path, 1, some_tensors(), progress={})
    finally:
        os.umask(old)
    assert stat.S_IMODE((checkpoint.path / "manifest.json").stat().st_mode) == 0o400


BEFORE_REMOVAL = {"make_folder", "create", "write", "protect", "flush", "close", "flush_folder", "rename"}


@pytest.mark.parametrize(
    ("fault", "expected", "text"),
    [(fail(errno.ENOSPC), AnyrigError, "No space left"), (interrupt, KeyboardInterrupt, None)],
    ids=["full", "Ctrl-C"],
)
def test_U05_failure_at_any_call_leaves_the_old_checkpoint_and_nothing_else(
    tmp_path: Path, fault: Fault, expected: type[BaseException], text: str | None
) -> None:
    write_checkpoint(tmp_path, 1, some_tensors(), progress={})
    before = listing(tmp_path)
    for faults in walk(fault, kinds=BEFORE_REMOVAL):
        with pytest.raises(expected, match=text), faults.on(LocalFiles()) as files:
            write_checkpoint(tmp_path, 2, some_tensors(2.0), progress={}, assets={"a/b": b"c"}, files=files)
        if (tmp_path / "step-000000002").exists():  # the flush after the rename failed: committed, and reported
            break
        assert listing(tmp_path) == before, faults.made
    assert len(faults.made) > 25
    assert verify_checkpoint(open_checkpoint(tmp_path / "step-000000002")) == []
    assert verify_checkpoint(open_checkpoint(tmp_path / "step-000000001")) == []


def test_cleanup_does_not_hide_the_first_error(tmp_path: Path) -> None:
    files = LocalFiles()
    first, second = Faults(fail(errno.EIO), at=9), Faults(fail(errno.EACCES), kinds={"remove_file"})
    with pytest.raises(AnyrigError, match="Input/output error") as caught, first.on(files), second.on(files):
        write_checkpoint(tmp_path, 1, some_tensors(), progress={}, files=files)
    assert caught.value.code == "ANY-STORE-007"
    assert "Permission denied" in str(caught.value.__cause__.__notes__)  # type: ignore[union-attr]


def test_B156_a_file_that_ended_up_shorter_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AnyrigError, match=r"wrote .* bytes, found"), Faults(short, kinds={"write"}).on(LOCAL):
        write_checkpoint(tmp_path, 1, some_tensors(), progress={})
    assert listing(tmp_path) == []


def test_the_same_state_again_returns_what_is_there(tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path, 5, some_tensors(), progress={"epoch": 1})
    manifest = (first.path / "manifest.json").stat()
    again = write_checkpoint(tmp_path, 5, some_tensors(), progress={"epoch": 2})
    assert again.progress == {"epoch": 1}
    assert (first.path / "manifest.json").stat().st_ino == manifest.st_ino
    assert os.listdir(tmp_path) == ["step-000000005"]


def test_another_state_of_the_same_step_is_refused(tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path, 5, some_tensors(), progress={})
    with pytest.raises(AnyrigError, match="another state of step 5") as caught:
        write_checkpoint(tmp_path, 5, some_tensors(2.0), progress={})
    assert caught.value.code == "ANY-STORE-006"
    assert verify_checkpoint(first) == []
    assert os.listdir(tmp_path) == ["step-000000005"]


@pytest.mark.parametrize("victim", ["model-00001-of-00001.safetensors", "manifest.json"])
def test_a_damaged_checkpoint_of_the_step_is_set_aside_and_written_again(tmp_path: Path, victim: str) -> None:
    path = write_checkpoint(tmp_path, 5, some_tensors(), progress={}).path / victim
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)
    assert verify_checkpoint(write_checkpoint(tmp_path, 5, some_tensors(), progress={})) == []
    aside, good = sorted(os.listdir(tmp_path))
    assert good == "step-000000005"
    assert aside.startswith(".step-000000005.damaged-")
    assert (tmp_path / aside / victim).read_bytes() == content


def test_digests_without_files_equal_those_of_the_manifest(tmp_path: Path) -> None:
    tensors = [*some_tensors(), StoredTensor(name="ema/x", array=np.arange(6).reshape(2, 3).T)]
    checkpoint = write_checkpoint(tmp_path, 5, tensors, progress={})
    assert checkpoint.state_digest == state_digest_of(tensors, 5) == state_digest_of(tensors[::-1], 5)
    assert checkpoint.model_digest == model_digest_of(tensors)


@pytest.mark.parametrize(
    ("change", "state", "model"),
    [
        ({"array": np.full((4, 8), 1.5, np.float32)}, True, True),
        ({"array": np.ones((8, 4), np.float32)}, True, True),
        ({"array": np.full((4, 8), 1, np.float32).view(np.int32)}, True, True),
        ({"name": "model/dense/kernel2"}, True, True),
        ({"name": "optimizer/kernel"}, True, True),
        ({"aliases": ("other",)}, False, False),
        ({"place": "other"}, False, False),
    ],
)
def test_what_a_digest_depends_on(change: dict[str, Any], state: bool, model: bool) -> None:
    tensors = some_tensors()
    first = tensors[0]
    given = {"name": first.name, "array": first.array, "aliases": first.aliases, "place": first.place} | change
    changed = [StoredTensor(**given), *tensors[1:]]
    assert (state_digest_of(changed, 1) != state_digest_of(tensors, 1)) is state
    assert (model_digest_of(changed) != model_digest_of(tensors)) is model


def test_callbacks_do_not_count_and_the_step_does() -> None:
    tensors = some_tensors()
    assert state_digest_of(tensors[:-1], 1) == state_digest_of(tensors, 1) != state_digest_of(tensors, 2)
    assert state_digest_of(tensors[:2], 1) != state_digest_of(tensors, 1)
    assert model_digest_of(tensors[:2]) == model_digest_of(tensors)


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.zeros(2, np.complex128), "complex128"),
        (np.array(["a"]), "<U1"),
        (np.array([b"a"]), r"\|S1"),
        (np.array([None]), "object"),
        (np.zeros(2, "datetime64[s]"), "datetime64"),
        (np.zeros(2, ml_dtypes.int4), "int4"),
        (np.zeros(2, [("a", "f4")]), "'a'"),
    ],
)
def test_types_that_safetensors_lacks_are_refused_by_name(tmp_path: Path, array: Any, found: str) -> None:
    tensors = [*some_tensors(), StoredTensor(name="model/bad", array=array)]
    with pytest.raises(UsageError, match=f"'model/bad' has the type .*{found}"):
        write_checkpoint(tmp_path / "c", 1, tensors, progress={})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["kernel", "Model/kernel", "../kernel", "/kernel", "", "model/\ud800", "mo del/k"])
def test_names_that_cannot_be_stored(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        write_checkpoint(tmp_path / "c", 1, [StoredTensor(name=name, array=np.zeros(1))], progress={})
    assert caught.value.code == "ANY-STORE-002"


def test_two_tensors_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Two tensors have the name 'model/dense/kernel'"):
        write_checkpoint(tmp_path, 1, [*some_tensors(), some_tensors()[0]], progress={})


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("documents", "manifest.json"),
        ("documents", "model-00001-of-00001.safetensors"),
        ("documents", "assets"),
        ("documents", "a/b"),
        ("documents", ""),
        ("documents", ".."),
        ("assets", "../up"),
        ("assets", "/etc/passwd"),
        ("assets", "a//b"),
        ("assets", "a/./b"),
        ("assets", "a\\b"),
        ("assets", "c:d"),
        ("assets", "a\0b"),
        ("assets", "end."),
        ("assets", "a\ud800"),
    ],
)
def test_file_names_that_cannot_be_stored(tmp_path: Path, kind: str, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        write_checkpoint(tmp_path / "c", 1, some_tensors(), progress={}, **{kind: {name: b""}})  # type: ignore[arg-type]
    assert caught.value.code == "ANY-STORE-004"
    assert os.listdir(tmp_path) == []


def test_an_asset_below_another_asset(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'assets/a' cannot be stored: its name is also the folder"):
        write_checkpoint(tmp_path, 1, [], progress={}, assets={"a": b"", "a/b": b""})


@pytest.mark.parametrize("step", [-1, 10**18])
def test_steps_that_are_none(tmp_path: Path, step: int) -> None:
    with pytest.raises(UsageError, match="is not a step"):
        write_checkpoint(tmp_path, step, [], progress={})


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": {1: 2}}, "progress.a"),
        ({"a": [0, {"b": object()}]}, r"progress.a\[1\].b"),
        ({"a": np.zeros(2)}, "progress.a"),
        ({"a": b"bytes"}, "progress.a"),
        ({"$float": "inf"}, "progress"),
        ({"a": "\ud800"}, "progress.a"),
        ({"a": 1 + 2j}, "progress.a"),
    ],
)
def test_progress_that_json_would_change_is_refused(tmp_path: Path, value: dict[str, Any], where: str) -> None:
    with pytest.raises(UsageError, match=f"'{where}' cannot be stored as JSON"):
        write_checkpoint(tmp_path, 1, [], progress=value)
    assert os.listdir(tmp_path) == []


def test_numbers_in_progress_come_back_exactly(tmp_path: Path) -> None:
    progress = {
        "float": 0.1 + 0.2,
        "tiny": 5e-324,
        "minus_zero": -0.0,
        "numpy64": np.float64(1) / 3,
        "numpy32": np.float32(0.1),
        "bfloat16": ml_dtypes.bfloat16(1.5),
        "int": np.int64(2**62),
        "bool": np.bool_(True),
        "inf": np.inf,
        "minus_inf": -np.inf,
        "nested": {"list": (1, None, "ä")},
    }
    found = write_checkpoint(tmp_path, 1, [], progress=progress | {"nan": np.nan}).progress
    assert np.isnan(found.pop("nan"))
    assert np.signbit(found["minus_zero"])
    assert found == progress | {"nested": {"list": [1, None, "ä"]}}
    assert type(found["numpy32"]) is float
    assert found["bool"] is True


def test_short_writes_are_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: whole(descriptor, data[:7]))
    checkpoint = write_checkpoint(tmp_path, 1, some_tensors(), progress={})
    assert verify_checkpoint(checkpoint) == []


def test_the_disk_is_told_of_bytes_while_more_are_written(tmp_path: Path) -> None:
    told: list[tuple[int, int, int]] = []

    class Recording(LocalFiles):
        def begin_flush(self, descriptor: int, start: int, size: int) -> None:
            told.append((start, size, os.fstat(descriptor).st_size))
            super().begin_flush(descriptor, start, size)

    parts = [StoredTensor(name=f"model/{i}", array=np.full(3 * 2**18, i, np.float32)) for i in range(4)]
    write_checkpoint(tmp_path, 1, parts, progress={}, files=Recording())

    assert len(told) == 3
    assert told[0][0] == 0
    assert all(start + size == written for start, size, written in told)
    assert [start for start, _, _ in told[1:]] == [start + size for start, size, _ in told[:-1]]
    assert not verify_checkpoint(open_checkpoint(tmp_path / "step-000000001"))
