"""What a model takes: as recorded, as its rows are, and in words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from anyrig.errors import UsageError
from anyrig.train.recipe.specs import (
    InputSpec,
    build_for,
    describe_inputs,
    first_line,
    inputs_of,
    inputs_of_rows,
    recorded_inputs,
)

IMAGE = InputSpec((None, 8, 8, 1), "float32")
USER, ITEM = InputSpec((None,), "int64"), InputSpec((None, None, 3), "float32")
LEAF = {"shape": [None, 8, 8, 1], "dtype": "float32"}
NAMED = {"user": {"shape": [None], "dtype": "int64"}, "item": {"shape": [None, None, 3], "dtype": "float32"}}


@pytest.mark.parametrize(
    ("stored", "inputs"),
    [
        (LEAF, IMAGE),
        (NAMED, {"user": USER, "item": ITEM}),
        ([LEAF, [LEAF]], [IMAGE, [IMAGE]]),
        ({"shape": LEAF, "dtype": LEAF}, {"shape": IMAGE, "dtype": IMAGE}),
        (None, None),
    ],
)
def test_recorded_inputs(stored: Any, inputs: Any) -> None:
    assert recorded_inputs({"inputs": stored}) == inputs
    assert recorded_inputs({}) is None


def test_rows_as_inputs() -> None:
    rows = {"a": np.zeros((5, 8, 8, 1)), "b": [np.zeros(5, "int64")]}
    assert inputs_of_rows(rows) == {"a": IMAGE, "b": [USER]}


def test_words() -> None:
    assert describe_inputs(IMAGE) == "8 x 8 x 1 (float32)"
    assert describe_inputs({"user": USER, "item": ITEM}) == "user: one value (int64), item: any x 3 (float32)"
    assert describe_inputs([USER, USER]) == "[one value (int64), one value (int64)]"


def test_a_model_says_itself_which_sizes_are_free_and_the_record_which_names_there_are() -> None:
    free = SimpleNamespace(inputs=[SimpleNamespace(name="x", shape=(None, None, None, 1), dtype="float32")])
    assert inputs_of(free, {"inputs": LEAF}) == InputSpec((None, None, None, 1), "float32")
    assert inputs_of(SimpleNamespace(), {"inputs": LEAF}) == IMAGE
    assert inputs_of(SimpleNamespace(), {}) is None
    pair = SimpleNamespace(inputs=[SimpleNamespace(name=n, shape=(None,), dtype="int64") for n in ("user", "item")])
    assert inputs_of(pair, {"inputs": [LEAF, LEAF]}) == {"user": USER, "item": USER}
    assert inputs_of(pair, {"inputs": NAMED}) == {"user": USER, "item": ITEM}


def test_a_model_that_cannot_be_called_is_told_in_a_line() -> None:
    class Wide(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = keras.layers.Conv2D(2, 3)

        def call(self, x: Any) -> Any:
            return self.convolution(x)

    build_for(Wide(), IMAGE, name="wide")
    with pytest.raises(UsageError, match=r"model: wide cannot be called .* one value \(int64\): ValueError: Input 0"):
        build_for(Wide(), USER, name="wide")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("what\nmore", "ValueError: what"),
        ("", "ValueError"),
        ("Exception encountered when calling A.call().\n\n\x1b[1mwhat\x1b[0m\n\nArguments", "ValueError: what"),
        (
            'Graph execution error:\n\nDetected at node a\n  File "x.py", line 3\n  <stack>\nwhat\n[[a]]',
            "ValueError: what",
        ),
    ],
)
def test_the_line_that_says_what_happened(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line
