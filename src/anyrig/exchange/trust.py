"""Whether a configuration from a file may be made into objects: decided on the JSON alone, before anything is made.

Four levels, each with all that the former allow. `arrays`: data only. `known`: classes and functions of Keras, from a
closed list by identity, and those that the caller hands over. `code`: modules that the file names are imported, and
files that it names are read. `program`: byte code, SavedModels and pickles in the file are run. The level is an
argument all the way down; nothing in a file and no global setting changes it. What is not understood is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, get_args

from anyrig.errors import AnyrigError, UsageError
from anyrig.exchange.known import PROGRAMS, class_names, function_names, known_classes, known_functions
from anyrig.exchange.legacy.names import CLASSES, is_keras_module

Trust = Literal["arrays", "known", "code", "program"]
LEVELS: tuple[Trust, ...] = get_args(Trust)

_DEPTH = 200
_ITEMS = 2_000_000
_SHOWN = 5
_DATA = {
    *("__keras_tensor__", "__tensor__", "__numpy__", "__bytes__", "__ellipsis__", "__slice__", "__tuple__"),
    *("TensorShape", "TypeSpec"),
}
"""What Keras writes for plain values; their insides are looked at like everything else."""
_PATHS = ("vocabulary",)
"""Arguments of Keras's layers that name a file where they are text."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in a configuration that needs more than `known`, in words, and the place."""

    needs: Trust
    what: str
    where: str
    file: bool = False


def allows(trust: Trust, needed: Trust) -> bool:
    """Tell whether `trust` is at least `needed`; ANY-OPEN-006 for a level that there is not."""
    if trust not in LEVELS:
        raise UsageError("ANY-OPEN-006", f"trust={trust!r} is no level of trust", hint=f"one of {', '.join(LEVELS)}")
    return LEVELS.index(trust) >= LEVELS.index(needed)


def check(
    config: Any,
    trust: Trust = "known",
    custom_objects: Mapping[str, Any] | None = None,
    path: str | PathLike[str] = "the configuration",
    *,
    exact: bool = False,
) -> None:
    """Raise unless everything that `config` (JSON values) names may be made at the level `trust`.

    `custom_objects` of the caller are allowed by their names. `exact` asks for today's names of modules, those by which
    Keras itself finds the listed object; without it names of any older Keras pass, for a translation to follow.

    Raises ANY-OPEN-001 (`arrays`: nothing is made), -002 (code that is not Keras's), -003 (a stored program), -004
    (another file), -005 (too large or too deep), -007 (no configuration of Keras).
    """
    if not allows(trust, "known"):
        raise UsageError(
            "ANY-OPEN-001",
            f"{path} describes a model, and at the level of trust 'arrays' none is made",
            hint="read its tensors alone (into=, anyrig inspect), or allow Keras's own classes: trust='known'",
        )
    found = [item for item in findings(config, custom_objects, path, exact=exact) if not allows(trust, item.needs)]
    if found:
        raise _refused(found, trust, path)


def findings(
    config: Any,
    custom_objects: Mapping[str, Any] | None = None,
    path: str | PathLike[str] = "the configuration",
    *,
    exact: bool = False,
) -> Iterator[Finding]:
    """Yield what needs more than `known`, in the order of the configuration."""
    return _Walk(custom_objects or {}, path, exact).value(config, (), 0)


def _refused(found: list[Finding], trust: Trust, path: str | PathLike[str]) -> AnyrigError:
    worst = max(found, key=lambda item: LEVELS.index(item.needs))
    lines = [f"  {item.where or 'the model'}: {item.what} (needs {item.needs!r})" for item in found[:_SHOWN]]
    more = [f"  ... and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    hint = (
        "hand over your own of that name (custom_objects={'NAME': ...}), fill a model that you build (into=, --into "
        f"FILE.py:FUNCTION), or, if you trust who made the file: trust={worst.needs!r} (--trust {worst.needs})"
    )
    head = f"{path} is not opened at the level of trust {trust!r}:"
    text = "\n".join([head, *lines, *more])
    if worst.needs == "program":
        return UsageError("ANY-OPEN-003", text, hint=hint)
    return UsageError("ANY-OPEN-004", text, hint=hint) if worst.file else UsageError("ANY-OPEN-002", text, hint=hint)


