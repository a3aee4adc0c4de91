"""Differences between two JSON values, leaf by leaf. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NOTHING = "(nothing)"


@dataclass(frozen=True, slots=True)
class LeafChange:
    """`where` is a path such as `position.step` or `layers[2].config.units`; `NOTHING` stands for an absent value."""

    where: str
    a: Any
    b: Any


def leaf_changes(a: Any, b: Any, where: str = "") -> Iterator[LeafChange]:
    """Yield the leaves in which `a` and `b` differ; NaN is equal to NaN, and 1 is not 1.0."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            inner = f"{where}.{key}" if where else str(key)
            yield from leaf_changes(a.get(key, NOTHING), b.get(key, NOTHING), inner)
    elif isinstance(a, list) and isinstance(b, list):
        for index in range(max(len(a), len(b))):
            one, other = (side[index] if index < len(side) else NOTHING for side in (a, b))
            yield from leaf_changes(one, other, f"{where}[{index}]")
    elif type(a) is not type(b) or (a != b and not (_is_nan(a) and _is_nan(b))):
        yield LeafChange(where, a, b)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
