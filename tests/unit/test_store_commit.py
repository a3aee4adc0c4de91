"""What counts as committed, what is swept, and what is left alone."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from anyrig.errors import AnyrigError
from anyrig.store import layout
from anyrig.store.commit import Rejected, committed_steps, newest_sound, set_aside, sweep_partials
from anyrig.store.local import LocalFiles
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint

FOREIGN = [
    "step-10.tmp", "step-000000010.tmp", "step-5", "step-0000000005", "step-00000001x", "Step-000000001",
    "xstep-000000001", "step--00000001", "tmp", ".step-000000010.partial", ".step-000000010.partial-xyz",
    ".step-10.partial-0123abcd", ".git",
]  # fmt: skip


def save(root: Path, step: int) -> Path:
    return write_checkpoint(root, step, [StoredTensor(name="model/a", array=np.array(step))], progress={}).path


@pytest.mark.parametrize("name", ["step-000000000", "step-000000010", "step-1234567890"])
def test_final_names(name: str) -> None:
    step = layout.step_of(name)
    assert step is not None
    assert layout.step_name(step) == name


@pytest.mark.parametrize("name", FOREIGN)
def test_names_that_are_not_ours(name: str) -> None:
    assert layout.step_of(name) is None
    assert layout.leftover_of(name) is None


def test_a_missing_folder_has_no_steps(tmp_path: Path) -> None:
    assert committed_steps(tmp_path / "none") == []
    assert newest_sound(tmp_path / "none") == (None, [])
    assert sweep_partials(tmp_path / "none") == []


def test_a_file_instead_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AnyrigError, match="Not a directory"):
        committed_steps(tmp_path / "file")


def test_only_whole_checkpoints_under_final_names_count(tmp_path: Path) -> None:
    for step in (30, 2, 100):
        save(tmp_path, step)
    for name in FOREIGN:
        (tmp_path / name).mkdir()
    (tmp_path / "step-000000007").mkdir()
    (tmp_path / "step-000000008").touch()
    (tmp_path / "step-000000009").symlink_to(tmp_path / "step-000000002")
    save(tmp_path, 11).rename(tmp_path / layout.leftover_name(11, "partial"))
    save(tmp_path, 12).rename(tmp_path / "step-000000013")
    assert committed_steps(tmp_path) == [2, 30, 100]


def test_newest_sound_tells_what_it_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-000000002").mkdir()
    (tmp_path / "step-000000003").symlink_to(tmp_path / "step-000000001")
    partial = layout.leftover_name(4, "partial")
    (tmp_path / partial).mkdir()
    (tmp_path / layout.leftover_name(0, "partial")).mkdir()
    (tmp_path / layout.leftover_name(5, "damaged")).mkdir()
    (tmp_path / layout.leftover_name(6, "removed")).mkdir()
    found, rejected = newest_sound(tmp_path)
    assert found is not None
    assert found.step == 1
    assert [(item.name, item.step) for item in rejected] == [(partial, 4), ("step-000000003", 3), ("step-000000002", 2)]
    reasons = " ".join(item.reason for item in rejected)
    assert "was not finished" in reasons
    assert "is a link" in reasons
    assert "has no manifest.json" in reasons


def test_sweep_removes_only_what_is_ours_and_unfinished(tmp_path: Path) -> None:
    save(tmp_path, 1)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    kept = [*FOREIGN, layout.leftover_name(3, "damaged")]
    for name in kept:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    swept = [layout.leftover_name(2, "partial"), layout.leftover_name(2, "removed")]
    for name in swept:
        (tmp_path / name / "assets").mkdir(parents=True)
        (tmp_path / name / "assets" / "file").touch(0o444)
        (tmp_path / name / "link").symlink_to(outside)
    linked = layout.leftover_name(2, "partial")
    (tmp_path / linked).symlink_to(outside)
    assert sweep_partials(tmp_path) == sorted(swept)
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "outside", "step-000000001", linked])
    assert os.listdir(outside) == ["precious"]


def test_a_damaged_checkpoint_can_be_set_aside(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "step-000000002").mkdir()
    _, rejected = newest_sound(tmp_path)
    for item in [*rejected, Rejected(layout.leftover_name(3, "partial"), 3, "unfinished")]:
        set_aside(tmp_path, item)
    aside, sound = sorted(os.listdir(tmp_path))
    assert aside.startswith(".step-000000002.damaged-")
    assert sound == "step-000000001"
    assert newest_sound(tmp_path)[1] == []


def test_a_checkpoint_that_vanishes_while_listing_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    monkeypatch.setattr(os, "listdir", lambda path: ["step-000000001", "step-000000002"])
    assert committed_steps(tmp_path) == [1]
    assert newest_sound(tmp_path)[1] == []


def test_B115_two_writers_of_one_step_do_not_mix(tmp_path: Path) -> None:
    class Late(LocalFiles):
        """Another process commits the step just before our rename."""

        def rename(self, old: Path, new: Path) -> None:
            save(tmp_path, 1)
            super().rename(old, new)

    with pytest.raises(AnyrigError, match="Step 1 was not saved"):
        write_checkpoint(tmp_path, 1, [StoredTensor(name="model/a", array=np.array(5))], progress={}, files=Late())
    assert os.listdir(tmp_path) == ["step-000000001"]
    found, _ = newest_sound(tmp_path)
    assert found is not None
    assert found.tensor("model/a") == 1


@pytest.mark.parametrize("text", ["a:b", "..", "end.", "a/b", "50%", "a\\b?", "plain", "", " ", "ä", "\0"])
def test_portable_makes_a_file_name_of_any_text(text: str) -> None:
    assert layout.fault_of_path(layout.portable(text)) is None
    assert "/" not in layout.portable(text)