@dataclass(slots=True)
class _Walk:
    """One pass over a configuration."""

    custom: Mapping[str, Any]
    path: str | PathLike[str]
    exact: bool
    items: int = 0

    def value(self, value: Any, where: tuple[str, ...], depth: int) -> Iterator[Finding]:
        self.items += 1
        if depth > _DEPTH or self.items > _ITEMS:
            raise AnyrigError(
                "ANY-OPEN-005",
                f"{self.path}: its configuration is nested more than {_DEPTH} deep or has over {_ITEMS:,} values",
                hint="a sound file does not ask for that; get it from a source that you trust",
            )
        if isinstance(value, Mapping):
            yield from self._mapping(value, where, depth)
        elif isinstance(value, list | tuple):
            for item in value:
                yield from self.value(item, where, depth + 1)
        elif isinstance(value, str):
            yield from self._text(value, where, depth)
        elif not isinstance(value, bool | int | float | None):
            raise self._malformed(f"a value of the type {type(value).__name__}", where)

    def _mapping(self, value: Mapping[Any, Any], where: tuple[str, ...], depth: int) -> Iterator[Finding]:
        inside = where
        if "class_name" in value:
            inside = (*where, _label(value))
            yield from self._object(value, inside)
        for key, item in value.items():
            if not isinstance(key, str):
                raise self._malformed(f"the key {key!r}", where)
            if key in _PATHS and isinstance(item, str):
                yield Finding("code", f"{key}={item!r} is a file to be read", _joined(inside), file=True)
            yield from self.value(item, inside, depth + 1)

    def _object(self, value: Mapping[str, Any], where: tuple[str, ...]) -> Iterator[Finding]:
        name, module, registered = (value.get(key) for key in ("class_name", "module", "registered_name"))
        if not isinstance(name, str) or not isinstance(module, str | None) or not isinstance(registered, str | None):
            raise self._malformed(f"class_name={name!r}, module={module!r}, registered_name={registered!r}", where)
        if name in _DATA:
            return
        if name in ("__lambda__", "__typespec__") or name in PROGRAMS:
            yield Finding("program", _PROGRAM_WORDS.get(name, f"a {name}"), _joined(where))
        elif name == "function":
            yield from self._function(value.get("config"), module, registered, where)
        elif name == "Lambda":
            if not {"Lambda", where[-1]} & set(self.custom):
                yield from self._lambda(value.get("config"), where)
        elif not self._is_custom(name, registered) and not self._is_known(name, module, registered):
            yield Finding("code", f"the class {_full(module, name, registered)}", _joined(where))

    def _function(
        self, name: Any, module: str | None, registered: str | None, where: tuple[str, ...]
    ) -> Iterator[Finding]:
        if not isinstance(name, str):
            raise self._malformed(f"a function named {name!r}", where)
        if self._is_custom(name, registered):
            return
        plain = registered in (None, "function", name)
        place = module or "builtins"
        old = not self.exact and is_keras_module(place) and name in function_names()
        if not plain or (f"{place}.{name}" not in known_functions() and not old):
            yield Finding("code", f"the function {_full(module, name, registered)}", _joined(where))

    def _lambda(self, config: Any, where: tuple[str, ...]) -> Iterator[Finding]:
        """Code in bytes cannot be shown; a name can."""
        config = config if isinstance(config, Mapping) else {}
        parts = [config.get(key) for key in ("function", "output_shape", "mask")]
        kinds = {config.get(f"{key}_type") for key in ("function", "output_shape", "mask")}
        stored = "lambda" in kinds or isinstance(parts[0], list | None) or any(_is_bytes(part) for part in parts)
        names = [str(part["config"] if isinstance(part, Mapping) else part) for part in parts if _is_named(part)]
        repair = f" (custom_objects={{{where[-1]!r}: FUNCTION}} replaces it)"
        if stored:
            yield Finding("program", f"a Lambda with Python code in bytes{repair}", _joined(where))
        elif not names or not set(names) <= set(self.custom):
            yield Finding("code", f"a Lambda that calls {' and '.join(names)}{repair}", _joined(where))

    def _is_custom(self, name: str, registered: str | None) -> bool:
        return name in self.custom or (registered is not None and registered in self.custom)

    def _is_known(self, name: str, module: str | None, registered: str | None) -> bool:
        if registered not in (None, "", name):
            return False
        if self.exact:
            return module is not None and f"{module}.{name}" in known_classes()
        return (module is None or is_keras_module(module)) and (name in class_names() or name in CLASSES)

    def _text(self, value: str, where: tuple[str, ...], depth: int) -> Iterator[Finding]:
        if value.lstrip()[:1] in ("{", "[", '"'):
            try:
                inner = json.loads(value)
            except RecursionError:
                inner = value
                self.items = _ITEMS
            except ValueError:
                return
            yield from self.value(inner, where, depth + 1)
        elif ">" in value and value not in self.custom and _is_registered(value):
            yield Finding("code", f"the registered object {value}", _joined(where))

    def _malformed(self, what: str, where: tuple[str, ...]) -> AnyrigError:
        return AnyrigError(
            "ANY-OPEN-007",
            f"{self.path} is no configuration that Keras writes: {what} at {_joined(where) or 'its top'}",
            hint="get the file again from who made it, or build the model yourself and fill it (into=)",
        )


_PROGRAM_WORDS = {
    "__lambda__": "Python code in bytes",
    "__typespec__": "a type of the file's own choice",
    "TFSMLayer": "a TFSMLayer, which runs another SavedModel",
    "TorchModuleWrapper": "a TorchModuleWrapper, which is a pickle",
}


def _is_named(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, Mapping) and part.get("class_name") == "function")


def _is_bytes(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("class_name") == "__lambda__"


def _is_registered(name: str) -> bool:
    import keras

    return name in keras.saving.get_custom_objects()


def _label(value: Mapping[str, Any]) -> str:
    """Return the name that the user gave to an object, else its class."""
    config = value.get("config")
    name = config.get("name") if isinstance(config, Mapping) else None
    return str(name if isinstance(name, str) else value.get("name") or value["class_name"])


def _full(module: str | None, name: str, registered: str | None) -> str:
    whole = f"{module}.{name}" if module else name
    return whole if registered in (None, "", name, "function") else f"{whole} (registered as {registered})"


def _joined(where: tuple[str, ...]) -> str:
    return "/".join(where)
