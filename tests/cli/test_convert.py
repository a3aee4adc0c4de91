"""`anyrig convert` as a user types it: the proof it prints, what it refuses, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anyrig.testing.processes import run_python

_MAKE_AND_RUN = """
import contextlib, io, json, sys
import keras, numpy as np
def build():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "relu"), keras.layers.Dense(2)])
model = build()
model.compile("adam", "mse")
model.fit(np.ones((8, 4)), np.ones((8, 2)), verbose=0)
model.save("a.keras")
with open("build.py", "w") as file:
    file.write("import keras\\ndef build():\\n    return keras.Sequential([keras.Input((4,)), "
               "keras.layers.Dense(3, 'relu'), keras.layers.Dense(2)])\\n")
from anyrig.cli.main import run
results = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["convert", *arguments], debug=False)
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""
COMMANDS = [
    ["a.keras", "b.h5"],
    ["b.h5", "c.safetensors", "--json"],
    ["c.safetensors", "d.keras"],
    ["c.safetensors", "d.keras", "--into", "build.py:build"],
    ["a.keras", "e.tflite"],
    ["a.keras", "e.tflite", "--lossy"],
    ["a.keras", "f.pt"],
    ["nothing.keras", "g.keras"],
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str, str]]:
    folder = tmp_path_factory.mktemp("convert")
    found = run_python(_MAKE_AND_RUN, json.dumps(COMMANDS), cwd=folder).json()
    assert sorted(path.name for path in Path(folder).iterdir()) == [
        *("a.keras", "b.h5", "build.py", "c.safetensors", "d.keras", "e.tflite"),
    ]
    return [tuple(item) for item in found]


def test_exit_codes(results: list[tuple[int, str, str]]) -> None:
    assert [code for code, _, _ in results] == [0, 0, 2, 0, 2, 0, 2, 2]


def test_what_is_proved_is_told(results: list[tuple[int, str, str]]) -> None:
    _, first, _ = results[0]
    assert "arrays   4 read back, the same bytes" in first
    assert "outputs  the same bytes on 4 random rows" in first
    assert "a.keras xxh3-128 " in first
    told = json.loads(results[1][1])
    assert (told["arrays_equal"], told["difference"], told["target_format"]) == (4, 0.0, "safetensors")


def test_refusals_say_what_to_type(results: list[tuple[int, str, str]]) -> None:
    assert "--into FILE.py:FUNCTION" in results[2][2]
    assert "It would lose: the optimizer (Adam, 1 updates)" in results[4][2]
    assert "left out   the optimizer (Adam, 1 updates)" in results[5][1]
    assert "ANY-CONVERT-001" in results[6][2]
