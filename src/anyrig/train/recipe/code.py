"""Finds the user's function that a recipe or an argument names, by running the user's module.

This is the only place that runs code because of a recipe. Whatever goes wrong inside the user's code is told with its
file and line.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from anyrig.errors import UsageError
from anyrig.train.recipe.errors import nearest, suggestion, with_article


def resolve_function(spec: str, base_dir: Path, *, key: str = "model") -> Callable[..., Any]:
    """Return the function that "file.py:function" (relative to `base_dir`) or "package.module:function" names.

    `base_dir` comes first on the import path, so that the module may import its neighbours. `key` is what the user set.
    """
    module_name, _, name = spec.rpartition(":")
    if not (module_name and name):
        raise UsageError(
            "ANY-RECIPE-024",
            f"{key}: {spec!r} does not name a function in a file or module",
            hint="write FILE.py:FUNCTION, e.g. model.py:build, or PACKAGE.MODULE:FUNCTION",
        )
    _put_first_on_path(base_dir.resolve())
    if module_name.endswith(".py"):
        module = _file_module(module_name, base_dir, key)
    else:
        module = _named_module(module_name, base_dir, key)
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = suggestion(name, known)
        raise UsageError(
            "ANY-RECIPE-007",
            f"{key}: {module_name} has no function {name}{near}",
            hint=_correct_or_define(name, known),
        )
    function = getattr(module, name)
    if not callable(function):
        raise UsageError(
            "ANY-RECIPE-008",
            f"{key}: {name} in {module_name} is {with_article(type(function).__name__)}, not a function",
            hint="name a function that returns the Keras model",
        )
    return function


def call_user(function: Callable[..., Any], arguments: Mapping[str, Any], *, key: str) -> Any:
    """Return `function(**arguments)`; a wrong argument or a failure inside is a UsageError that names `key`."""
    _check_arguments(function, arguments, key)
    try:
        return function(**arguments)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            "ANY-RECIPE-010",
            f"{key}: {_name(function)} failed at {_place(error, inspect.getsourcefile(function))}: {_text(error)}",
            hint="correct the function; --debug shows the whole traceback",
        ) from error


def _correct_or_define(name: str, known: list[str]) -> str:
    near = nearest(name, known)
    return f"correct the name to {near}, or define {name}" if near else f"define {name}"


def _check_arguments(function: Callable[..., Any], arguments: Mapping[str, Any], key: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some compiled callables have none: the call itself will tell
    names = list(signature.parameters)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    for argument in arguments:
        if argument not in names and not takes_any:
            near = suggestion(argument, names)
            raise UsageError(
                "ANY-RECIPE-009",
                f"{key}.{argument}: {_name(function)} takes no such argument{near}",
                hint="correct the name in the recipe",
            )
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UsageError(
            "ANY-RECIPE-009", f"{key}: {_name(function)}: {error}", hint="give each argument of the function a value"
        ) from error


def _put_first_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _file_module(file: str, base_dir: Path, key: str) -> ModuleType:
    path = (base_dir / file).resolve()
    if not path.is_file():
        files = sorted(entry.name for entry in base_dir.glob("*.py"))
        near = suggestion(file, files)
        raise UsageError(
            "ANY-RECIPE-006",
            f"{key}: there is no file {base_dir / file}{near}",
            hint=f"give a path that starts from {base_dir}",
        )
    loaded = sys.modules.get(path.stem)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    return _execute(path, path.stem if loaded is None else f"recipe_{path.stem}", key)


def _execute(path: Path, name: str, key: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # a .py file always has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception | SystemExit):
            raise _import_failed(key, path.name, error, str(path)) from error
        raise
    return module


def _named_module(name: str, base_dir: Path, key: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failed(key, name, error, None) from error
        raise UsageError(
            "ANY-RECIPE-006",
            f"{key}: there is no module {error.name}",
            hint=f"install it, or write FILE.py:FUNCTION with a path that starts from {base_dir}",
        ) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(key, name, error, None) from error


def _import_failed(key: str, name: str, error: BaseException, file: str | None) -> UsageError:
    return UsageError(
        "ANY-RECIPE-012",
        f"{key}: importing {name} failed at {_place(error, file)}: {_text(error)}",
        hint="correct that line; --debug shows the whole traceback",
    )


def _place(error: BaseException, file: str | None) -> str:
    """Return "cats.py:3": the last line of `file` on the way to the error, else the last line of all."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if file and Path(frame.filename) == Path(file)] or list(frames)
    return f"{Path(inside[-1].filename).name}:{inside[-1].lineno}"


def _text(error: BaseException) -> str:
    """Return the error as one line."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    first = text.strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
