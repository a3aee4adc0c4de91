"""How often something happens: "100 steps", "1 epoch"."""

from __future__ import annotations

import re
from dataclasses import dataclass

WORDS = '"n steps" or "n epochs", e.g. "1 epoch"'
_PATTERN = re.compile(r"(?:(\d+) +)?(step|epoch)s?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """Every `count` steps or epochs."""

    count: int
    unit: str


def parse_every(text: object) -> Every:
    """Return the interval that `text` means ("epoch" alone means one); raise ValueError for anything else."""
    match = _PATTERN.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    count = int(match[1] or 1) if match else 0
    if not match or count < 1:
        raise ValueError(f"expected {WORDS}, found {text!r}")
    return Every(count=count, unit=match[2])
