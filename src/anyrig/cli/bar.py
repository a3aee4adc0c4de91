"""A progress bar for commands that read many bytes: on a terminal only, and only when it takes a while."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from anyrig.store.check import Advance

_WORTH_WATCHING = 256 * 2**20  # bytes; less is read before a bar could be drawn


@contextmanager
def reading(total: int) -> Iterator[Advance]:
    """Show how many of `total` bytes are read, on stderr; it is gone when they are."""
    if total < _WORTH_WATCHING or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns = ("reading", BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=total)
        yield lambda count: shown.advance(task, count)
