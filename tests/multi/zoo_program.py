"""Runs the programs of the table of cases in child processes, for the tests and for the documents.

A program appends each outcome to a file as one line of JSON as soon as it has it: what a child that dies or takes too
long has done is kept, and the next call goes on with what is missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from anyrig.testing.processes import run_python

FOLDER = Path(__file__).parent
DEVICES = (1, 2, 4)
VIRTUAL_REPLICAS = (4, 6)
FAMILY_DEVICES = (1, 2)
HOUR = 3600.0
FAMILY_SECONDS = 300.0

Outcomes = dict[str, Any]


def all_runs(names: Iterable[str]) -> list[str]:
    """Return the runs ("case:V") of these cases."""
    return [f"{name}:{v}" for name in names for v in VIRTUAL_REPLICAS]


def runs_on(folder: Path, devices: int, runs: Sequence[str], timeout: float = 6 * HOUR) -> Outcomes:
    """Return what each run ("case:V") ends with on so many devices: hashes and history, or the error."""
    return outcomes("zoo_run.py", folder / f"runs-{devices}.jsonl", devices, wanted=runs, timeout=timeout)


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


def differing(found: Sequence[Outcomes]) -> list[str]:
    """Return the tensors whose bytes are not the same in all outcomes of one run, and "history" if that differs."""
    first, *others = found
    names = {name for outcome in found for name in outcome["tensors"]}
    tensors = sorted(n for n in names if any(o["tensors"].get(n) != first["tensors"].get(n) for o in others))
    return tensors + ["history"] * any(outcome["history"] != first["history"] for outcome in others)
