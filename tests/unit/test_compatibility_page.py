"""docs/compatibility.md is what was measured, and what is measured quickly is still so."""

from __future__ import annotations

import json
from pathlib import Path

from tests.corpus.compatibility import EQUAL, MEASURED, PAGE, cases, page, readings

STORED = json.loads(MEASURED.read_text(encoding="utf-8"))


def test_the_page_is_what_was_measured() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(STORED), "type: python tests/corpus/compatibility.py page"


def test_every_file_is_still_read_whole_and_what_is_checked_is_still_said(tmp_path: Path) -> None:
    found = readings(cases(tmp_path))
    assert found == {kind: {key: row[key] for key in ("files", "sound", "checked")} for kind, row in STORED.items()}
    assert all(row["sound"] == row["files"] for row in found.values())


def test_the_page_has_no_output_that_differs() -> None:
    outputs = [value for row in STORED.values() for value in row.get("outputs", [])]
    assert len(outputs) > 100
    assert max(outputs) < EQUAL
