"""Whether a written file predicts what its model predicts: exactly where Keras runs it, else within a tolerance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

from anyrig.errors import CheckFailed, UsageError
from anyrig.exchange.rerun import Unable, outputs_of
from anyrig.exchange.targets import Target

TOLERANCE = 1e-5
"""Of the largest output: what formats that compute otherwise (ONNX, LiteRT, compiled graphs) may differ by."""
_EXACT = frozenset(["keras", "keras-h5", "keras-weights", "safetensors", "tensorflow-checkpoint"])


class Proof:
    """Compares the outputs of a written file with those of the model that it was written from."""

    def __init__(self, model: keras.Model, rows: Any) -> None:
        self.model = model
        self.rows = rows
        self.expected = [] if rows is None else _predicted(model, rows)
        self.difference: float | None = None
        self.tolerance = 0.0
        self.notes: tuple[str, ...] = ()

    def check(self, target: Target, written: Path) -> None:
        """Raise ANY-CONVERT-006 unless what was written predicts the same."""
        if self.rows is None:
            self.notes = ("outputs were not compared: the model does not say what its inputs are; give a sample",)
            return
        try:
            found = keras.tree.flatten(outputs_of(target.format, written, self.model, self.rows))
        except Unable as reason:
            self.notes = (f"outputs were not compared: {reason}",)
            return
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise self._refused(target, f"it does not run: {type(error).__name__}: {first}") from error
        self.difference = largest_difference(self.expected, found)
        self.tolerance = 0.0 if target.format in _EXACT else TOLERANCE * _largest(self.expected)
        if not self.difference <= self.tolerance:
            raise self._refused(target, f"its outputs differ by up to {self.difference:.3g}")

    def _refused(self, target: Target, what: str) -> CheckFailed:
        return CheckFailed(
            "ANY-CONVERT-006",
            f"the model was made {target.words}, which does not predict the same: {what}. Nothing was written",
            hint="write a .keras file or .safetensors; to write this one all the same, unproved: anyrig.save_model",
        )


def _predicted(model: keras.Model, rows: Any) -> list[Any]:
    try:
        return keras.tree.flatten(model.predict(rows, verbose=0))
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise UsageError(
            "ANY-CONVERT-010",
            f"the model does not predict the sample: {type(error).__name__}: {first}",
            hint="give rows as the model takes them, or none: random ones are made",
        ) from error


def largest_difference(left: list[Any], right: list[Any]) -> float:
    """Return the largest difference between two lists of arrays; equal NaN and infinities do not differ."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(left, right, strict=False)]
    if len(left) != len(right) or any(a.shape != b.shape for a, b in pairs):
        return float("inf")
    return max((_difference(a, b) for a, b in pairs), default=0.0)


def _difference(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    if left.dtype.kind not in "biuf" and left.dtype.name != "bfloat16":
        return 0.0 if np.array_equal(left, right) else float("inf")
    left, right = left.astype(np.float64), right.astype(np.float64)
    differing = ~((left == right) | (np.isnan(left) & np.isnan(right)))
    apart = np.abs(left[differing] - right[differing])
    return float(np.max(np.where(np.isnan(apart), np.inf, apart), initial=0.0))


def _largest(arrays: list[Any]) -> float:
    numbers = [np.abs(np.asarray(array, np.float64)) for array in arrays if np.asarray(array).dtype.kind in "biuf"]
    return float(max((np.max(each[np.isfinite(each)], initial=0.0) for each in numbers), default=1.0))
