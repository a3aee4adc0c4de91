"""What changed between the recipe that a run was started with and the one given now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from anyrig.train.recipe.errors import Section, sections_of
from anyrig.train.recipe.schema import Recipe

# They are no part of the numbers already made, or are over: how long to go on, what to keep, and who is told.
FREE = ("epochs", "phases", "init_from", "checkpoint", "limits", "loggers", "on_nonfinite", "on_oom")
_ABSENT = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key with its old and new value; `free` when a run may resume with it."""

    key: str
    old: str
    new: str
    free: bool

    def __str__(self) -> str:
        return f"{self.key}: {self.old} -> {self.new}"


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return every difference between two canonical recipes, sorted by key.

    A key that is not set means its default, so that a run goes on with a later version that has more keys.
    """
    before, after = dict(_leaves(old)), dict(_leaves(new))
    keys = sorted(before.keys() | after.keys())
    outer = {key for key in keys if any(other.startswith(f"{key}.") for other in keys)}  # empty on one side only
    pairs = {key: tuple(_text(side.get(key, _default_at(key))) for side in (before, after)) for key in keys}
    return [
        Change(key=key, old=pairs[key][0], new=pairs[key][1], free=key.partition(".")[0] in FREE)
        for key in keys
        if key not in outer and pairs[key][0] != pairs[key][1]
    ]


def hash_json(value: Any) -> str:
    """Return a hash of JSON data that does not depend on the order of keys."""
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True, default=str).encode())


def _default_at(key: str) -> Any:
    """Return the default of the recipe's key at this dotted path; _ABSENT if it has none."""
    section: type[Section] | None = Recipe
    *outer, name = key.split(".")
    for part in outer:
        field = section.model_fields.get(part) if section is not None else None
        section = next(sections_of(field), None) if field is not None else None
    field = section.model_fields.get(name) if section is not None else None
    if field is None or field.is_required():
        return _ABSENT
    return field.get_default(call_default_factory=True)


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not value:
        yield key, value
        return
    for name, item in value.items():
        yield from _leaves(item, f"{key}.{name}" if key else str(name))


def _text(value: Any) -> str:
    return "(not set)" if value is _ABSENT else json.dumps(value, sort_keys=True, ensure_ascii=False)
