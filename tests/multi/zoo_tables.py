"""Measure the tables of cases and of `keras.applications`, and write them into docs/; driven by `make tables`.

    python tests/multi/zoo_tables.py [same-numbers] [keras-parity] [applications] [only-write]

What was measured stands in docs/measured/*.json; the pages are written from nothing else, which a test checks. With no
argument all is measured anew, which takes about an hour on two processors; `only-write` writes the pages alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from anyrig.environment import environment  # noqa: E402
from anyrig.topology.numeric import numeric_settings  # noqa: E402
from tests.multi.applications import FAMILIES  # noqa: E402
from tests.multi.zoo_pages import PAGES  # noqa: E402
from tests.multi.zoo_program import DEVICES, VIRTUAL_REPLICAS, applications_on, differing, keras_differences, runs_on  # noqa: E402
from tests.multi.zoo_table import CASES  # noqa: E402

DOCS = ROOT / "docs"
MEASURED = DOCS / "measured"


def titles() -> dict[str, list[str]]:
    """Return kind and title of every case, by name."""
    return {name: [entry.kind, entry.title] for name, entry in CASES.items()}


def same_numbers() -> Any:
    """Train every case with every V on every number of devices."""
    runs = [f"{name}:{v}" for name in CASES for v in VIRTUAL_REPLICAS]
    with ThreadPoolExecutor(max_workers=2) as pool:
        found = dict(zip(DEVICES, pool.map(lambda devices: runs_on(devices, runs), DEVICES), strict=True))
    return {
        "cases": titles(),
        "runs": {run: {str(devices): found[devices][run] for devices in DEVICES} for run in runs},
    }


def compared(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the outcomes of one run on several device counts show."""
    errors = sorted({str(outcome["error"]) for outcome in outcomes if "error" in outcome})
    if errors:
        return {"errors": errors}
    return {"tensors": len(outcomes[0]["tensors"]), "different": differing(outcomes)}


def keras_parity() -> Any:
    """Hold every case against Keras's fit."""
    return {"cases": titles(), "differences": keras_differences(list(CASES))}


def applications() -> Any:
    """Train every family of keras.applications on one and on two devices, one process at a time."""
    return {"families": {family: applications_on(family) for family in FAMILIES}}


MEASUREMENTS: Mapping[str, Callable[[], Any]] = {
    "same-numbers": same_numbers,
    "keras-parity": keras_parity,
    "applications": applications,
}


def write_pages() -> None:
    """Write the pages from what is stored."""
    for page, write in PAGES.items():
        (DOCS / page).write_text(write(stored()), encoding="utf-8")


def stored() -> dict[str, Any]:
    """Return what was measured last, by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(MEASURED.glob("*.json"))}


def main(wanted: list[str]) -> None:
    """Measure what is wanted and write the pages."""
    MEASURED.mkdir(exist_ok=True)
    for name in wanted or MEASUREMENTS:
        if name != "only-write":
            made = {"made_on": {**environment(), **numeric_settings()}, **MEASUREMENTS[name]()}
            (MEASURED / f"{name}.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    write_pages()


if __name__ == "__main__":
    main(sys.argv[1:])
