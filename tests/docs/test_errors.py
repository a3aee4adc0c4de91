"""Every code that the source raises is explained in docs/errors.md, and nothing else is."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"ANY-[A-Z]+-[0-9]{3}")


def _raised() -> set[str]:
    sources = (ROOT / "src" / "anyrig").rglob("*.py")
    # Codes stand in the source as quoted words; those in docstrings are examples.
    return {code for path in sources for code in re.findall(rf'"({CODE.pattern})"', path.read_text(encoding="utf-8"))}


def _entries() -> list[str]:
    return re.findall(
        rf"^### ({CODE.pattern})$", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"), re.MULTILINE
    )


def test_every_code_has_an_entry() -> None:
    assert sorted(_raised() - set(_entries())) == []


def test_every_entry_has_a_code() -> None:
    assert sorted(set(_entries()) - _raised()) == []


def test_no_code_is_explained_twice() -> None:
    assert [code for code, times in Counter(_entries()).items() if times > 1] == []


def test_every_entry_says_what_to_do() -> None:
    parts = re.split(r"^### ", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert [part.splitlines()[0] for part in parts if "**Do:**" not in part] == []
