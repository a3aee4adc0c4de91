"""Runs cases in child processes, one for each device count, and reads what they wrote.

All cases of a device count share one process, because starting TensorFlow takes longer than a few steps of a small
model. Nothing is left running; what is written lies in the folder that the caller gives and removes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyrig.errors import UsageError
from anyrig.processes import Finished, start_python, wait_for

_AT_ONCE = 2  # processes
_INSIDE = "ANYRIG_PARITY_CHILD"
_PROGRAM = """
import json, sys
job = json.load(open(sys.argv[1], encoding="utf-8"))
sys.path[:] = job["path"]
from anyrig.train.parity.child import main
main(job)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one case did on one device count: the hashes of the state after each step, or the `problem`."""

    states: Sequence[Mapping[str, str]] = ()
    problem: str | None = None
    code: str | None = None
    promised: bool = True
    arrays: str | None = None  # the .npz file with the values that were asked for
    facts: Mapping[str, Any] = field(default_factory=dict)


Outcomes = dict[int, dict[str, Outcome]]  # by device count, then by the name of the case


def run_children(cases: Sequence[Mapping[str, Any]], devices: Sequence[int], folder: Path, timeout: float) -> Outcomes:
    """Return how each case (as JSON values) went on each device count; `timeout` is in seconds, for each process."""
    if os.environ.get(_INSIDE):
        raise UsageError(
            "ANY-PARITY-003",
            "the file that defines the model compares device counts itself when it is imported, without end",
            hint='put that call under: if __name__ == "__main__":',
        )
    folder.mkdir()
    found: Outcomes = {}
    for first in range(0, len(devices), _AT_ONCE):
        with ExitStack() as stack:
            started = {
                count: stack.enter_context(
                    start_python(_PROGRAM, _job(cases, count, folder), env=_settings(), cwd=os.getcwd())
                )
                for count in devices[first : first + _AT_ONCE]
            }
            for count, child in started.items():
                found[count] = _outcomes(cases, folder / f"{count}.jsonl", _end(child, timeout))
    return {count: found[count] for count in devices}


def _job(cases: Sequence[Mapping[str, Any]], devices: int, folder: Path) -> Path:
    results = folder / f"{devices}.jsonl"
    results.touch()
    job = {
        "devices": devices,
        "cases": list(cases),
        "folder": str(folder),
        "results": str(results),
        "path": [os.path.abspath(entry) for entry in sys.path],
    }
    path = folder / f"{devices}.job.json"
    path.write_text(json.dumps(job), encoding="utf-8")
    return path


def _settings() -> dict[str, str]:
    """Return the user's settings of TensorFlow and Keras, which training would have too."""
    given = {name: value for name, value in os.environ.items() if name.startswith(("TF_", "KERAS_"))}
    return {**given, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore", _INSIDE: "1"}


def _end(child: Any, timeout: float) -> str:
    """Return how the process ended, in words for the cases that it did not finish."""
    try:
        finished = wait_for(child, timeout)
    except TimeoutError as error:
        return f"the process was {error}"
    return _last_words(finished)


def _last_words(finished: Finished) -> str:
    lines = finished.stderr.strip().splitlines()
    return f"the process ended with exit code {finished.returncode}: {lines[-1] if lines else 'it said nothing'}"


def _outcomes(cases: Sequence[Mapping[str, Any]], results: Path, end: str) -> dict[str, Outcome]:
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    done = {line.pop("name"): Outcome(**line) for line in lines}
    missing = [case["name"] for case in cases if case["name"] not in done]
    for index, name in enumerate(missing):
        done[name] = Outcome(problem=end if index == 0 else f"not run: in {missing[0]}, {end.partition(chr(10))[0]}")
    return done
