"""Printing that nobody has to read: a run does not end because its terminal or the pipe's reader is gone."""

from __future__ import annotations

import os
import sys


def say(text: str, *, end: str = "\n") -> None:
    """Print `text` at once; if stdout is gone, nothing is printed from then on."""
    try:
        print(text, end=end, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it is there until the process ends
