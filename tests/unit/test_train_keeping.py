"""Retention of a run: room before a save, nothing goes before another was read back, the best is in the manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyrig.errors import AnyrigError
from anyrig.store.commit import committed_steps
from anyrig.store.local import LocalFiles
from anyrig.store.pins import pin
from anyrig.store.retain import Keep
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint
from anyrig.train.keeping import Keeper

NBYTES = 4000


def save(root: Path, step: int, *, boundary: str = "epoch", value: int = 0, **progress: Any) -> None:
    array = np.full(NBYTES // 4, value + step, np.float32)
    write_checkpoint(
        root,
        step,
        [StoredTensor(name="model/a", array=array)],
        progress={"boundary": boundary, **progress},
        replace=True,
    )


class Disk(LocalFiles):
    """A disk with room for so many bytes beside what checkpoints take in `root`."""

    def __init__(self, root: Path, size: int) -> None:
        self._root, self._size = root, size

    def free(self, path: Path) -> int:
        return self._size - NBYTES * len(committed_steps(self._root))


def damage(root: Path, step: int) -> None:
    (data,) = (root / f"step-{step:09d}").glob("*.safetensors")
    data.chmod(0o644)
    with data.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")


def test_B069_B070_the_best_is_known_from_the_manifests_after_a_restart(tmp_path: Path) -> None:
    keep = Keep(last=1, best=1, monitor="val_loss")
    for step, loss in ((1, 3.0), (2, 0.00003), (3, 0.00004), (4, 0.5)):  # B091: full precision decides
        save(tmp_path, step, metrics={"val_loss": loss})
        Keeper(tmp_path, keep).retain(step)  # a new one each time, as after a restart
    assert committed_steps(tmp_path) == [2, 4]
    assert not Keeper(tmp_path, keep).would_be_best(0.00004)
    assert Keeper(tmp_path, keep).would_be_best(0.00002)
    assert not Keeper(tmp_path, keep).would_be_best(float("nan"))
    assert not Keeper(tmp_path, keep).would_be_best(None)


@pytest.mark.parametrize("state", [{"boundary": "batch"}, {"boundary": "end", "changed_at_end": True}])
def test_B085_only_a_state_that_was_evaluated_has_a_metric(tmp_path: Path, state: dict[str, Any]) -> None:
    save(tmp_path, 1, **{"boundary": "epoch", **state}, metrics={"val_loss": 0.1})
    save(tmp_path, 2, boundary="end", changed_at_end=False, metrics={"val_loss": 0.2})
    found = {info.step: info.metric for info in Keeper(tmp_path, Keep(best=1, monitor="val_loss")).steps()}
    assert found == {1: None, 2: 0.2}


def test_a_step_that_was_written_anew_has_its_new_metric(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path, Keep(best=1, monitor="loss"))
    for value in (1, 2):
        save(tmp_path, 1, value=value, metrics={"loss": value})
        keeper.retain(1)
        assert [info.metric for info in keeper.steps()] == [value]


def test_before_a_save_what_may_go_makes_room_and_no_more(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    keeper = Keeper(tmp_path, Keep(last=3), files=Disk(tmp_path, 4 * NBYTES))
    assert keeper.make_room(NBYTES) is None
    assert committed_steps(tmp_path) == [1, 2, 3]
    assert Keeper(tmp_path, Keep(last=3), files=Disk(tmp_path, 4 * NBYTES - 1)).make_room(NBYTES) is None
    assert committed_steps(tmp_path) == [2, 3]


def test_B156_a_save_that_cannot_fit_is_refused_before_it_is_written(tmp_path: Path) -> None:
    save(tmp_path, 1)
    keeper = Keeper(tmp_path, Keep(last=1), files=Disk(tmp_path, 2 * NBYTES - 1))
    with pytest.raises(
        AnyrigError, match=r"a save needs 3.9 KiB, and 3.9 KiB are free .* earlier .* as they were"
    ) as caught:
        keeper.make_room(NBYTES)
    assert caught.value.code == "ANY-STORE-014"
    assert committed_steps(tmp_path) == [1]


def test_a_limit_that_cannot_be_held_is_told_once_and_nothing_is_lost(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    pin(tmp_path, 1)
    keeper = Keeper(tmp_path, Keep(last=1, min_free=NBYTES, max_total_size=NBYTES), files=Disk(tmp_path, 3 * NBYTES))
    assert "min_free (3.9 KiB) cannot be held" in (keeper.make_room(NBYTES) or "")
    assert keeper.make_room(NBYTES) is None
    removed, warning = keeper.retain(2)
    assert removed == []
    assert "max_total_size (3.9 KiB) cannot be held" in (warning or "")
    assert keeper.retain(2) == ([], None)


def test_the_last_checked_one_stays_until_a_newer_one_was_read_back(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    keeper = Keeper(tmp_path, Keep(last=2), sound=1)
    damage(tmp_path, 3)
    with pytest.raises(
        AnyrigError, match=r"step-000000003 does not read back as it was written: .* no other"
    ) as caught:
        keeper.retain(3)
    assert caught.value.code == "ANY-STORE-018"
    assert committed_steps(tmp_path) == [1, 2, 3]
    save(tmp_path, 4)
    assert keeper.retain(4) == ([1, 2], None)
    assert keeper.sound == 4
    save(tmp_path, 4, value=1)
    damage(tmp_path, 4)
    with pytest.raises(AnyrigError, match="step-000000004"):  # what was checked was another state of step 4
        Keeper(tmp_path, Keep(last=1), sound=4).retain(4)


def test_no_more_is_read_back_than_is_needed(tmp_path: Path) -> None:
    keeper, checked = Keeper(tmp_path, Keep(last=3)), []
    for step in range(1, 11):
        save(tmp_path, step)
        keeper.retain(step)
        checked.append(keeper.sound)
    assert checked == [None, None, None, 4, 4, 4, 7, 7, 7, 10]
