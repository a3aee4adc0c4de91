"""kill -9 and every error of a disk at every call of everything that changes a run directory.

After each: what is committed is as before or as after the action, every byte of it what was written, and the next start
leaves nothing else behind. Kills are real, in forked processes.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from anyrig.errors import AnyrigError
from anyrig.store.commit import newest_sound
from anyrig.store.local import LOCAL
from anyrig.testing.faults import (
    DISK_ERRORS,
    Fault,
    Faults,
    at_use,
    fail,
    halfway,
    in_child,
    interrupt,
    kill,
    short,
    vanish,
    walk,
)
from tests.crash.actions import ACTIONS, CHANGING, Action, contents
from tests.crash.conftest import Measured


def copies(action: Action, folder: Path) -> Iterator[Path]:
    """Yield run directories in which the action can begin, each at the same place and fresh."""
    template, run = folder / "template", folder / "run"
    action.prepare(template)
    while True:
        shutil.copytree(template, run, symlinks=True)
        yield run
        shutil.rmtree(run)


def tried(action: Action, folder: Path, fault: Fault, **which: Any) -> Iterator[tuple[Path, Faults]]:
    """Yield a fresh run directory and the fault at the first call, at the second, ... until one was not reached."""
    return ((run, faults) for faults, run in zip(walk(fault, **which), copies(action, folder), strict=False))


def acted(action: Action, run: Path, faults: Faults) -> None:
    with faults.on(LOCAL):
        action.act(run)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CHANGING)
def test_B156_U05_kill_before_every_call(place: Path, name: str, measured: Measured) -> None:
    killed(place, ACTIONS[name], kill, None, "kill -9 before each call", measured)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["first", "save", "replace", "pin", "rename-pin"])
def test_U05_kill_in_the_middle_of_every_write(place: Path, name: str, measured: Measured) -> None:
    killed(place, ACTIONS[name], halfway(kill), {"write"}, "kill -9 in the middle of each write", measured)


def killed(folder: Path, action: Action, fault: Fault, kinds: set[str] | None, words: str, measured: Measured) -> None:
    found: Counter[str] = Counter()
    for run, faults in tried(action, folder, fault, kinds=kinds):
        assert in_child(lambda run=run, faults=faults: acted(action, run, faults)) == (  # type: ignore[misc]
            -signal.SIGKILL if faults.hits else 0
        )
        outcome = action.outcome(run)
        if faults.hits:
            found[outcome] += 1
    assert contents(run) == action.states[-1]
    assert found["as before"]
    measured("walks", action=action.words, fault=words, tried=found.total(), outcomes=dict(found))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ACTIONS)
def test_U05_kill_at_every_use_of_a_name(place: Path, name: str, measured: Measured) -> None:
    """Also what does not go through the store's own object: locks, probes, what is read."""
    action, found = ACTIONS[name], Counter[str]()
    for number, run in enumerate(copies(action, place), 1):

        def act(number: int = number, run: Path = run) -> None:
            at_use(number, run, kill)
            action.act(run)

        code = in_child(act)
        outcome = action.outcome(run)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        found[outcome] += 1
    assert found
    measured("walks", action=action.words, fault="kill -9 at each use of a name", tried=found.total(), outcomes=found)


# What is not there needs no removal, so ENOENT is tried where it is true: see the folder that vanishes.
CODES = {errno.errorcode[code]: fail(code) for code in DISK_ERRORS if code != errno.ENOENT} | {"Ctrl-C": interrupt}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("times", [1, None], ids=["once", "from then on"])
@pytest.mark.parametrize("error", CODES)
@pytest.mark.parametrize("name", CHANGING)
def test_B156_U05_every_error_at_every_call(
    place: Path, name: str, error: str, times: int | None, measured: Measured
) -> None:
    words = f"{error} at each call{'' if times else ' and all later ones'}"
    failed(place, ACTIONS[name], CODES[error], words, measured, times=times)


@pytest.mark.parametrize("name", ["first", "save", "replace"])
def test_B156_a_short_write_with_and_without_an_error(place: Path, name: str, measured: Measured) -> None:
    action = ACTIONS[name]
    for fault, words in ((halfway(fail(errno.ENOSPC)), "half a write, then ENOSPC"), (short, "half a write, unsaid")):
        failed(place / words, action, fault, words, measured, kinds={"write"})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CHANGING)
def test_the_folder_vanishes_at_every_call(place: Path, name: str, measured: Measured) -> None:
    action, found = ACTIONS[name], Counter[str]()
    gone = place / "run" / "checkpoints"
    for run, faults in tried(action, place, vanish(gone)):
        told = ended(action, run, faults)
        if faults.hits:
            shutil.rmtree(gone, ignore_errors=True)  # whatever was begun anew at its place
            gone.with_name("checkpoints.gone").rename(gone)
            found[f"{action.outcome(run)}, {told}"] += 1
    measured("walks", action=action.words, fault="the folder vanishes", tried=found.total(), outcomes=dict(found))


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_B150_a_file_that_cannot_be_read_is_named_and_never_taken_for_none(
    place: Path, code: int, measured: Measured
) -> None:
    """What a disk cannot read is damage, and the step before is used; a missing permission ends the load."""
    action, found = ACTIONS["load"], Counter[str]()
    action.prepare(run := place / "run")
    for number in itertools.count(1):

        def act(number: int = number) -> int:
            at_use(number, run, fail(code))
            newest, rejected = newest_sound(run / "checkpoints")
            assert newest is not None
            newest.tensors(newest.names, verify="full")
            assert newest.step == (1 if rejected else 2)
            return 10 + newest.step if rejected else 0

        told = in_child(lambda act=act: os._exit(act()))  # type: ignore[misc]
        assert contents(run) == action.states[0]
        if told == 0:
            break
        found[{1: "as before, ANY-LOAD-012", 11: "as before, the step before was loaded"}[told]] += 1
    assert found.total() > 6
    assert code == errno.EIO or set(found) == {"as before, ANY-LOAD-012"}
    words = f"{errno.errorcode[code]} at each use of a name"
    measured("walks", action=action.words, fault=words, tried=found.total(), outcomes=dict(found))


def test_B151_many_processes_load_one_checkpoint(place: Path) -> None:
    action = ACTIONS["load"]
    action.prepare(run := place / "run")
    before = sorted(place.rglob("*"))
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda _: in_child(lambda: action.act(run)), range(24))) == [0] * 24
    assert sorted(place.rglob("*")) == before


def failed(
    folder: Path,
    action: Action,
    fault: Fault,
    words: str,
    measured: Measured,
    *,
    kinds: set[str] | None = None,
    times: int | None = 1,
) -> None:
    found: Counter[str] = Counter()
    for run, faults in tried(action, folder, fault, kinds=kinds, times=times):
        told = ended(action, run, faults)
        outcome = action.outcome(run)
        if faults.hits:
            assert told != "done" or outcome == "as after" or len(set(map(str, action.states))) == 1
            found[f"{outcome}, {told}"] += 1
    assert found
    measured("walks", action=action.words, fault=words, tried=found.total(), outcomes=dict(found))


def ended(action: Action, run: Path, faults: Faults) -> str:
    """Do the action in this process and say how it ended; an error that is not named ends the test."""
    try:
        acted(action, run, faults)
    except AnyrigError as error:
        return error.code
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    return "done"
