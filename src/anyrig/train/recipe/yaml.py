"""Reads a recipe's YAML, and puts `key.sub=value` overrides into it; knows nothing of what the keys mean.

Plain values follow YAML 1.2, as people expect: `1e-3` is a number, `no` and `on` are text, `010` is ten. A key that
stands twice in one mapping is an error.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml

from anyrig.errors import UsageError


class _Loader(yaml.SafeLoader):
    """The safe loader with YAML 1.2 plain values and without duplicate keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (as the base class has it)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f'the key "{key.value}" stands twice', key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
):
    _firsts = [character if character != "\0" else "" for character in _first]
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), _firsts)
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in the YAML file at `path`; raise UsageError when there is none."""
    data = _parse(_read_text(path), path.name)
    if not isinstance(data, dict):
        found = "it is empty" if data is None else f"found {type(data).__name__}"
        raise UsageError(
            "ANY-RECIPE-003",
            f"{path}: expected a mapping with keys such as model and data, {found}",
            hint="write lines such as `model: cats.py:build_model`",
        )
    return data


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return `data` with each `key.sub=value` set; the value is YAML, mappings on the way are made."""
    result: Any = data
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not all(key.split(".")):
            raise UsageError(
                "ANY-RECIPE-005",
                f'"{text}" is not an override: expected key=value',
                hint="type e.g. batch.global_size=64, without spaces around the equals sign",
            )
        result = _put(result, key.split("."), _parse(value, f"the value of {key}"))
    return dict(result)


def _put(data: Any, keys: list[str], value: Any) -> Any:
    """Return `data` with `value` at `keys`; whatever is no mapping (or no list with that index) becomes a mapping."""
    if not keys:
        return value
    head, *rest = keys
    if isinstance(data, list) and head.isdecimal() and int(head) < len(data):
        index = int(head)
        return [*data[:index], _put(data[index], rest, value), *data[index + 1 :]]
    old = data if isinstance(data, dict) else {}
    return {**old, head: _put(old.get(head), rest, value)}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        reason, hint = "there is no such file", "check the path of the recipe"
    except IsADirectoryError:
        reason, hint = "this is a folder, not a recipe file", f"name the recipe itself, e.g. {path / 'recipe.yaml'}"
    except UnicodeDecodeError:
        reason, hint = "this is not a text file", "name a YAML file with the recipe"
    except OSError as error:
        reason, hint = f"it cannot be read ({error.strerror})", "check the file's permissions"
    raise UsageError("ANY-RECIPE-001", f"{path}: {reason}", hint=hint)


def _parse(text: str, name: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506  (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UsageError(
            "ANY-RECIPE-002",
            f"{name}:{line}: not valid YAML: {error.problem}",
            hint="correct that line and start again",
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(
            "ANY-RECIPE-002", f"{name}: not valid YAML: {error}", hint="correct the file and start again"
        ) from error
