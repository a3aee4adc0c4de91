"""What the crash tests measure is kept for docs/reliability.md when the whole of every matrix is run."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

COLLECTED = Path(__file__).parents[2] / "build" / "reliability"

Measured = Callable[..., None]


@pytest.fixture
def measured(request: pytest.FixtureRequest, full: bool) -> Measured:
    """Keep one row of a table of the page; with --full only. `measured(table, **row)`."""

    def keep(table: str, **row: Any) -> None:
        if full:
            COLLECTED.mkdir(parents=True, exist_ok=True)
            name = re.sub(r"[^\w.-]+", "-", f"{table}-{request.node.name}-{'-'.join(map(str, row.values()))}")[:200]
            (COLLECTED / f"{name}.json").write_text(json.dumps({"table": table, **row}), encoding="utf-8")

    return keep


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the system has one: what was written outlives a kill there, too, and nothing waits."""
    memory = "/dev/shm"
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder)
