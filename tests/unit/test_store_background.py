"""Saves beside the caller's work: one at a time, never silent, waited for at exit, and memory given back on the way."""

from __future__ import annotations

import os
import signal
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyrig.store.background import Background
from anyrig.store.commit import committed_steps
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import drained, write_checkpoint
from anyrig.testing.processes import run_python


def test_a_result_is_given_once_and_only_when_it_is_there() -> None:
    background, go = Background[int](), threading.Event()
    assert background.wait() is None
    background.start(lambda: int(go.wait()))
    assert (background.in_flight, background.finished()) == (True, None)
    go.set()
    assert background.wait() == 1
    assert (background.in_flight, background.finished(), background.wait()) == (False, None, None)


def test_what_was_started_before_is_waited_for_and_the_wait_is_measured() -> None:
    background, running, most = Background[None](), [0], [0]

    def work() -> None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        time.sleep(0.05)
        running[0] -= 1

    waits = [background.start(work) for _ in range(4)]
    background.wait()
    assert most == [1]
    assert waits[0] < 0.04 < min(waits[1:])


@pytest.mark.parametrize("ask", ["start", "finished", "wait"])
def test_an_error_is_raised_once_where_it_is_asked_for(ask: str) -> None:
    background, done = Background[None](), []

    def fail() -> None:
        raise OSError("the disk")

    background.start(fail)
    while background.in_flight:
        time.sleep(0.001)
    with pytest.raises(OSError, match="the disk") as raised:
        background.start(lambda: done.append(1)) if ask == "start" else getattr(background, ask)()
    assert [entry.name for entry in raised.traceback][-1] == "fail"
    assert background.wait() is None
    assert done == []


def test_a_fork_does_not_wait_for_what_its_parent_writes() -> None:
    background, go = Background[int](), threading.Event()
    background.start(lambda: int(go.wait()))
    child = os.fork()
    if child == 0:
        os._exit(0 if (background.in_flight, background.wait()) == (False, None) else 1)
    _, status = os.waitpid(child, 0)
    go.set()
    assert (status, background.wait()) == (0, 1)


def test_work_that_cannot_be_started_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    background = Background[int]()
    monkeypatch.setattr(threading.Thread, "start", full)
    with pytest.raises(RuntimeError, match="can't start"):
        background.start(lambda: 1)
    assert (background.in_flight, background.wait()) == (False, None)


def test_to_be_interrupted_while_waiting_leaves_the_work_in_flight() -> None:
    background, go, closed = Background[int](), threading.Event(), threading.Event()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        background.start(lambda: int(go.wait()))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            background.wait()
        background.when_done(closed.set)
        assert (background.in_flight, closed.is_set()) == (True, False)
        go.set()
        assert closed.wait(10)
        assert background.wait() == 1
    finally:
        signal.signal(signal.SIGALRM, before)


EXIT = """
import sys, time
from functools import partial
from pathlib import Path
import numpy as np
from anyrig.store.background import shared
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint

def work(root):
    time.sleep(0.3)
    return write_checkpoint(root, 1, [StoredTensor(name="model/a", array=np.zeros(3))], progress={})

shared().start(partial(work, Path(sys.argv[1])))
sys.exit(0)
"""


def test_exit_waits_and_an_error_that_nobody_asked_for_is_shown_and_is_a_failure(tmp_path: Path) -> None:
    run_python(EXIT, str(tmp_path / "good"))
    assert committed_steps(tmp_path / "good") == [1]
    (tmp_path / "file").write_text("in the way")
    ended = run_python(EXIT.replace("sys.exit", 'print("all"); sys.exit'), str(tmp_path / "file"), expect=1)
    assert "ANY-STORE-007" in ended.stderr
    assert ended.stdout == "all\n"


def test_each_tensor_is_let_go_of_as_soon_as_it_is_written(tmp_path: Path) -> None:
    tensors = [StoredTensor(name=f"model/{i}", array=np.full(64, i, np.float32)) for i in range(5)]
    alive = {tensor.name: weakref.ref(tensor.array) for tensor in tensors}
    left: list[list[str]] = []

    def check(name: str, array: np.ndarray[Any, Any]) -> None:
        left.append([other for other, reference in alive.items() if reference() is not None])

    made = write_checkpoint(tmp_path, 1, drained(tensors), progress={}, check=check)
    assert left == [[f"model/{i}" for i in range(first, 5)] for first in range(5)]
    assert tensors == []
    assert [float(made.tensor(name)[0]) for name in made.names] == [0, 1, 2, 3, 4]


def test_a_list_that_is_not_drained_stays_as_it_is(tmp_path: Path) -> None:
    tensors = [StoredTensor(name="model/a", array=np.zeros(3)), StoredTensor(name="model/b", array=np.ones(2))]
    given = list(tensors)
    write_checkpoint(tmp_path, 1, tensors, progress={})
    assert tensors == given


def test_what_a_check_raises_ends_the_save_without_a_trace(tmp_path: Path) -> None:
    def check(name: str, array: np.ndarray[Any, Any]) -> None:
        if name == "model/b":
            raise ValueError(name)

    tensors = [StoredTensor(name=f"model/{name}", array=np.zeros(3)) for name in "abc"]
    with pytest.raises(ValueError, match="model/b"):
        write_checkpoint(tmp_path, 1, tensors, progress={}, check=check)
    assert list(tmp_path.iterdir()) == []
