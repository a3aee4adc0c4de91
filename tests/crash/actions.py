"""What is done to a run directory while something breaks, and which checkpoints may be there afterwards."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anyrig.cli.prune import command as prune_command
from anyrig.diagnose.repair import repair
from anyrig.locations import prepare_run_directory
from anyrig.store.commit import committed_steps, newest_sound, sweep_partials
from anyrig.store.digest import state_digest_of
from anyrig.store.lock import RunLock
from anyrig.store.pins import pin, unpin
from anyrig.store.read import open_checkpoint, verify_checkpoint
from anyrig.store.retain import Keep
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint
from anyrig.train.keeping import Keeper

Contents = dict[int, str]
"""The committed steps, each with the digest of its state."""


@dataclass(frozen=True, slots=True)
class Action:
    """`states`: what may be there after the next start, from as it was before to as it is after the action.

    `start` is what the next process does before it goes on. `also` may be there until then.
    """

    words: str
    prepare: Callable[[Path], object]
    act: Callable[[Path], object]
    states: tuple[Contents, ...]
    start: Callable[[Path], object]
    also: tuple[Contents, ...] = ()

    def outcome(self, run: Path) -> str:
        """Start, and say which of the allowed states is there; nothing else is, under whatever name."""
        assert contents(run) in (*self.states, *self.also)
        self.start(run)
        found = contents(run)
        assert found in self.states
        newest, rejected = newest_sound(run / "checkpoints")
        assert (newest.step if newest else None, rejected) == (max(found, default=None), [])
        assert litter(run) == []
        return {0: "as before", len(self.states) - 1: "as after"}.get(self.states.index(found), "in between")


def tensors(step: int, value: int) -> list[StoredTensor]:
    return [
        StoredTensor(name="model/kernel", array=np.full((4, 8), value, np.float32)),
        StoredTensor(name="optimizer/iterations", array=np.array(step)),
    ]


def digest(step: int, value: int = 0) -> str:
    return state_digest_of(tensors(step, value), step)


def save(run: Path, step: int, value: int = 0) -> Path:
    root = run / "checkpoints"
    asset = {"a/v.txt": b"x"}
    return write_checkpoint(root, step, tensors(step, value), progress={}, assets=asset, replace=True).path


def contents(run: Path) -> Contents:
    """Return what is committed, after reading every byte of it back: it is what was committed."""
    found = [open_checkpoint(run / "checkpoints" / f"step-{s:09d}") for s in committed_steps(run / "checkpoints")]
    assert [damage for checkpoint in found for damage in verify_checkpoint(checkpoint)] == []
    return {checkpoint.step: checkpoint.state_digest for checkpoint in found}


def litter(run: Path) -> list[str]:
    names = os.listdir(run) + os.listdir(run / "checkpoints")
    return [n for n in names if n != "checkpoints" and not re.fullmatch(r"step-\d{9}(\.pin)?", n)]


def start(run: Path) -> None:
    """Do what a run does before it looks for its newest checkpoint."""
    prepare_run_directory(run)
    with RunLock(run):
        sweep_partials(run / "checkpoints")


def prune(run: Path) -> None:
    assert prune_command.callback
    prune_command.callback(run=str(run), dry_run=False, as_json=True, keep_last="1")


def retain(run: Path) -> None:
    Keeper(run / "checkpoints", Keep(last=1)).retain()


def load(run: Path) -> None:
    newest, _ = newest_sound(run / "checkpoints")
    assert newest is not None
    assert len(newest.tensors(newest.names, verify="full")) == 2
    assert newest.asset("a/v.txt") == b"x"


def pinned(run: Path) -> None:
    _saved(1)(run)
    pin(run / "checkpoints", 1, "first")


def leave_unfinished(run: Path) -> None:
    """Leave what kills leave: a removal, a replacement without its successor's name, a partial save, a pin."""
    for step, kind, value in ((10, "removed", 0), (20, "replaced", 0), (20, "partial", 1)):
        path = save(run, step, value)
        path.rename(path.with_name(f".{path.name}.{kind}-0123abcd"))
    path = save(run, 30)
    (path / "manifest.json").unlink()
    path.rename(path.with_name(f".{path.name}.partial-0123abcd"))
    (run / "checkpoints" / ".step-000000005.pin-0123abcd").write_text("")
    save(run, 5)


def _saved(*steps: int) -> Callable[[Path], None]:
    def prepare(run: Path) -> None:
        prepare_run_directory(run)
        for step in steps:
            save(run, step)

    return prepare


def _three_and_a_pin(run: Path) -> None:
    _saved(1, 2, 3)(run)
    pin(run / "checkpoints", 1)


def _unfinished(run: Path) -> None:
    prepare_run_directory(run)
    leave_unfinished(run)


def _holding(*steps: int, **values: int) -> Contents:
    return {step: digest(step, values.get(f"value_of_{step}", 0)) for step in steps}


_REPLACED = (_holding(1, 2), _holding(1, 2, value_of_2=1))

ACTIONS = {
    "first": Action("the first save", _saved(), lambda run: save(run, 2), ({}, _holding(2)), start),
    "save": Action("a save", _saved(1), lambda run: save(run, 2), (_holding(1), _holding(1, 2)), start),
    "replace": Action(
        # Between two renames the step has no folder of its final name; the next start gives the former one back.
        "a save in the place of another state",
        _saved(1, 2),
        lambda run: save(run, 2, 1),
        _REPLACED,
        start,
        also=(_holding(1),),
    ),
    "retention": Action("retention", _saved(1, 2, 3), retain, (_holding(1, 2, 3), _holding(2, 3), _holding(3)), start),
    "prune": Action("`anyrig prune`", _three_and_a_pin, prune, (_holding(1, 2, 3), _holding(1, 3)), start),
    "pin": Action("a pin", _saved(1), lambda run: pin(run / "checkpoints", 1, "a"), (_holding(1),) * 2, start),
    "rename-pin": Action(
        "another name for a pin", pinned, lambda run: pin(run / "checkpoints", 1, "a"), (_holding(1),) * 2, start
    ),
    "unpin": Action("the end of a pin", pinned, lambda run: unpin(run / "checkpoints", 1), (_holding(1),) * 2, start),
    "start": Action(
        "the start of a run after kills",
        _unfinished,
        start,
        (_holding(5, 20),) * 2,
        start,
        also=(_holding(5),),
    ),
    "repair": Action(
        "`anyrig repair` after kills",
        _unfinished,
        repair,
        (_holding(5, 20, value_of_20=1),) * 2,
        repair,
        also=(_holding(5),),
    ),
    "load": Action("a load", _saved(1, 2), load, (_holding(1, 2),), start),
}
CHANGING = [name for name in ACTIONS if name != "load"]
