"""Parity over device counts: sound models pass, and each kind of real difference is found where it began."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from anyrig.cli.main import run
from anyrig.testing import RunCase, same_runs
from anyrig.train.parity.report import Report, Tensor

MODELS = Path(__file__).with_name("parity_models.py")
ALWAYS = (
    "sound",
    "later",
    "metric",
    "validation",
    "own step",
    "data",
    "refused",
    "one device",
    "crash",
    "after the crash",
)
DIFFERENT = {
    "call": (1, "scaled (Odd, your own class)", "its call gives other outputs for the same inputs and weights"),
    "block": (1, "block (OddBlock, your own class)", "it gives block/inner (Dense) other inputs though its own are"),
    "gradient": (1, "first", "the gradient of model/first/bias differs though all outputs are the same"),
    "state": (1, "counter", "the layer moves its own state model/counter/calls differently"),
    "initial": (0, "started", "the initial weights differ"),
    "loss": (1, None, "the loss has other values for the same outputs"),
    "metric": (1, None, "only what is logged differs (odd_metric)"),
    "later": (3, "first", "What is left is the update"),
    "validation": (3, None, "only what is logged differs (val_loss)"),
    "own step": (1, "first", "each device runs the model's step whole on its own rows"),
    "data": (1, None, "the data: the step is given other rows"),
}
RECIPE = f"""
model: {MODELS}:build_sound
data: {{train: {{npz: rows.npz}}}}
batch: {{global_size: 8}}
epochs: 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for temporary files of these tests, which is empty again at their end."""
    folder = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, folder: Path) -> dict[str, Report]:
    """The report of each case of the table, or of a sample, over one process for each device count."""
    others = [name for name in DIFFERENT if name not in ALWAYS]
    if not request.config.option.full:
        others = Random(request.config.option.seed).sample(others, 1)
    cases = {
        name: RunCase(
            function=f"{MODELS}:case",
            arguments={"name": name},
            steps=3,
            virtual_replicas=2,
            batch_size=None if name == "data" else 8,
        )
        for name in (*others, *ALWAYS)
    }
    return same_runs(cases, devices=(1, 2))


@pytest.mark.timeout(900)
def test_a_sound_model_is_the_same_in_one_line(reports: dict[str, Report]) -> None:
    report = reports["sound"]
    assert report.same
    assert (
        str(report)
        == "sound: the same bytes in all 27 tensors after each of 3 steps, the same logs (on 1 and 2 devices, V = 2)"
    )


def test_a_difference_is_found_where_it_began(reports: dict[str, Report]) -> None:
    tried = DIFFERENT.keys() & reports.keys()
    assert len(tried) >= 4
    for name in tried:
        report, (step, layer, cause) = reports[name], DIFFERENT[name]
        assert not report.same
        assert report.origin is not None
        assert (report.origin.step, report.origin.layer) == (step, layer), name
        assert cause in report.origin.cause
        assert ("two runs on the same devices differ too" in report.origin.cause) == (name == "data")


def test_what_differs_is_measured(reports: dict[str, Report]) -> None:
    tensors = {tensor.name: tensor for tensor in reports["metric"].tensors}
    total = tensors["metrics/odd_metric/total"]
    assert (total.first_step, total.devices) == (1, (2,))
    assert total.largest is not None
    assert 0.1 < total.largest < 100
    assert tensors["metrics/loss/total"] == Tensor(name="metrics/loss/total")
    # Data without a seed is other data in the run that measures, where one tensor or another may happen to be equal.
    assert any(tensor.largest for tensor in reports["data"].differing)


def test_an_error_of_fit_is_the_verdict(reports: dict[str, Report]) -> None:
    refused = reports["refused"]
    assert not refused.same
    assert refused.refused is not None
    assert "draws random numbers without a key" in refused.refused
    assert "[ANY-TRAIN-006]" in str(refused)
    alone = reports["one device"]
    assert alone.refused is None
    assert [devices for devices, _ in alone.problems] == [2]
    assert "only one device, please" in str(alone)
    assert not alone.same


def test_a_crash_leaves_the_earlier_cases_their_reports(reports: dict[str, Report]) -> None:
    assert "exit code 9" in str(reports["crash"])
    assert "not run: in crash" in str(reports["after the crash"])


@pytest.mark.timeout(600)
def test_the_command_says_that_all_is_the_same(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = _recipe(tmp_path)
    assert run(["parity", recipe, "--devices", "1,2", "--steps", "2", "--json"], debug=False) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same"] is True
    assert found["virtual_replicas"] == 2
    assert len(found["tensors"]) == 27 + len(["history/loss", "history/mae"])
    assert "sets no batch.virtual_replicas" in found["notes"][0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recipe.yaml", "rows.npz"]


@pytest.mark.timeout(600)
def test_the_command_finds_a_real_difference(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = _recipe(tmp_path)
    arguments = ["parity", recipe, f"model={MODELS}:build_odd", "--devices", "2,1", "--virtual-replicas", "3"]
    assert run([*arguments, "--steps", "1"], debug=False) == 3
    told = capsys.readouterr()
    assert "on 2 and 1 devices, V = 3" in told.out
    assert "began         at step 1, in scaled (Odd, your own class)" in told.out
    assert "likely cause  its call gives other outputs" in told.out
    assert "[ANY-PARITY-006]" in told.err


def _recipe(folder: Path) -> str:
    generator = np.random.default_rng(0)
    rows = {name: generator.normal(size=(20, size)).astype("float32") for name, size in (("x", 5), ("y", 1))}
    np.savez(folder / "rows.npz", **rows)  # type: ignore[arg-type]
    path = folder / "recipe.yaml"
    path.write_text(RECIPE)
    return str(path)
