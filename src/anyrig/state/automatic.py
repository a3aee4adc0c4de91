"""Which names Keras made up, and what stands for them.

Keras names an unnamed object after its class and a process-wide counter (`dense`, `dense_1`, ...), so the same code run
twice gives other names. Such names never reach a file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any


def snake_case(class_name: str) -> str:
    """Return `class_name` as Keras turns it into an automatic name."""
    name = re.sub(r"\W+", "", class_name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def is_automatic(name: str, class_name: str) -> bool:
    """Say whether Keras, not the user, would have called an object of this class `name`."""
    words = [snake_case(class_name)] + (["model"] if class_name == "Functional" else [])
    return any(re.fullmatch(rf"{re.escape(word)}(_\d+)?", name) for word in words)


def number_of(name: str) -> int:
    """Return the number at the end of an automatic name; the first of its kind has none."""
    found = re.search(r"_(\d+)$", name)
    return int(found[1]) if found else 0


def sibling_names(objects: Iterable[Any]) -> list[str]:
    """Name objects of one parent: the user's name, or `<snake class>.<i>` for an automatic one."""
    counts: Counter[str] = Counter()
    names = []
    for item in objects:
        kind = type(item).__name__
        if is_automatic(item.name, kind):
            names.append(f"{snake_case(kind)}.{counts[kind]}")
            counts[kind] += 1
        else:
            names.append(item.name)
    return names
