"""Models of Keras 2 in all its formats, written by make_keras2.py, which tells what is in them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

_FOLDER = Path(__file__).parent / "keras2"
NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.zip")))


def unpack(name: str, folder: Path) -> Path:
    """Unpack the files of one model into a new folder within `folder`, and return it."""
    with zipfile.ZipFile(_FOLDER / f"{name}.zip") as archive:
        archive.extractall(folder / name)
    return folder / name


def expected(name: str, kind: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of one kind, by the rest of their names, in order.

    `inputs`, `outputs`, `targets` by number; `weight`, `optimizer`, `after` by number and the variable's name.
    """
    with zipfile.ZipFile(_FOLDER / f"{name}.zip") as archive, archive.open("expected.npz") as file:
        stored = np.load(file)
        return {key.removeprefix(f"{kind}/"): stored[key] for key in stored.files if key.startswith(f"{kind}/")}
