"""Typed getters for a parsed JSON object, which add their key to the error: `in 'tensors[3].pieces[0].file'`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from anyrig.errors import AnyrigError

HASH_DIGITS = 32
MAX_WHOLE = 2**63 - 1
_CHECKSUM = re.compile(f"[0-9a-f]{{{HASH_DIGITS}}}")


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
        for key in sorted(value.keys() ^ keys) if value.keys() != keys else ():
            bad(fields.at(key), "the key is missing" if key in keys else "the key is unknown")
        return fields

    def at(self, key: str, index: int | None = None) -> str:
        """Return where `key`, or an item of its list, stands in the document."""
        where = f"{self.where}.{key}" if self.where else key
        return where if index is None else f"{where}[{index}]"

    def text(self, key: str) -> str:
        """Return a text."""
        return _text(self.values[key], self, key)

    def optional_text(self, key: str) -> str | None:
        """Return a text or None."""
        return None if self.values[key] is None else self.text(key)

    def whole(self, key: str) -> int:
        """Return an integer from 0 to 2^63 - 1."""
        return _whole(self.values[key], self, key)

    def checksum(self, key: str) -> str:
        """Return a text of 32 hexadecimal digits."""
        return _checksum(self.values[key], self, key)

    def mapping(self, key: str) -> dict[str, Any]:
        """Return an object as it is."""
        value = self.values[key]
        if not isinstance(value, dict):
            bad(self.at(key), f"expected an object, found {type(value).__name__}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts."""
        return tuple([_text(item, self, key, index) for index, item in enumerate(self._list(key))])

    def wholes(self, key: str) -> tuple[int, ...]:
        """Return a list of integers, each from 0 to 2^63 - 1."""
        return tuple([_whole(item, self, key, index) for index, item in enumerate(self._list(key))])

    def checksums(self, key: str) -> tuple[str, ...]:
        """Return a list of checksums."""
        return tuple([_checksum(item, self, key, index) for index, item in enumerate(self._list(key))])

    def items(self, key: str) -> Iterator[tuple[Any, str]]:
        """Yield a list's items, each with where it stands."""
        for index, item in enumerate(self._list(key)):
            yield item, self.at(key, index)

    def _list(self, key: str) -> list[Any]:
        value = self.values[key]
        if not isinstance(value, list):
            bad(self.at(key), f"expected a list, found {type(value).__name__}")
        return value


# Where a value stands is put into words only when it is wrong: a manifest has many values.


def _text(value: Any, fields: Fields, key: str, index: int | None = None) -> str:
    if not isinstance(value, str):
        bad(fields.at(key, index), f"expected a text, found {type(value).__name__}")
    return value


def _whole(value: Any, fields: Fields, key: str, index: int | None = None) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        bad(fields.at(key, index), f"expected an integer, found {type(value).__name__}")
    if not 0 <= value <= MAX_WHOLE:
        bad(fields.at(key, index), "the integer is out of range")
    return value


def _checksum(value: Any, fields: Fields, key: str, index: int | None = None) -> str:
    text = _text(value, fields, key, index)
    if not _CHECKSUM.fullmatch(text):
        bad(fields.at(key, index), f"expected {HASH_DIGITS} hexadecimal digits, found {text[:40]!r}")
    return text
