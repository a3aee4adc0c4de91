"""Numbers, sizes, ages and tables as text for people; readable without colour and in a pipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anyrig.positions import describe_position

_LISTED = 16


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[str] = frozenset()) -> str:
    """Return aligned columns, two spaces apart; the columns named in `right` are aligned to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(line, widths, header, strict=True)
        ).rstrip()
        for line in lines
    )


def facts(pairs: Sequence[tuple[str, str]], indent: str = "") -> str:
    """Return aligned "label  text" lines."""
    width = max((len(label) for label, _ in pairs), default=0)
    return "\n".join(f"{indent}{label:<{width}}  {text}".rstrip() for label, text in pairs)


def number(value: float | None) -> str:
    """Return a number of any size in few digits, a count whole, and "-" for None."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


def shape(sizes: Sequence[int]) -> str:
    """Return "3 x 3 x 16", or "scalar"."""
    return " x ".join(map(str, sizes)) or "scalar"


def position(progress: Mapping[str, Any]) -> str:
    """Return "in epoch 3 of 5, batch 64" of a checkpoint's progress; "" where it tells no position."""
    at = progress.get("position") or {}
    epoch, batch = at.get("epoch"), at.get("batch")
    if not isinstance(epoch, int) or not isinstance(batch, int):
        return ""
    return describe_position(epoch, batch, progress.get("epochs"))


def step(number: int, progress: Mapping[str, Any]) -> str:
    """Return "1,200, in epoch 3 of 5, batch 64"."""
    where = position(progress)
    return f"{number:,}, {where}" if where else f"{number:,}"


def listed(names: Sequence[str]) -> str:
    """Return "a, b, c and 4 more" for many names."""
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")
