"""Models in the layouts of Keras 1, put together by make_keras1.py, which tells what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "keras1"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.h5")))


def expected(name: str, kind: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of one kind by number: `inputs`, `outputs`, or `weight` in the order of `get_weights()`."""
    with np.load(FOLDER / f"{name}.npz") as stored:
        found = {key.partition("/")[2] or "0": stored[key] for key in stored.files if key.partition("/")[0] == kind}
    return dict(sorted(found.items()))
