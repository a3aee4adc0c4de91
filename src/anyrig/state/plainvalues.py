"""Python and numpy values as JSON and back, exactly, with arrays kept apart by name.

Finite floats stand as they are (JSON keeps float64 exactly); what JSON has not is a dict with one known key:
`{"float": "nan"}`, `{"scalar": "float32", "value": ...}`, `{"array": "<name>"}`, `{"tuple": [...]}`, and
`{"dict": {...}}` around a user's dict that would look like one of these.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with numpy)
import numpy as np

from anyrig import names
from anyrig.errors import AnyrigError

Array = np.ndarray[Any, Any]
_MARKS = ("float", "scalar", "array", "tuple", "dict")


def encode(value: Any, where: str, arrays: dict[str, Array]) -> Any:
    """Return `value` as JSON; arrays go to `arrays` under their path. `where` names the value in errors."""
    return _encode(value, where, (), arrays)


def decode(value: Any, arrays: dict[str, Array]) -> Any:
    """Return what `encode` was given."""
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"float"}:
        return float(value["float"])
    if value.keys() == {"scalar", "value"}:
        return np.dtype(value["scalar"]).type(decode(value["value"], arrays))
    if value.keys() == {"array"}:
        return np.array(arrays[value["array"]])
    if value.keys() == {"tuple"}:
        return tuple(decode(value["tuple"], arrays))
    inner = value["dict"] if value.keys() == {"dict"} else value
    return {key: decode(item, arrays) for key, item in inner.items()}


def _encode(value: Any, where: str, path: tuple[str, ...], arrays: dict[str, Array]) -> Any:
    value = value.numpy() if hasattr(value, "numpy") and hasattr(value, "dtype") else value
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if (isinstance(value, np.generic) and value.dtype.kind not in "OSUV") or _is_extended(value):
        plain = value.item() if value.dtype.kind in "biuf" else float(value)
        return {"scalar": value.dtype.name, "value": _encode(plain, where, path, arrays)}
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OSU":
        name = names.join(*path) if path else "value"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, (list, tuple)):
        items = [_encode(item, where, (*path, str(index)), arrays) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, dict) and all(type(key) is str for key in value):
        inner = {key: _encode(item, where, (*path, key), arrays) for key, item in value.items()}
        return {"dict": inner} if set(value) & set(_MARKS) else inner
    raise AnyrigError(
        "ANY-STATE-012",
        f"{'.'.join((where, *path))} is a {type(value).__name__}, which has no exact form in JSON or as an array",
        hint="let get_state() return dicts with text keys, lists, numbers, text, None and numpy arrays",
    )


def _is_extended(value: Any) -> bool:
    return isinstance(value, np.generic) and type(value).__module__ == "ml_dtypes"
