"""`anyrig predict` and `anyrig evaluate` on what other programs wrote, as a user types it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from anyrig.testing.processes import run_python

_MAKE_AND_RUN = """
import contextlib, io, json, sys
import keras, numpy as np
generator = np.random.default_rng(0)
x, y = generator.normal(size=(8, 4)).astype("float32"), generator.normal(size=(8, 2)).astype("float32")
np.savez("rows.npz", x=x, y=y)
np.savez("wide.npz", x=np.ones((8, 5), "float32"))
with open("build.py", "w") as file:
    file.write("import keras\\ndef build():\\n    return keras.Sequential("
               "[keras.Input((4,)), keras.layers.Dense(2)])\\n")
with open("recipe.yaml", "w") as file:
    file.write("model: build.py:build\\ndata: {train: {npz: rows.npz}, validation: {npz: rows.npz}}\\n"
               "epochs: 1\\ncompile: {optimizer: adam, loss: mse}\\n")
import build
with open("renamed.py", "w") as file:
    file.write("import keras\\ndef build():\\n    return keras.Sequential("
               "[keras.Input((4,)), keras.layers.Dense(2, name='other')])\\n"
               "def wider():\\n    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])\\n")
with open("rules.yaml", "w") as file:
    file.write("version: 1\\nrules: [{from: dense/sequential/dense/*, to: model/other/*}]\\n")
model = build.build()
model.compile("adam", "mse")
model.save("a.keras"); model.save("a.h5"); model.save_weights("a.weights.h5"); model.export("served", verbose=False)
build.build().save("plain.keras")
words = keras.Input((), dtype="string")
lookup = keras.layers.StringLookup(name="words")
lookup.adapt(["a", "b"])
keras.Model(words, lookup(words)).save("words.h5")
from anyrig.cli.main import run
results = {}
for line in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(line.split(), debug=False)
    results[line] = [code, out.getvalue(), err.getvalue()]
print(json.dumps({"results": results, "predicted": model.predict(x, verbose=0).tolist(),
                  "loss": float(model.evaluate(x, y, verbose=0))}))
"""
PREDICTED = [
    "predict a.keras rows.npz --json",
    "predict a.h5 rows.npz --json",
    "predict served rows.npz --trust program --json",
    "predict a.weights.h5 rows.npz --into build.py:build --json",
    "predict a.weights.h5 rows.npz --recipe recipe.yaml --json",
    "predict a.h5 rows.npz --into renamed.py:build --rules rules.yaml --json",
]
EVALUATED = [
    "evaluate a.keras --data rows.npz --json",
    "evaluate a.h5 --data rows.npz --json",
    "evaluate a.weights.h5 --into build.py:build --recipe recipe.yaml --json",
    "evaluate a.weights.h5 --recipe recipe.yaml --json",
    "evaluate plain.keras --recipe recipe.yaml --json",
    "evaluate a.h5 --recipe recipe.yaml --into renamed.py:build --rules rules.yaml --json",
]
REFUSED = {
    "predict served rows.npz": ("ANY-OPEN-003", "--trust program"),
    "predict served wide.npz --trust program": (
        "ANY-CLI-012",
        "takes rows of 4 (float32); given are rows of 5 (float32)",
    ),
    "predict a.weights.h5 rows.npz": ("ANY-OPEN-040", "--into FILE.py:FUNCTION"),
    "predict nothing.keras rows.npz": ("ANY-LOAD-001", "does not exist"),
    "predict rows.npz rows.npz": ("ANY-OPEN-040", "no description of a model"),
    "evaluate plain.keras --data rows.npz": ("ANY-CLI-016", "--recipe RECIPE"),
    "evaluate served --trust program --recipe recipe.yaml": ("ANY-CLI-016", "anyrig predict"),
    "evaluate a.keras": ("ANY-CLI-011", "--data FILE.npz"),
}
WIDER = "predict a.h5 rows.npz --into renamed.py:wider"
WORDS = "predict words.h5 rows.npz --key x"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    commands = json.dumps([*PREDICTED, *EVALUATED, *REFUSED, WORDS, WIDER])
    answer: dict[str, Any] = run_python(_MAKE_AND_RUN, commands, cwd=tmp_path_factory.mktemp("files")).json()
    return answer


@pytest.mark.parametrize("line", PREDICTED)
def test_outputs_are_those_of_the_model_that_was_written(found: dict[str, Any], line: str) -> None:
    code, out, err = found["results"][line]
    assert code == 0, err
    outputs = np.array([row["output"] for row in json.loads(out)], np.float32)
    assert np.abs(outputs - np.array(found["predicted"])).max() < 1e-6


@pytest.mark.parametrize("line", EVALUATED)
def test_the_loss_is_that_of_the_model_or_of_the_recipe(found: dict[str, Any], line: str) -> None:
    code, out, _ = found["results"][line]
    assert code == 0
    assert line.startswith("evaluate plain") or json.loads(out)["loss"] == pytest.approx(found["loss"], rel=1e-5)


@pytest.mark.parametrize("line", REFUSED)
def test_what_is_missing_is_named_with_what_to_type(found: dict[str, Any], line: str) -> None:
    code, out, err = found["results"][line]
    assert (code, out) == (2, "")
    for words in REFUSED[line]:
        assert words in err


def test_what_to_type_next_names_the_function_that_was_typed(found: dict[str, Any]) -> None:
    code, _, err = found["results"][WIDER]
    assert (code, "anyrig explain a.h5 renamed.py:wider" in err) == (1, True)


def test_U07_a_vocabulary_that_the_file_never_had_is_told_at_once(found: dict[str, Any]) -> None:
    _, _, err = found["results"][WORDS]
    assert "the file holds no vocabulary of words: give it with adapt() or set_vocabulary()" in err
