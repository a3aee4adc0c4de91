"""docs/reliability.md is what was measured, and what was measured holds the promises."""

from __future__ import annotations

import json

from tests.crash.actions import ACTIONS
from tests.crash.reliability import MEASURED, PAGE, page

STORED = json.loads(MEASURED.read_text(encoding="utf-8"))


def test_the_page_is_what_was_measured() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(STORED), "type: python tests/crash/reliability.py page"


def test_every_action_was_killed_at_every_call() -> None:
    rows = STORED["tables"]["walks"]
    killed = {row["action"] for row in rows if row["fault"].startswith("kill -9")}
    assert killed >= {action.words for action in ACTIONS.values()}
    assert {words.partition(",")[0] for row in rows for words in row["outcomes"]} == {
        "as before",
        "as after",
        "in between",
    }
    assert all(sum(row["outcomes"].values()) == row["tried"] > 0 for row in rows)


def test_all_damage_was_found_and_no_state_differed() -> None:
    assert all(row["found"] == row["tried"] for row in STORED["tables"]["damage"])
    assert sum(row["tried"] for row in STORED["tables"]["damage"] if row["damage"] == "one flipped bit") >= 2000
    assert all(row["different"] == [] and row["clean"] is True for row in STORED["tables"]["training"])
