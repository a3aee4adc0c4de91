"""A run does not end because nobody reads what it prints, and its log stays JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from anyrig.events import Events, JsonLines


def test_what_is_printed_into_a_closed_pipe_does_not_end_the_process() -> None:
    code = "from anyrig.report.say import say; import sys; [say('x' * 1000) for _ in range(500)]; sys.exit(7)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == ""
    child.stderr.close()
    assert child.wait(60) == 7


def test_numbers_that_are_not_finite_are_text_in_the_log(tmp_path: Path) -> None:
    def refuse(constant: str) -> None:
        pytest.fail(constant)

    with JsonLines(tmp_path / "events.jsonl") as sink:
        Events(sink).emit("epoch", metrics={"loss": float("nan"), "all": [1.0, float("-inf")]})
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=refuse)["metrics"] == {"loss": "nan", "all": [1.0, "-inf"]}
