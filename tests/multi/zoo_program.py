"""Runs the programs of the table of cases in child processes, for the tests and for the documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyrig.testing.processes import run_python

FOLDER = Path(__file__).parent
DEVICES = (1, 2, 4)
VIRTUAL_REPLICAS = (4, 6)
HOUR = 3600.0


def runs_on(devices: int, runs: Sequence[str]) -> dict[str, Any]:
    """Return what each run ("case:V") ends with on so many devices: hashes and history, or the error."""
    found: dict[str, Any] = run_python(FOLDER / "zoo_run.py", devices, *runs, timeout=HOUR).json()
    return found


def keras_differences(names: Sequence[str]) -> dict[str, Any]:
    """Return how far each case is from Keras's own fit, or the error."""
    found: dict[str, Any] = run_python(FOLDER / "zoo_keras.py", *names, timeout=HOUR).json()
    return found


def applications_on(family: str, devices: Sequence[int] = (1, 2)) -> dict[str, Any]:
    """Return what a family of keras.applications ends with on each number of devices, or the error."""
    found = {}
    for count in devices:
        finished = run_python(FOLDER / "applications.py", count, family, timeout=HOUR, expect=None)
        found[str(count)] = finished.json() if finished.returncode == 0 else {"error": finished.stderr[-2000:]}
    return found


def differing(outcomes: Sequence[dict[str, Any]]) -> list[str]:
    """Return the tensors whose bytes are not the same in all outcomes of one run, and "history" if that differs."""
    first, *others = outcomes
    names = {name for outcome in outcomes for name in outcome["tensors"]}
    found = sorted(n for n in names if any(o["tensors"].get(n) != first["tensors"].get(n) for o in others))
    return found + ["history"] * any(outcome["history"] != first["history"] for outcome in others)
