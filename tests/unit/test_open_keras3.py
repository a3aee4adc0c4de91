"""Every file that Keras 3 writes of a model opens as that model: equal outputs, and the next training step is equal."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import anyrig
from anyrig.cli.main import run
from tests.corpus import keras3
from tests.corpus.opening import NO_VOCABULARY, Outcome, outcome

FILLED = ("model.weights.h5", "sharded.weights.json", "checkpoint")
OTHERWISE = {
    ("mixed", "model.h5"): "ANY-MAP-001",  # bfloat16 is written there without its type
    ("words", "model.h5"): NO_VOCABULARY,
}


@pytest.mark.sampled(26)
@pytest.mark.parametrize("file", keras3.FILES)
@pytest.mark.parametrize("name", keras3.NAMES)
def test_a_file_of_keras_3_opens_as_its_model(tmp_path: Path, name: str, file: str) -> None:
    found = outcome(keras3, name, keras3.unpack(name, tmp_path), file)
    if (name, file) in OTHERWISE:
        assert found == Outcome(OTHERWISE[name, file])
        return
    assert found.how == ("filled" if file in FILLED else "predicts" if file == "saved_model" else "model")
    assert found.outputs is not None
    assert found.outputs < 1e-6
    assert (found.step is not None) == (found.how == "model")
    assert (found.step or 0) < 1e-6


@pytest.mark.parametrize("name", ["attention", "bidirectional", "mixed", "nested", "shared"])
def test_explain_says_of_a_file_what_opening_it_does(tmp_path: Path, name: str) -> None:
    folder = keras3.unpack(name, tmp_path)
    build = tmp_path / "build.py"
    build.write_text(
        f"import anyrig\n\n\ndef build():\n    return anyrig.open_model({str(folder / 'model.keras')!r})\n"
    )
    for file in ("model.keras", "model.h5", *FILLED):
        try:
            anyrig.open_model(folder / file, into=anyrig.open_model(folder / "model.keras"))
            opens = 0
        except anyrig.AnyrigError:
            opens = 3
        assert run(["explain", str(folder / file), f"{build}:build"], debug=False) == opens


def test_a_folder_of_orbax_opens_as_the_model_with_its_optimizer() -> None:
    """Keras itself gives random weights for such a folder of a Sequential model."""
    others = Path(__file__).parents[1] / "corpus" / "others"
    expected = np.load(others / "expected.npz")
    keras.backend.clear_session()  # the names of optimizers are counted
    model = anyrig.open_model(others / "orbax")
    for kind, variables in (("weight", model.weights), ("optimizer", model.optimizer.variables)):
        for variable in variables:
            assert np.array_equal(keras.ops.convert_to_numpy(variable), expected[f"{kind}/{variable.path}"])
    assert int(model.optimizer.iterations) == 2
