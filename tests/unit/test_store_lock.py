"""One writer per run directory, whoever dies and whoever comes at the same time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from anyrig.errors import AnyrigError
from anyrig.store.lock import LOCK, RunLock

HOLD = """
import sys, time
from anyrig.store.lock import RunLock
with RunLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def start(program: str, run: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program, str(run)], stdout=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def test_the_lock_is_there_while_held_and_gone_after(tmp_path: Path) -> None:
    with RunLock(tmp_path) as lock:
        lock.check()
        assert os.listdir(tmp_path) == [LOCK]
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
    assert os.listdir(tmp_path) == []
    with RunLock(tmp_path):
        pass


def test_an_exception_gives_it_back(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), RunLock(tmp_path):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


def test_B115_a_second_writer_is_told_who_is_first(tmp_path: Path) -> None:
    process = start(HOLD, tmp_path)
    with process:
        assert first_line(process) == "held\n"
        with pytest.raises(AnyrigError, match=f"in use: process {process.pid} on {os.uname().nodename}") as caught:
            RunLock(tmp_path).__enter__()
        assert caught.value.code == "ANY-LOCK-001"
        process.kill()
    assert os.listdir(tmp_path) == [LOCK]
    with RunLock(tmp_path) as lock:
        lock.check()


def test_the_same_process_cannot_take_it_twice(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(AnyrigError, match="is in use"):
        RunLock(tmp_path).__enter__()
    assert os.listdir(tmp_path) == []


def test_a_zombie_does_not_hold_it(tmp_path: Path) -> None:
    process = start(HOLD, tmp_path)
    first_line(process)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with RunLock(tmp_path):
        pass
    with process:
        pass


def left(run: Path, **changed: Any) -> None:
    """Leave the lock of another owner: this process's with `changed` fields."""
    with RunLock(run):
        content = (run / LOCK).read_text()
    (run / LOCK).write_text(json.dumps(json.loads(content) | {"token": "other"} | changed))


def test_a_process_id_that_was_used_again_does_not_hold_it(tmp_path: Path) -> None:
    left(tmp_path)
    with pytest.raises(AnyrigError, match="is in use"):
        RunLock(tmp_path).__enter__()
    left_started = json.loads((tmp_path / LOCK).read_text())["started"]
    (tmp_path / LOCK).unlink()
    left(tmp_path, started=str(int(left_started) - 1))
    with RunLock(tmp_path):
        pass


@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_on_another_machine_the_heartbeat_decides(tmp_path: Path, content: str | None) -> None:
    left(tmp_path, machine="elsewhere", host="far")
    if content is not None:
        (tmp_path / LOCK).write_text(content)
    now = time.time()
    os.utime(tmp_path / LOCK, (now - 290, now - 290))
    with pytest.raises(AnyrigError, match=r"last sign of life 29\d s ago"):
        RunLock(tmp_path, stale_after=300).__enter__()
    assert os.listdir(tmp_path) == [LOCK]
    os.utime(tmp_path / LOCK, (now + 500, now + 500))
    with pytest.raises(AnyrigError, match=r"last sign of life dated (500|499) s in the future, by another clock"):
        RunLock(tmp_path, stale_after=300).__enter__()
    os.utime(tmp_path / LOCK, (now - 310, now - 310))
    with RunLock(tmp_path, stale_after=300) as lock:
        lock.check()


def test_the_heart_beats(tmp_path: Path) -> None:
    with RunLock(tmp_path, beat_every=0.02):
        os.utime(tmp_path / LOCK, (0, 0))
        for _ in range(200):
            time.sleep(0.02)
            if (tmp_path / LOCK).stat().st_mtime > 0:
                break
        assert (tmp_path / LOCK).stat().st_mtime > time.time() - 60


@pytest.mark.parametrize("gone", [False, True])
def test_a_lost_lock_is_noticed_and_the_new_owners_is_left_alone(tmp_path: Path, gone: bool) -> None:
    with RunLock(tmp_path, beat_every=0.01) as lock:
        if gone:
            (tmp_path / LOCK).unlink()
        else:
            (tmp_path / LOCK).write_text(json.dumps({"token": "other", "pid": 1, "host": "far"}))
            os.utime(tmp_path / LOCK, (0, 0))
        with pytest.raises(AnyrigError, match="no longer held by this process") as caught:
            lock.check()
        time.sleep(0.05)
    assert caught.value.code == "ANY-LOCK-002"
    assert os.listdir(tmp_path) == ([] if gone else [LOCK])
    assert gone or (tmp_path / LOCK).stat().st_mtime == 0


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AnyrigError, match="cannot be made") as caught:
        RunLock(tmp_path / "none").__enter__()
    assert caught.value.code == "ANY-LOCK-003"


RACE = """
import os, sys, time
from anyrig.errors import AnyrigError
from anyrig.store.lock import RunLock
print("ready", flush=True)
while not os.path.exists(sys.argv[1] + ".go"):
    time.sleep(0.0005)
try:
    lock = RunLock(sys.argv[1]).__enter__()
except AnyrigError as error:
    print(error.code, flush=True)
else:
    print("won", flush=True)
    sys.stdin.read()
    lock.check()
    lock.__exit__(None, None, None)
"""


@pytest.mark.parametrize("stale", [False, True])
def test_of_many_takers_at_once_one_wins(tmp_path: Path, stale: bool) -> None:
    run = tmp_path / "run"
    run.mkdir()
    if stale:
        left(run, started="0")
    takers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(run)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    assert {first_line(taker) for taker in takers} == {"ready\n"}
    (tmp_path / "run.go").touch()
    assert sorted(first_line(taker) for taker in takers) == ["ANY-LOCK-001\n"] * 5 + ["won\n"]
    for taker in takers:
        taker.communicate()
        assert taker.returncode == 0
    assert os.listdir(run) == []


def test_a_forked_child_leaves_its_parents_lock_alone(tmp_path: Path) -> None:
    with RunLock(tmp_path) as lock:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of the heartbeat's thread
            child = os.fork()
        if child == 0:
            try:
                lock.__exit__(None, None, None)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        lock.check()
