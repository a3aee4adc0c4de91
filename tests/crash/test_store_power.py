"""Power loss at every call: what was not flushed is gone; the previous or the new checkpoint is there, whole."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from anyrig.store.commit import newest_sound
from anyrig.store.local import LOCAL
from anyrig.testing.faults import Faults
from anyrig.testing.power import PowerCut
from tests.crash.actions import ACTIONS, contents
from tests.crash.conftest import Measured


@pytest.mark.parametrize("names_early", [False, True], ids=["names late", "names early"])
@pytest.mark.parametrize("name", ["first", "save", "replace", "retention", "prune", "start", "repair"])
def test_B156_power_loss_at_every_call(place: Path, name: str, names_early: bool, measured: Measured) -> None:
    action, run, found = ACTIONS[name], place / "run", Counter[str]()
    action.prepare(run)
    with Faults(cut := PowerCut(run), times=None).on(LOCAL):
        action.act(run)
    assert cut.calls > 5
    for after in range(cut.calls + 1):
        left = place / "left"
        cut.leave(left, after=after, names_early=names_early)
        newest, _ = newest_sound(left / "checkpoints")
        assert (newest.step if newest else None) == max(contents(left), default=None)
        found[action.outcome(left)] += 1
        if after == cut.calls:
            assert contents(left) == action.states[-1], "what returned is on the disk"
        shutil.rmtree(left)
    words = "power loss after each call" + (", names on the disk early" if names_early else "")
    measured("walks", action=action.words, fault=words, tried=found.total(), outcomes=dict(found))


def test_the_model_loses_what_was_not_flushed(tmp_path: Path) -> None:
    """The model itself: each flush that is left out is seen."""
    root = tmp_path / "root"
    root.mkdir()
    with Faults(cut := PowerCut(root), times=None).on(LOCAL) as files:
        descriptor = files.create(root / "a")
        files.write(descriptor, memoryview(b"one"))
        files.flush(descriptor)
        files.write(descriptor, memoryview(b"two"))
        files.close(descriptor)
        files.flush_folder(root)
        files.rename(root / "a", root / "b")
    seen = []
    for after in range(cut.calls + 1):
        for names_early in (False, True):
            left = tmp_path / f"{after}-{names_early}"
            cut.leave(left, after=after, names_early=names_early)
            seen.append({path.name: path.read_bytes() for path in left.iterdir()})
    nothing: dict[str, bytes] = {}
    named, flushed, renamed = {"a": b""}, {"a": b"one"}, {"b": b"one"}
    late_and_early = [(nothing,) * 2, (nothing, named), (nothing, named), *[(nothing, flushed)] * 2]
    assert seen == [item for pair in [*late_and_early, (flushed, flushed), (flushed, renamed)] for item in pair]
