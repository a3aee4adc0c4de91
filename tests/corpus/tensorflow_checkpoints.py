"""Checkpoints of TensorFlow of every kind, written by make_tensorflow.py, which tells what is in them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

_FOLDER = Path(__file__).parent / "tensorflow"
NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.zip")))


def unpack(name: str, folder: Path) -> Path:
    """Unpack the folder of one checkpoint into a new folder within `folder`, and return it."""
    with zipfile.ZipFile(_FOLDER / f"{name}.zip") as archive:
        archive.extractall(folder / name)
    return folder / name / "run"


def expected(name: str) -> dict[str, np.ndarray[Any, Any] | list[bytes]]:
    """Return the arrays by the names of variables or the paths of objects; of text, a flat list."""
    with zipfile.ZipFile(_FOLDER / f"{name}.zip") as archive, archive.open("expected.npz") as file:
        stored = np.load(file)
        return {key: _texts(stored[key]) if stored[key].dtype.kind == "S" else stored[key] for key in stored.files}


def _texts(stored: np.ndarray[Any, Any]) -> list[bytes]:
    data, found, at = stored.tobytes(), [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        found.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return found
