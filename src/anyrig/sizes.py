"""Sizes as people write them: "20 GB", "512 MiB", or a number of bytes."""

from __future__ import annotations

import re

SIZE_WORDS = '"20 GB", "512 MiB" or a number of bytes'
_PATTERN = re.compile(r"(\d+(?:\.\d+)?) *(?:([kmgt])(i?))?b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: int) -> str:
    """Return "512 B", "1.5 KiB", "10.0 GiB"."""
    number, unit = float(count), 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{number:.1f} {_UNITS[unit]}"


def parse_size(text: object) -> int:
    """Return bytes (1 GB is 1000^3, 1 GiB 1024^3); raise ValueError for what is no size above zero."""
    match = (
        _PATTERN.fullmatch(str(text).strip()) if isinstance(text, int | str) and not isinstance(text, bool) else None
    )
    found = int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[(match[2] or "").lower()]) if match else 0
    if found < 1:
        raise ValueError(f"expected {SIZE_WORDS}, found {text!r}")
    return found
