"""Every code that the source raises is explained in docs/errors.md, and nothing else is; its exit code too."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from anyrig import errors
from anyrig.store.parse import ManifestError
from anyrig.store.read import Replaced
from anyrig.store.remote.lease import InUse
from anyrig.store.remote.objects import Unreachable
from anyrig.store.remote.transfer import Damaged

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


CLASSES = {**vars(errors), **{kind.__name__: kind for kind in (ManifestError, Unreachable, InUse, Damaged, Replaced)}}
EITHER = {"ANY-LOAD-001", "ANY-LOAD-002"}  # the page says when which


def _raised_with() -> Iterator[tuple[str, int]]:
    """Yield each code with the exit code of the class that is made with it."""
    for path in (ROOT / "src" / "anyrig").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                code, name = node.args[0].value, ast.unparse(node.func)
                if isinstance(code, str) and CODE.fullmatch(code) and name in CLASSES:
                    yield code, CLASSES[name].exit_code


def _documented() -> dict[str, int]:
    """Return the exit codes in the page's table; those that it does not list are 2."""
    rows = re.findall(r"^\| (\d+) \| .+? \| (.+?) \|$", (ROOT / "docs" / "errors.md").read_text("utf-8"), re.MULTILINE)
    found = dict.fromkeys(_entries(), errors.EXIT_USAGE)
    for code, cell in rows:
        for area, numbers in re.findall(r"([A-Z]+)-(\d{3}(?:, \d{3})*)", cell):
            found.update({f"ANY-{area}-{number}": int(code) for number in numbers.split(", ")})
    return found


def test_every_code_has_its_exit_code() -> None:
    raised = {(code, exit_code) for code, exit_code in _raised_with() if code not in EITHER}
    assert {code for code, _ in raised} == _raised() - EITHER
    assert sorted(raised - set(_documented().items())) == []


def test_the_exceptions_are_exceptions() -> None:
    assert {
        code for code in EITHER if len({number for found, number in _raised_with() if found == code}) == 2
    } == EITHER
