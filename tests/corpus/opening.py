"""What becomes of a file of the corpus when it is opened: equal outputs, and equal weights after one more step."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from anyrig.errors import AnyrigError
from anyrig.exchange.open import open_model, open_with_report
from anyrig.exchange.trust import Trust
from anyrig.formats.sniff import read_any

DESCRIBED = ("model.keras", "model.h5")
NO_VOCABULARY = "no vocabulary"


@dataclass(frozen=True)
class Outcome:
    """`how`: "model", "filled" (a model that the user builds), "predicts", or why not: mostly the code of an error.

    `outputs` is the largest difference from those of the writer, relative to the largest one; `step` the largest
    difference of a weight after one more training step, None where no optimizer is to be had; `kept` whether every
    slot of the optimizer was in the file.
    """

    how: str
    outputs: float | None = None
    step: float | None = None
    kept: bool | None = None


def outcome(corpus: ModuleType, name: str, folder: Path, file: str) -> Outcome:
    """Open one file of an unpacked model; one of weights alone fills the model that its `.keras` or `.h5` describes."""
    keras.backend.clear_session()
    contents = read_any(folder / file)
    alone = contents.config is None and contents.format != "savedmodel"
    trust: Trust = "program" if contents.format == "savedmodel" and contents.config is None else "known"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            into = blank(folder) if alone else None
            found = open_with_report(folder / file, trust=trust, into=into)
    except AnyrigError as error:
        return Outcome(error.code)
    model, slots = found.model, [name for name in found.report.started if not name.endswith("/learning_rate")]
    try:
        outputs = difference(predicted(model, fed(corpus, name)), corpus.expected(name, "outputs"))
    except tf.errors.FailedPreconditionError:
        return Outcome(NO_VOCABULARY)
    if not isinstance(model, keras.Model):
        return Outcome("predicts", outputs)
    if alone or not model.compiled:
        return Outcome("filled" if alone else "model", outputs)
    return Outcome("model", outputs, after_a_step(corpus, name, model), not slots)


def blank(folder: Path) -> Any:
    """Return the model of an unpacked folder, with zeros for weights, as a stand-in for one that the user builds."""
    model = open_model(next(folder / file for file in DESCRIBED if (folder / file).exists()))
    for variable in model.weights:
        variable.assign(keras.ops.zeros_like(variable))
    return model


def predicted(model: Any, rows: Any) -> Any:
    """Return what a model predicts, or what a SavedModel does, which takes rows by the names of its inputs."""
    if isinstance(model, keras.Model):
        return model.predict(rows, verbose=0)
    served = next(each for each in model.signatures if each.name == "serving_default")
    names = [end.name for end in served.inputs]
    return model.predict(dict(zip(names, rows, strict=True)) if isinstance(rows, list) else rows)


def fed(corpus: ModuleType, name: str) -> Any:
    """Return the inputs of a model as `predict` takes them."""
    values = corpus.expected(name, "inputs").values()
    given = [tf.constant(value) if value.dtype.kind == "U" else value for value in values]
    return given[0] if len(given) == 1 else given


def after_a_step(corpus: ModuleType, name: str, model: Any) -> float:
    """Train one batch, and return how far the weights are from those of the writer after the same step."""
    targets = list(corpus.expected(name, "targets").values())
    model.train_on_batch(fed(corpus, name), targets[0] if len(targets) == 1 else targets)
    kept = [variable for variable in model.weights if "seed_generator" not in variable.path]
    wanted = [array for path, array in corpus.expected(name, "after").items() if "seed_generator" not in path]
    return max(distance(keras.ops.convert_to_numpy(v), array) for v, array in zip(kept, wanted, strict=True))


def difference(outputs: Any, wanted: dict[str, np.ndarray[Any, Any]]) -> float:
    """Return the largest relative difference between outputs and those that are wanted."""
    found = (
        [outputs[name] for name in sorted(outputs)]
        if isinstance(outputs, dict)
        else outputs
        if isinstance(outputs, list)
        else [outputs]
    )
    return max(distance(np.asarray(one), other) for one, other in zip(found, wanted.values(), strict=True))


def distance(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Return the largest difference, relative to the largest number (or to 1)."""
    assert one.shape == other.shape
    if not other.size:
        return 0.0
    wide, wanted = one.astype(np.float64), other.astype(np.float64)
    return float(np.abs(wide - wanted).max() / max(1.0, np.abs(wanted).max()))
