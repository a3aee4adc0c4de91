"""A model and its data in a form that a child process can open: references to functions, arrays in a file, a recipe.

A child cannot be given a function or an array, so functions are named by module or file, and arrays are written to an
.npz file next to the job. Nothing here imports TensorFlow until `open_case` is called, in the child.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anyrig.errors import UsageError
from anyrig.train.recipe.code import call_user, resolve_function


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model on one data set with its batch rules; JSON values only, so that it can be handed to a child.

    `source` says where model and data come from; it is made by `from_parts`, `from_pair` or `from_recipe`.
    """

    name: str
    source: Mapping[str, Any]
    virtual_replicas: int
    batch_size: int | None = None  # None: 32 rows, or a dataset's own batches
    steps: int = 5
    seed: int = 0
    precision: str = "auto"
    strategy: str = "auto"
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """What a case turns out to be in the child: the function that builds the model, data, other arguments of fit."""

    build: Callable[[], Any]
    data: tuple[Any, Any, Any]  # x, y, sample_weight
    fit: Mapping[str, Any] = field(default_factory=dict)


def from_parts(
    build: str | Path | Callable[..., Any], data: Any, arguments: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """Return the source of a model function and its data: arrays (written into `folder`) or a function."""
    return {"build": reference(build, "build"), "arguments": dict(arguments), "data": _handed_over(data, folder)}


def from_pair(function: str | Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source of a function that returns (build_model, data) or (build_model, data, arguments of fit)."""
    return {"pair": reference(function, "case"), "arguments": dict(arguments)}


def from_recipe(path: str | Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the source of a recipe's model and data."""
    return {"recipe": str(path), "overrides": list(overrides)}


def open_case(source: Mapping[str, Any]) -> Opened:
    """Return what a source describes; user code is run now."""
    if "recipe" in source:
        from anyrig.train.recipe.model import model_builder
        from anyrig.train.recipe.run import load_rows
        from anyrig.train.recipe.schema import load_recipe

        recipe = load_recipe(source["recipe"], source["overrides"])
        return Opened(model_builder(recipe), load_rows(recipe)[0])
    if "pair" in source:
        build, data, *fit = call_user(_resolved(source["pair"]), source["arguments"], key="case")
        return Opened(build, _columns(data), *fit)
    function, arguments = _resolved(source["build"]), source["arguments"]
    data = source["data"]
    opened = call_user(_resolved(data), {}, key="data") if isinstance(data, str) else _read(data)
    return Opened(lambda: function(**arguments), _columns(opened))


def reference(function: str | Path | Callable[..., Any], what: str) -> str:
    """Return "module:function", or "/folder/file.py:function" for a file that is in no package.

    Raises UsageError for what a child process could not import: lambdas, closures, methods, functions of a notebook.
    """
    if isinstance(function, str | Path):
        module_name, _, name = str(function).rpartition(":")
        return f"{Path(module_name).resolve()}:{name}" if module_name.endswith(".py") else str(function)
    name = getattr(function, "__qualname__", type(function).__name__)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if module is None or file is None or getattr(module, name, None) is not function:
        raise UsageError(
            "ANY-PARITY-001",
            f"{what}: {name} cannot be imported by another process, and each device count needs one of its own",
            hint=f"write {what} as a function (def) at the top level of a .py file, not a lambda, a method or a "
            "function inside another",
        )
    return f"{module.__name__}:{name}" if module.__package__ else f"{Path(file).resolve()}:{name}"


def _resolved(reference: str) -> Callable[..., Any]:
    module_name, _, name = reference.rpartition(":")
    file = Path(module_name)
    if file.suffix == ".py":
        return resolve_function(f"{file.name}:{name}", file.parent)
    return resolve_function(reference, Path())


def _columns(data: Any) -> tuple[Any, Any, Any]:
    if isinstance(data, tuple) and 1 <= len(data) <= 3:
        return (*data, *(None,) * (3 - len(data)))
    return data, None, None


def _handed_over(data: Any, folder: Path) -> Any:
    if callable(data) or isinstance(data, str):
        return reference(data, "data")
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    structure = _structure(data, arrays)
    file = folder / "data.npz"
    np.savez(file, **arrays)  # type: ignore[arg-type]  # names of arrays
    return {"npz": str(file), "structure": structure}


def _structure(part: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    """Return `part` with each array replaced by its key in `arrays`, as JSON that tells lists from tuples."""
    if part is None:
        return None
    if isinstance(part, dict):
        return {"dict": {name: _structure(item, arrays) for name, item in part.items()}}
    if isinstance(part, list | tuple):
        kind = "tuple" if isinstance(part, tuple) else "list"
        return {kind: [_structure(item, arrays) for item in part]}
    array = np.asarray(part) if hasattr(part, "__array__") else None
    if array is None or array.dtype.kind not in "biufcSU":
        found = type(part).__name__ if array is None else f"an array of dtype {array.dtype}"
        raise UsageError(
            "ANY-PARITY-002",
            f"data: {found} cannot be handed to another process",
            hint="give arrays (or dicts, lists of them), or a function at the top level of a .py file that returns the "
            "data",
        )
    key = f"a{len(arrays)}"
    arrays[key] = array
    return key


def _read(handed: Mapping[str, Any]) -> Any:
    with np.load(handed["npz"], allow_pickle=False) as arrays:
        return _filled(handed["structure"], arrays)


def _filled(structure: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(structure, str):
        return arrays[structure]
    if structure is None:
        return None
    ((kind, parts),) = structure.items()
    if kind == "dict":
        return {name: _filled(part, arrays) for name, part in parts.items()}
    filled = [_filled(part, arrays) for part in parts]
    return tuple(filled) if kind == "tuple" else filled
