"""Runs the programs of the table of cases in child processes, for the tests and for the documents.

A program appends each outcome to a file as one line of JSON as soon as it has it: what a child that dies or takes too
long has done is kept, and the next call goes on with what is missing.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from anyrig.testing.processes import run_python
from anyrig.testing.same_run import same_runs
from anyrig.train.parity.report import Report
from tests.multi.zoo_table import run_case

FOLDER = Path(__file__).parent
DEVICES = (1, 2, 4)
VIRTUAL_REPLICAS = (4, 6)
FAMILY_DEVICES = (1, 2)
HOUR = 3600.0
AT_ONCE = 40  # runs that share one process for each device count
FAMILY_SECONDS = 300.0

Outcomes = dict[str, Any]


def all_runs(names: Iterable[str]) -> list[str]:
    """Return the runs ("case:V") of these cases."""
    return [f"{name}:{v}" for name in names for v in VIRTUAL_REPLICAS]


def same_runs_of(
    folder: Path, runs: Sequence[str], devices: Sequence[int] = DEVICES, timeout: float = 6 * HOUR
) -> Outcomes:
    """Return what `anyrig.testing.same_runs` finds of each run ("case:V"), as `shown` has it."""
    file, until = folder / "same-runs.jsonl", time.monotonic() + timeout
    missing = [run for run in runs if run not in stored_in(file)]
    for some in (missing[start : start + AT_ONCE] for start in range(0, len(missing), AT_ONCE)):
        if time.monotonic() > until:
            break
        found = same_runs({run: run_case(run) for run in some}, devices, timeout=HOUR)
        with file.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps([run, shown(report)]) + "\n" for run, report in found.items())
    return stored_in(file)


def shown(report: Report) -> Outcomes:
    """Return the device counts, and how many tensors were compared and which differ, or why it was not trained."""
    devices = list(report.devices)
    if report.problems:
        errors = sorted({_code(text) for _, text in report.problems})
        return {"devices": devices, "errors": errors, "refused": report.refused is not None}
    return {"devices": devices, "tensors": len(report.tensors), "different": [t.name for t in report.differing]}


def keras_differences(folder: Path, names: Sequence[str], timeout: float = 6 * HOUR) -> Outcomes:
    """Return how far each case is from Keras's own fit, or the error."""
    return outcomes("zoo_keras.py", folder / "keras.jsonl", wanted=names, timeout=timeout)


def application_on(folder: Path, devices: int, family: str, timeout: float = FAMILY_SECONDS) -> Any:
    """Return what a family of keras.applications ends with on so many devices; None if not within the time."""
    file = folder / f"{family}-{devices}.jsonl"
    return outcomes("applications.py", file, devices, wanted=[family], timeout=timeout).get(family)


def outcomes(program: str, file: Path, *arguments: object, wanted: Sequence[str], timeout: float) -> Outcomes:
    """Return the outcomes in the file, by name, after the program had so many seconds for the wanted ones not in it."""
    missing = [name for name in wanted if name not in stored_in(file)]
    if missing and timeout > 0:
        try:
            run_python(FOLDER / program, file, *arguments, *missing, timeout=timeout)
        except AssertionError as error:
            print(error)
    return stored_in(file)


def stored_in(file: Path) -> Outcomes:
    """Return the outcomes in a file, by name."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return dict(json.loads(line) for line in lines)


def _code(problem: str) -> str:
    """Return the code of a named error, else the first line of the text."""
    named = re.search(r"\[(ANY-[A-Z]+-\d+)\]", problem)
    return named[1] if named else problem.partition("\n")[0]
