"""JSON that gives back exactly what it was given, and refuses what it could not.

Floats keep every bit; numpy scalars become Python numbers; `nan`, `inf` and `-inf`, which JSON lacks, travel as
`{"$float": "inf"}`. Anything that would come back as something else is refused by its key.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

from anyrig.errors import UsageError

_FLOAT = "$float"
_NON_FINITE = {"nan", "inf", "-inf"}


class StrictJsonError(ValueError):
    """Text that a lenient JSON parser would accept with a guess: a repeated key, NaN, too deep."""


def encodable(value: Any, where: str) -> Any:
    """Return `value` as plain JSON values; `where` names it in errors."""
    if value is None or isinstance(value, bool | str):
        return _text(value, where) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_FLOAT: str(float(value))}
    if isinstance(value, Mapping):
        return _mapping(value, where)
    if isinstance(value, list | tuple):
        return [encodable(item, f"{where}[{index}]") for index, item in enumerate(value)]
    return _scalar(value, where)


def _text(value: str, where: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        _refuse(where, "text that is not valid Unicode")
    return str(value)


def _mapping(value: Mapping[Any, Any], where: str) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            _refuse(where, f"the key {key!r}, which is not text")
    if _FLOAT in value:
        _refuse(where, f"the key {_FLOAT!r}, which is reserved")
    return {_text(key, where): encodable(item, f"{where}.{key}") for key, item in value.items()}


def _scalar(value: Any, where: str) -> Any:
    """Return a numpy scalar as a Python number (numpy is not imported for it)."""
    plain = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else None
    if not isinstance(plain, bool | int | float | str):
        _refuse(where, f"a {type(value).__name__}")
    return encodable(plain, where)


def _refuse(where: str, found: str) -> NoReturn:
    raise UsageError(
        "ANY-STORE-005",
        f"'{where}' cannot be stored as JSON: it holds {found}.",
        hint="store numbers, text, lists and mappings with text keys there, and arrays as tensors",
    )


def decoded(value: Any) -> Any:
    """Return what `encodable` was given (tuples as lists)."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {_FLOAT} and value[_FLOAT] in _NON_FINITE:
            return float(value[_FLOAT])
        return {key: decoded(item) for key, item in value.items()}
    return value


def canonical(value: Any) -> bytes:
    """Return the one text of plain JSON values: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def parse_strict(text: bytes) -> Any:
    """Parse JSON; raise `StrictJsonError` where JSON parsers differ or guess."""
    try:
        return json.loads(text, object_pairs_hook=unique_keys, parse_constant=_no_constant)
    except RecursionError:
        raise StrictJsonError("it is nested too deeply") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StrictJsonError(f"it is not JSON ({error})") from None
    except ValueError as error:
        raise error if isinstance(error, StrictJsonError) else StrictJsonError(str(error)) from None


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON (as `object_pairs_hook`); raise `StrictJsonError` if a key occurs twice."""
    result = dict(pairs)
    if len(result) != len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise StrictJsonError(f"the key {repeated!r} occurs twice")
    return result


def _no_constant(name: str) -> NoReturn:
    raise StrictJsonError(f"it holds {name}, which is not JSON")
