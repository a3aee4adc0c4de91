"""What becomes of a published file when it is opened; the expected outputs are those of make_published.py."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np

from anyrig.errors import AnyrigError
from anyrig.exchange.open import open_model
from tests.corpus import musicnn
from tests.corpus.opening import Outcome, distance
from tests.unit.test_published_models import EXPECTED, TAGGED, nuggets


def outcome_of(package: str, path: Path) -> Outcome:
    """Open one file, fill the model of its authors if it has weights alone, and compare the outputs that are known."""
    keras.backend.clear_session()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if package == "guesslang":
                return _predicts(open_model(path, trust="program"))
            if package == "musicnn":
                return _tags(path)
            model = open_model(path, into=nuggets if package == "mhcnuggets" else None)
    except AnyrigError as error:
        return Outcome(error.code)
    how, key = "filled" if package == "mhcnuggets" else "model", f"{package}/{path.name}"
    if key not in EXPECTED.files:
        return Outcome(how)
    found = keras.ops.convert_to_numpy(model(_rows(package), training=False))
    return Outcome(how, distance(found, EXPECTED[key]))


def _predicts(model: Any) -> Outcome:
    scores = model.predict(np.array(["import os\nprint(os.getcwd())\n"]), signature="serving_default")["scores"]
    assert np.isclose(scores.sum(), 1, atol=1e-3)
    return Outcome("predicts")


def _tags(path: Path) -> Outcome:
    name = path.parent.name
    model = open_model(path, into=musicnn.built(name), rules=musicnn.RULES)
    found = keras.ops.convert_to_numpy(model(TAGGED["inputs"] / 10, training=False))
    return Outcome("filled", distance(found, TAGGED[name]))


def _rows(package: str) -> Any:
    stored = EXPECTED[f"{package}/inputs"]
    if package == "spliceai":
        return np.eye(4, dtype="float32")[stored][None]
    return stored / 127.5 - 1.0 if package == "fer" else stored
