"""Measure the tables of cases and of `keras.applications`, and write them into docs/; driven by `make tables`.

    python tests/multi/zoo_tables.py [same-numbers] [keras-parity] [applications] [go-on] [minutes=N]

The pages are written from docs/measured/*.json and nothing else, which a test checks; with no table named, all are
measured. Outcomes are collected in build/tables: `go-on` keeps those of the last time (of the same code)
and adds what is missing, `minutes` limits each measurement (0: nothing is run, the pages are written). What was
not run stands in the pages as such.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from anyrig.environment import environment  # noqa: E402
from anyrig.topology.numeric import numeric_settings  # noqa: E402
from tests.multi.applications import FAMILIES  # noqa: E402
from tests.multi.zoo_pages import PAGES  # noqa: E402
from tests.multi.zoo_program import (  # noqa: E402
    FAMILY_DEVICES,
    FAMILY_SECONDS,
    all_runs,
    application_on,
    keras_differences,
    same_runs_of,
)
from tests.multi.zoo_table import CASES, COMPARABLE  # noqa: E402

DOCS = ROOT / "docs"
MEASURED = DOCS / "measured"
COLLECTED = ROOT / "build" / "tables"


def titles() -> dict[str, list[str]]:
    """Return kind and title of every case, by name."""
    return {name: [entry.kind, entry.title] for name, entry in CASES.items()}


def same_numbers(seconds: float) -> Any:
    """Train every case with every V on every number of devices."""
    runs = all_runs(CASES)
    found = same_runs_of(COLLECTED, runs, timeout=seconds)
    return {"cases": titles(), "runs": {run: found.get(run, {"devices": []}) for run in runs}}


def keras_parity(seconds: float) -> Any:
    """Hold every case against Keras's fit."""
    found = keras_differences(COLLECTED, COMPARABLE, seconds)
    comparable = {name: title for name, title in titles().items() if name in COMPARABLE}
    return {"cases": comparable, "differences": {name: found[name] for name in COMPARABLE if name in found}}


def applications(seconds: float) -> Any:
    """Train every family of keras.applications on one and on two devices, one process at a time."""
    limit = min(seconds, FAMILY_SECONDS)
    return {
        "families": {
            family: {str(devices): application_on(COLLECTED, devices, family, limit) for devices in FAMILY_DEVICES}
            for family in FAMILIES
        }
    }


MEASUREMENTS: Mapping[str, Callable[[float], Any]] = {
    "same-numbers": same_numbers,
    "keras-parity": keras_parity,
    "applications": applications,
}


def stored() -> dict[str, Any]:
    """Return what was measured last, by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(MEASURED.glob("*.json"))}


def main(arguments: list[str]) -> None:
    """Measure what is wanted and write the pages."""
    minutes = [float(word.removeprefix("minutes=")) for word in arguments if word.startswith("minutes=")]
    if "go-on" not in arguments and minutes != [0]:
        shutil.rmtree(COLLECTED, ignore_errors=True)
    for folder in (MEASURED, COLLECTED):
        folder.mkdir(parents=True, exist_ok=True)
    wanted = [] if minutes == [0] else [name for name in MEASUREMENTS if name in arguments] or list(MEASUREMENTS)
    for name in wanted:
        found = MEASUREMENTS[name](60 * minutes[0] if minutes else 6 * 3600)
        made = {"made_on": {**environment(), **numeric_settings()}, **found}
        (MEASURED / f"{name}.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    for page, write in PAGES.items():
        (DOCS / page).write_text(write(stored()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
