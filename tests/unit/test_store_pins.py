"""Pins: files beside the checkpoints that hold against every rule, whenever they are made."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from anyrig.errors import AnyrigError, UsageError
from anyrig.store.commit import committed_steps, sweep_partials
from anyrig.store.local import LocalFiles
from anyrig.store.pins import is_pinned, pin, pins, unpin
from anyrig.store.retain import remove_steps
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, step, [StoredTensor(name="model/a", array=np.array(step))], progress={})
    return tmp_path


def test_a_pin_has_a_name_that_can_be_changed_and_taken_away(root: Path) -> None:
    pin(root, 1)
    pin(root, 2, "the paper's ü")
    assert pins(root) == {1: "", 2: "the paper's ü"}
    pin(root, 1, "second")
    pin(root, 1, "second")
    assert pins(root) == {1: "second", 2: "the paper's ü"}
    assert unpin(root, 1)
    assert not unpin(root, 1)
    assert pins(root) == {2: "the paper's ü"}
    assert sorted(os.listdir(root)) == ["step-000000001", "step-000000002", "step-000000002.pin", "step-000000003"]
    assert committed_steps(root) == [1, 2, 3]


@pytest.mark.parametrize("name", ["two\nlines", "x" * 201])
def test_names_that_cannot_be_shown_are_refused(root: Path, name: str) -> None:
    with pytest.raises(UsageError, match="a pin cannot be called"):
        pin(root, 1, name)
    assert pins(root) == {}


def test_a_name_belongs_to_one_step(root: Path) -> None:
    pin(root, 1, "best")
    with pytest.raises(UsageError, match="step 1 is pinned as best already"):
        pin(root, 2, "best")


def test_what_is_not_there_cannot_be_pinned(root: Path) -> None:
    with pytest.raises(UsageError, match="has no checkpoint of step 7") as caught:
        pin(root, 7)
    assert caught.value.code == "ANY-STORE-016"
    assert pins(root) == {}


def test_a_pin_that_a_kill_cut_short_is_a_pin(root: Path) -> None:
    (root / "step-000000001.pin").write_bytes(b'{"na')
    (root / ".step-000000002.pin-0123abcd").write_bytes(b'{"na')
    assert pins(root) == {1: ""}
    assert sweep_partials(root) == [".step-000000002.pin-0123abcd"]


def test_a_pin_made_while_the_checkpoint_is_being_removed_holds(root: Path) -> None:
    class PinsFirst(LocalFiles):
        def rename(self, old: Path, new: Path) -> None:
            if old.name == "step-000000001":
                pin(root, 1)
            super().rename(old, new)

    remove_steps(root, [1, 2], files=PinsFirst())
    assert committed_steps(root) == [1, 3]
    assert is_pinned(root, 1)


def test_a_checkpoint_that_goes_while_it_is_pinned_is_told(root: Path) -> None:
    class RemovedMeanwhile(LocalFiles):
        def create(self, path: Path) -> int:
            remove_steps(root, [1])
            return super().create(path)

    with pytest.raises(UsageError, match="or it was removed just now"):
        pin(root, 1, files=RemovedMeanwhile())
    assert pins(root) == {}


def test_a_full_disk_is_a_named_error(root: Path) -> None:
    class Full(LocalFiles):
        def create(self, path: Path) -> int:
            raise OSError(28, "No space left on device")

        def remove_file(self, path: Path) -> None:
            raise PermissionError(13, "Permission denied")

    for change in (pin, unpin):
        with pytest.raises(AnyrigError, match=r"the pin of step 1 .* could not be changed") as caught:
            change(root, 1, files=Full())
        assert caught.value.code == "ANY-STORE-017"
