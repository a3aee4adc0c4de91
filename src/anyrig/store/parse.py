"""Typed getters for a parsed JSON object, which add their key to the error: `in 'tensors[3].pieces[0].file'`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from anyrig.errors import AnyrigError

HASH_DIGITS = 32
MAX_WHOLE = 2**63 - 1


class ManifestError(AnyrigError):
    """A manifest that is missing, damaged, of another version, or says something impossible."""


def bad(where: str, found: str) -> NoReturn:
    """Raise: the manifest's value at `where` cannot be used."""
    raise ManifestError(
        "ANY-LOAD-007",
        f"The checkpoint's manifest is not valid: {found}, in '{where}'.",
        hint="the file was not written by anyrig, or was changed: use another checkpoint (`anyrig ls RUN`)",
    )


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object and where it stands in the document; each key must be there, and no other."""

    values: dict[str, Any]
    where: str

    @classmethod
    def of(cls, value: Any, where: str, keys: frozenset[str]) -> Fields:
        """Take `value` as an object with exactly `keys`."""
        if not isinstance(value, dict):
            bad(where or "the document", f"expected an object, found {type(value).__name__}")
        fields = cls(value, where)
        for key in sorted(value.keys() ^ keys):
            bad(fields.at(key), "the key is missing" if key in keys else "the key is unknown")
        return fields

    def at(self, key: str) -> str:
        """Return where `key` stands in the document."""
        return f"{self.where}.{key}" if self.where else key

    def text(self, key: str) -> str:
        """Return a text."""
        return _text(self.values[key], self.at(key))

    def optional_text(self, key: str) -> str | None:
        """Return a text or None."""
        return None if self.values[key] is None else self.text(key)

    def whole(self, key: str) -> int:
        """Return an integer from 0 to 2^63 - 1."""
        return _whole(self.values[key], self.at(key))

    def checksum(self, key: str) -> str:
        """Return a text of 32 hexadecimal digits."""
        return _checksum(self.values[key], self.at(key))

    def mapping(self, key: str) -> dict[str, Any]:
        """Return an object as it is."""
        value = self.values[key]
        if not isinstance(value, dict):
            bad(self.at(key), f"expected an object, found {type(value).__name__}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts."""
        return tuple(_text(item, where) for item, where in self.items(key))

    def wholes(self, key: str) -> tuple[int, ...]:
        """Return a list of integers, each from 0 to 2^63 - 1."""
        return tuple(_whole(item, where) for item, where in self.items(key))

    def checksums(self, key: str) -> tuple[str, ...]:
        """Return a list of checksums."""
        return tuple(_checksum(item, where) for item, where in self.items(key))

    def items(self, key: str) -> Iterator[tuple[Any, str]]:
        """Yield a list's items, each with where it stands."""
        value = self.values[key]
        if not isinstance(value, list):
            bad(self.at(key), f"expected a list, found {type(value).__name__}")
        for index, item in enumerate(value):
            yield item, f"{self.at(key)}[{index}]"


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        bad(where, f"expected a text, found {type(value).__name__}")
    return value


def _whole(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        bad(where, f"expected an integer, found {type(value).__name__}")
    if not 0 <= value <= MAX_WHOLE:
        bad(where, "the integer is out of range")
    return value


def _checksum(value: Any, where: str) -> str:
    text = _text(value, where)
    if len(text) != HASH_DIGITS or not set(text) <= set("0123456789abcdef"):
        bad(where, f"expected {HASH_DIGITS} hexadecimal digits, found {text[:40]!r}")
    return text
