"""Which checkpoints stay; removal takes exactly the others."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyrig.errors import AnyrigError
from anyrig.store.local import LocalFiles
from anyrig.store.retain import (
    Keep,
    StepInfo,
    judge,
    remove_steps,
    to_make_room,
    to_remove,
    would_be_best,
)
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint

NAN = float("nan")


def infos(*metrics: float | None, pinned: tuple[int, ...] = ()) -> list[StepInfo]:
    """Steps 10, 20, 30, ... with these metrics."""
    return [StepInfo(10 * (index + 1), metric, 10 * (index + 1) in pinned) for index, metric in enumerate(metrics)]


@pytest.mark.parametrize(
    ("steps", "keep", "removed"),
    [
        ([], Keep(), []),
        (infos(1, 2), Keep(), []),
        (infos(1, 2, 3, 4, 5), Keep(), [10, 20]),
        (infos(1, 2, 3, 4, 5)[::-1], Keep(), [10, 20]),
        (infos(1, 2, 3), Keep(last=None), []),
        (infos(1, 2, 3), Keep(last=1), [10, 20]),
        (infos(1, 2, 3), Keep(last=7), []),
        (infos(3, 1, 2, 5, 6), Keep(last=1, best=1, monitor="loss"), [10, 30, 40]),
        (infos(3, 1, 2, 5, 6), Keep(last=1, best=2, monitor="loss"), [10, 40]),
        (infos(3, 9, 2, 5, 6), Keep(last=1, best=1, monitor="acc", mode="max"), [10, 30, 40]),
        (infos(1, 1, 1, 5), Keep(last=1, best=1, monitor="loss"), [10, 20]),
        (infos(NAN, 2, 3, 4), Keep(last=1, best=1, monitor="loss"), [10, 30]),
        (infos(NAN, 2, 3, 4), Keep(last=1, best=1, monitor="acc", mode="max"), [10, 20, 30]),
        (infos(None, None, 3), Keep(last=1, best=2, monitor="loss"), [10, 20]),
        (infos(1, 2, 3, 4, 5), Keep(last=1, every=20), [10, 30]),
        (infos(1, 2, 3, 4, 5, pinned=(10,)), Keep(last=1), [20, 30, 40]),
        (infos(float("inf"), 2, 3), Keep(last=1, best=1, monitor="loss"), [10]),
    ],
)
def test_what_goes(steps: list[StepInfo], keep: Keep, removed: list[int]) -> None:
    assert to_remove(steps, keep) == removed


def sized(*metrics: float | None, pinned: tuple[int, ...] = ()) -> list[StepInfo]:
    """Steps 10, 20, 30, ... with these metrics, of 100 bytes each."""
    return [replace(info, nbytes=100) for info in infos(*metrics, pinned=pinned)]


@pytest.mark.parametrize(
    ("steps", "keep", "removed"),
    [
        (sized(1, 2, 3, 4), Keep(last=None, max_total_size=250), [10, 20]),
        (sized(1, 2, 3, 4), Keep(last=None, max_total_size=400), []),
        (sized(1, 2, 3, 4), Keep(last=None, max_total_size=1), [10, 20, 30]),  # never the newest
        (sized(1, 2, 3, 4, pinned=(10, 20)), Keep(last=None, max_total_size=1), [30]),  # never a pinned one
        (
            sized(1, 2, 3, 4),
            Keep(last=None, best=2, monitor="loss", max_total_size=250),
            [20, 30],
        ),  # the best after all
        (
            sized(2, 1, 3, 4),
            Keep(last=1, best=2, monitor="loss", max_total_size=250),
            [10, 30],
        ),  # then the worst of them
        (sized(1, 2, 3, 4), Keep(last=1, every=20, max_total_size=150), [10, 20, 30]),
    ],
)
def test_what_goes_to_hold_a_total_size(steps: list[StepInfo], keep: Keep, removed: list[int]) -> None:
    assert to_remove(steps, keep) == removed


@pytest.mark.parametrize(("free", "removed"), [(500, []), (499, [10]), (301, [10, 20]), (0, [10, 20, 30])])
def test_what_goes_to_leave_some_of_the_disk_free(free: int, removed: list[int]) -> None:
    assert to_remove(sized(1, 2, 3, 4), Keep(last=None, min_free=500), free=free) == removed
    assert to_remove(sized(1, 2, 3, 4), Keep(last=None), free=free) == []


@pytest.mark.parametrize(
    ("keep", "free", "removed"),
    [
        (Keep(last=2), 100, []),
        (Keep(last=2), 99, [10]),  # no more than is needed, oldest first
        (Keep(last=2), 1, [10]),
        (Keep(last=2), 0, [10]),
        (Keep(last=3), 0, [10]),
        (Keep(last=None), 0, []),
        (Keep(last=1), 0, [10]),  # the newest stays until the new one is there
        (Keep(last=None, min_free=100), 199, [10]),
        (Keep(last=None, min_free=100), 99, [10, 20]),
        (Keep(last=None, min_free=500), 99, [10, 20]),  # however little that helps, never the newest
    ],
)
def test_what_goes_before_a_save_that_has_no_room(keep: Keep, free: int, removed: list[int]) -> None:
    steps = sized(1, 2, 3)
    assert to_make_room(steps, keep, coming=100, free=free) == removed


def test_each_verdict_has_its_reasons() -> None:
    keep = Keep(last=2, best=2, monitor="loss", every=20, max_total_size=450)
    verdicts = judge(sized(1, 3, 2, 4, 5, 6, 7, pinned=(50,)), keep)
    assert {verdict.info.step: verdict.stays or verdict.goes for verdict in verdicts} == {
        10: ("best by loss",),
        20: "max_total_size",
        30: ("number 2 by loss",),
        40: "max_total_size",
        50: ("pinned",),
        60: "max_total_size",
        70: ("newest",),
    }


@pytest.mark.parametrize(("value", "is_best"), [(2.9, True), (3, False), (4, False), (NAN, False)])
def test_what_would_be_best(value: float, is_best: bool) -> None:
    keep = Keep(best=2, monitor="loss")
    assert would_be_best(value, infos(3, 1, NAN, None), keep) is is_best
    assert would_be_best(-value, infos(-3, -1), replace(keep, mode="max")) is is_best
    assert would_be_best(value, infos(3, None), keep) is not math.isnan(value)
    assert not would_be_best(value, infos(3, None), Keep())


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"last": 0}, "keep_last=0"),
        ({"best": -1}, "keep_best=-1"),
        ({"last": True}, "keep_last=True"),
        ({"best": 1}, "keep_best=1 needs `monitor`"),
        ({"mode": "auto"}, "mode='auto'"),
        ({"every": 0}, "keep_every=0"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        Keep(**settings)


def save(root: Path, *steps: int) -> None:
    for step in steps:
        tensor = StoredTensor(name="model/a", array=np.array(step))
        write_checkpoint(root, step, [tensor], progress={}, assets={"a/b": b""})


def test_removal_leaves_exactly_the_others(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    (tmp_path / "foreign").mkdir()
    remove_steps(tmp_path, [1, 3, 77])
    assert sorted(os.listdir(tmp_path)) == ["foreign", "step-000000002"]


def test_a_new_name_is_on_the_disk_before_anything_is_deleted(tmp_path: Path) -> None:
    class Recording(LocalFiles):
        done: list[str]

        def rename(self, old: Path, new: Path) -> None:
            super().rename(old, new)
            self.done = [f"{old.name} to {new.name[:22]}"]

        def flush_folder(self, path: Path) -> None:
            self.done.append(f"flush {path.name}")

        def remove_file(self, path: Path) -> None:
            super().remove_file(path)
            self.done.append("remove")

    root = tmp_path / "checkpoints"
    save(root, 1)
    files = Recording()
    remove_steps(root, [1], files=files)
    assert files.done == ["step-000000001 to .step-000000001.remove", "flush checkpoints", *["remove"] * 3]


def test_a_link_is_removed_and_not_what_it_points_to(tmp_path: Path) -> None:
    save(tmp_path, 1)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (tmp_path / "step-000000001" / "link").symlink_to(outside)
    remove_steps(tmp_path, [1])
    assert os.listdir(outside) == ["precious"]


def test_a_removal_that_fails_is_a_named_error(tmp_path: Path) -> None:
    class Stuck(LocalFiles):
        def remove_file(self, path: Path) -> None:
            raise PermissionError(13, "Permission denied")

    save(tmp_path, 1, 2)
    with pytest.raises(AnyrigError, match=r"step 1 .* was not removed: .*Permission denied") as caught:
        remove_steps(tmp_path, [1], files=Stuck())
    assert caught.value.code == "ANY-STORE-013"
