"""Events and the description of the environment."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path

import numpy as np
import pytest

from anyrig import environment as module
from anyrig.environment import environment
from anyrig.events import Event, Events, JsonLines, read_events


def test_every_sink_receives_every_event() -> None:
    first: list[Event] = []
    second: list[Event] = []
    events = Events(first.append, attempt=3, clock=lambda: 12.34567)
    events.emit("start", rows=5)
    events.add(second.append)
    events.emit("save", step=1)
    assert first == [
        {"time": 12.346, "attempt": 3, "kind": "start", "rows": 5},
        {"time": 12.346, "attempt": 3, "kind": "save", "step": 1},
    ]
    assert second == first[1:]


def test_lines_are_appended_and_flushed_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for attempt in (1, 2):
        with JsonLines(path) as sink:
            Events(sink, attempt=attempt).emit("epoch", loss=np.float32(0.5), rows=np.arange(2), where=Path("a"))
            assert len(path.read_text().splitlines()) == attempt
    assert [event["attempt"] for event in read_events(path)] == [1, 2]
    assert read_events(path)[0]["loss"] == 0.5
    assert read_events(path)[0]["rows"] == [0, 1]
    assert read_events(path)[0]["where"] == "a"


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"attempt": 1}\n{"attem')
    assert read_events(path) == [{"attempt": 1}]


def test_the_environment_is_json_and_names_no_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    found = environment()
    text = json.dumps(found)
    assert found["anyrig"] == "0.1.0"
    assert str(found["tensorflow"]).startswith("2.")
    assert found["variables"] == {**found["variables"], "TF_ENABLE_ONEDNN_OPTS": "0"}  # type: ignore[dict-item]
    assert socket.gethostname() not in text
    assert str(Path.home()) not in text
    assert f'"{getpass.getuser()}"' not in text


def test_what_is_not_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_cpuinfo", dict)
    assert module.version("no-such-package") is None
    assert module.cpu_flags() == ()
