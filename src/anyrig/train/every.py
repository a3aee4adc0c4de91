"""How often something happens: "100 steps", "1 epoch", "10 minutes", "auto"."""

from __future__ import annotations

import re
from dataclasses import dataclass

WORDS = '"n steps", "n epochs", "n minutes" or "auto", e.g. "1 epoch"'
_PATTERN = re.compile(r"(?:(\d+) +)?(step|epoch|minute)s?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """Every `count` steps, epochs or minutes; unit "auto": as often as its cost allows."""

    count: int
    unit: str

    def __str__(self) -> str:
        return self.unit if self.unit == "auto" else f"{self.count:,} {self.unit}{'s' if self.count > 1 else ''}"


def parse_every(text: object) -> Every:
    """Return the interval that `text` means ("epoch" alone means one); raise ValueError for anything else."""
    words = text.strip().lower() if isinstance(text, str) else ""
    if words == "auto":
        return Every(count=1, unit="auto")
    match = _PATTERN.fullmatch(words)
    count = int(match[1] or 1) if match else 0
    if not match or count < 1:
        raise ValueError(f"expected {WORDS}, found {text!r}")
    return Every(count=count, unit=match[2])
