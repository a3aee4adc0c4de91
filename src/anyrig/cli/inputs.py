"""What `predict` and `evaluate` are given, as the model's inputs: arrays in .npy and .npz files, and images."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anyrig.cli import text
from anyrig.cli.images import not_there, read_images, refuse_other_files
from anyrig.errors import UsageError

Rows = tuple[Any, Any, Any]

_ARRAYS = (".npy", ".npz")
_NAME_THEM = "name the labels y, and the rows x or as the model's inputs: numpy.savez(FILE, x=..., y=...)"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Rows for a model: one array, or one for each named input; a label for each row; what was done to them."""

    x: Any
    labels: list[str]
    notes: list[str]


def read_inputs(paths: list[Path], takes: Any, *, key: str | None, scale: float) -> Inputs:
    """Return the rows in `paths`: one .npy or .npz file, or any number of images.

    `takes` is what the model takes (`anyrig.train.recipe.specs`; None: not known); pixels are multiplied by `scale`.
    """
    arrays = [path for path in paths if path.suffix.lower() in _ARRAYS]
    if not arrays:
        return _images(paths, takes, scale)
    if len(paths) > 1:
        raise UsageError(
            "ANY-CLI-003",
            f"{arrays[0]} comes with other inputs",
            hint="give one .npy or .npz file, or any number of images",
        )
    found = _load(paths[0])
    if isinstance(found, dict):
        x = _x_of(found, paths[0], takes, key, hint=f"use one of: --key {' | '.join(found)}")
    elif _names(takes):
        raise _needs_names(takes)
    else:
        x = found
    return Inputs(x, [f"{paths[0].name}[{row}]" for row in range(_rows(x))], [])


def read_rows(path: Path, takes: Any, labels: list[list[str]]) -> Rows:
    """Return (x, y, None) of an .npz file to evaluate on.

    x is the array x, or those named as the model's inputs; y is the array y, or all those named by one of `labels`.
    """
    found = _load(path)
    if not isinstance(found, dict):
        raise UsageError("ANY-CLI-005", f"{path} holds one array, without a name", hint=_NAME_THEM)
    x = _x_of(found, path, takes, None, hint=_NAME_THEM)
    for names in (["y"], *labels):
        if names and not set(names) - found.keys():
            return x, found[names[0]] if len(names) == 1 else {name: found[name] for name in names}, None
    others = dict.fromkeys(text.listed(names) for names in labels if names and names != ["y"])
    named = f", nor any named {' or '.join(others)}" if others else ""
    raise UsageError("ANY-CLI-005", f"{path} has no array y{named}; it holds {_held(found)}", hint=_NAME_THEM)


def _load(path: Path) -> Any:
    """Return the array in a .npy file, or a dict of the arrays in an .npz file."""
    try:
        with path.open("rb") as stream:
            found = np.load(stream, allow_pickle=False)
            return found if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
    except FileNotFoundError as error:
        raise not_there(path) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(
            "ANY-CLI-004", f"{path}: it is no file of plain NumPy arrays ({error})", hint="write it with numpy.save"
        ) from error


def _x_of(found: dict[str, Any], path: Path, takes: Any, key: str | None, *, hint: str) -> Any:
    """Return the arrays named as the inputs; for one input, the array named `key`, else x, else the only one."""
    names = _names(takes)
    if names and key is None:
        missing = [name for name in names if name not in found]
        if missing:
            raise UsageError(
                "ANY-CLI-005",
                f"{path} has no array {text.listed(missing)}; it holds {_held(found)}",
                hint=f"this model takes {text.listed(names)}: give an .npz with these names",
            )
        x = {name: found[name] for name in names}
        return list(x.values()) if isinstance(takes, list) else x
    wanted = key or ("x" if "x" in found else next(iter(found)) if len(found) == 1 else None)
    if wanted not in found:
        what = f"no array {wanted}" if wanted else "several arrays, and none is named x"
        raise UsageError("ANY-CLI-005", f"{path} has {what}; it holds {_held(found)}", hint=hint)
    return found[wanted]


def _names(takes: Any) -> list[str]:
    """Return the names that a model's several inputs have in an .npz file, as numpy.savez(a, b) names a list's."""
    if isinstance(takes, dict):
        return list(takes)
    return [f"arr_{index}" for index in range(len(takes))] if isinstance(takes, list) else []


def _needs_names(takes: Any) -> UsageError:
    named = text.listed(_names(takes))
    return UsageError(
        "ANY-CLI-006",
        f"this model takes {named}, and not one array or image",
        hint="give an .npz with these names",
    )


def _held(found: dict[str, Any]) -> str:
    return text.listed(list(found)) or "nothing"


def _rows(x: Any) -> int:
    parts = list(x.values()) if isinstance(x, dict) else x if isinstance(x, list) else [x]
    return len(parts[0])


def _images(paths: list[Path], takes: Any, scale: float) -> Inputs:
    for path in paths:
        refuse_other_files(path)
    if _names(takes):
        raise _needs_names(takes)
    x, notes = read_images(paths, takes, scale)
    return Inputs(x, [path.name for path in paths], notes)
