"""Models of Keras 3 in all its formats, written by make_keras3.py, which tells what is in them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

_FOLDER = Path(__file__).parent / "keras3"
NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.zip")))
FILES = ("model.keras", "unzipped", "model.weights.h5", "model.h5", "sharded.weights.json", "saved_model", "checkpoint")
"""Under these names in the folder that `unpack` returns; the last is the prefix of a `tf.train.Checkpoint`."""


def unpack(name: str, folder: Path) -> Path:
    """Unpack the files of one model, and its archive as the folder `unzipped`, into a new folder within `folder`."""
    with zipfile.ZipFile(_FOLDER / f"{name}.zip") as archive:
        archive.extractall(folder / name)
    with zipfile.ZipFile(folder / name / "model.keras") as archive:
        archive.extractall(folder / name / "unzipped")
    return folder / name


def expected(name: str, kind: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of one kind, by the rest of their names, in order.

    `inputs` (of `words`, text), `outputs`, `targets` by number; `weight`, `optimizer`, `after` by number and path.
    bfloat16 is given as float32.
    """
    with zipfile.ZipFile(_FOLDER / f"{name}.zip") as archive, archive.open("expected.npz") as file:
        stored = np.load(file)
        return {key.removeprefix(f"{kind}/"): stored[key] for key in stored.files if key.startswith(f"{kind}/")}
