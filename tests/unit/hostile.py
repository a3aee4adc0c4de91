"""What every refusal of a hostile file must be: an error with a code, at once, with little memory."""

from __future__ import annotations

import re
import time
import tracemalloc
from pathlib import Path

import pytest

from anyrig.errors import AnyrigError
from anyrig.formats.contents import Budget
from anyrig.formats.sniff import read_any

PEAK_BYTES = 60e6
SECONDS = 20.0  # far more than any refusal takes here, and far less than what the files ask for


def read_whole(path: Path, budget: Budget = Budget()) -> None:  # noqa: B008  (it is immutable)
    """Open what is at a path, and read all that it offers."""
    contents = read_any(path, budget)
    for tensor in contents.tensors:
        for _ in tensor.read():
            pass
    for read in contents.assets.values():
        read()


def refused(path: Path, code: str, says: str = "", budget: Budget = Budget()) -> AnyrigError:  # noqa: B008
    """Assert that a file is refused by this error, within bounds of time and memory; return the error."""
    started = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises(AnyrigError) as caught:
            read_whole(path, budget)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code == f"ANY-FORMAT-{code}" or caught.value.code == code, caught.value
    assert re.search(says, caught.value.message), caught.value.message
    assert peak < PEAK_BYTES
    assert time.monotonic() - started < SECONDS
    return caught.value
