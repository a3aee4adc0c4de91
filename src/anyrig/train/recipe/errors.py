"""Tells what is wrong with a recipe: the dotted key first, then what was expected, then what was found.

`Expect` is the one way a recipe's model states what a value must be, so that every message has the same form.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

_SHOWN = 60  # characters of a value
_LISTED = 16  # known words


class Section(BaseModel):
    """A mapping in a recipe: unknown keys are errors, and keys of later versions are known by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    not_yet: ClassVar[tuple[str, ...]] = ()
    instead: ClassVar[tuple[str, ...]] = ()  # what to name in place of those; empty: every known key


@dataclass(frozen=True, slots=True)
class Expect:
    """States in words what a value must be, and tests it: `Annotated[int, Expect("a positive integer", test)]`."""

    words: str
    test: Callable[[Any], bool]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def _validate(self, value: Any) -> Any:
        if not self.test(value):
            raise expected(self.words, shown(value))
        return value


def expected(words: str, found: str) -> PydanticCustomError:
    """Return the error "expected `words`, found `found`"; the text is not a template."""
    return PydanticCustomError("expected", "{text}", {"text": f"expected {words}, found {found}"})


def shown(value: object) -> str:
    """Return `value` as a user would recognise it, on one short line."""
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def explain(error: ValidationError, model: type[Section]) -> list[str]:
    """Return one line for each error that `model` found."""
    return [f"{_dotted(details['loc'])}: {_reason(details, model)}" for details in error.errors()]


def nearest(word: str, known: Sequence[str]) -> str | None:
    """Return the known word that is likely meant."""
    folded = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(word.casefold(), folded, n=1)
    return folded[near[0]] if near else None


def suggestion(word: str, known: Sequence[str]) -> str:
    """Return "; did you mean batch?" for the nearest known word, else the first of the known ones; "" if none are."""
    if not known:
        return ""
    if near := nearest(word, known):
        return f"; did you mean {near}?"
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f"; use one of: {', '.join(sorted(known)[:_LISTED])}{more}"


def with_article(noun: str) -> str:
    """Return "an int", "a list"."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def _dotted(location: Sequence[str | int]) -> str:
    return ".".join(str(part) for part in location) or "recipe"


def _reason(details: ErrorDetails, model: type[Section]) -> str:
    kind, location = details["type"], details["loc"]
    if kind == "extra_forbidden":
        return _unknown(str(location[-1]), _section(model, location[:-1]))
    if kind == "missing":
        return f"is missing; expected {_words(_section(model, location[:-1]), str(location[-1]))}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"expected a mapping, found {shown(details['input'])}"
    if kind == "list_type":
        return f"expected a list, found {shown(details['input'])}"
    return details["msg"]


def _unknown(key: str, section: type[Section]) -> str:
    known = sorted(section.model_fields)
    if key in section.not_yet:
        return f"not available in this version; use one of: {', '.join(section.instead or known)}"
    return f"unknown key{suggestion(key, known)}"


def _section(model: type[Section], location: Sequence[str | int]) -> type[Section]:
    """Return the section of the recipe at `location`."""
    for part in location:
        if isinstance(part, str):  # a number is a place in a list of sections
            model = next(sections_of(model.model_fields[part]))
    return model


def sections_of(field: FieldInfo) -> Iterator[type[Section]]:
    """Yield the sections that a field may hold."""
    choices = [field.annotation]
    for choice in choices:  # `list[Section] | None` is two deep
        choices += getattr(choice, "__args__", ())
        if isinstance(choice, type) and issubclass(choice, Section):
            yield choice


def _words(section: type[Section], key: str) -> str:
    field = section.model_fields[key]
    words = [entry.words for entry in field.metadata if isinstance(entry, Expect)]
    return (
        words[0] if words else f"a mapping with keys such as {', '.join(sorted(next(sections_of(field)).model_fields))}"
    )
