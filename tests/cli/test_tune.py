"""`anyrig tune lr` on the recipe of the other commands: what it prints, draws, and leaves alone."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from anyrig.report.plot import plot_rates
from tests.cli.conftest import Command, Several, command

LINES = {
    "told": "tune lr cats.yaml --devices 1 --steps 8 --min 1e-4 --max 1e-2",
    "json": "tune lr cats.yaml --devices 1 --steps 8 --min 1e-4 --max 1e-2 --json",
    "svg": "tune lr cats.yaml --devices 1 --steps 2 --plot curve.svg compile.optimizer=sgd",
    "no range": "tune lr cats.yaml --devices 1 --min 1 --max 1",
}


@pytest.fixture(scope="module")
def tuned(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Several:
    return Several(Path(shutil.copytree(trained, tmp_path_factory.mktemp("tune") / "folder")), LINES)


def test_the_rate_to_type_is_told_and_the_curve_is_drawn(tuned: Several) -> None:
    code, out, err = tuned["told"]
    assert (code, err) == (0, "")
    assert "8 steps at 1.0e-04 to 1.0e-02, and the loss did not diverge" in out
    found = json.loads(tuned["json"][1])
    assert f"anyrig train cats.yaml compile.optimizer.adam.learning_rate={found['suggested']:g}" in out
    assert (tuned.folder / "cats-lr.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tuned.folder / "curve.svg").read_bytes()


def test_json_holds_every_step_and_draws_nothing(tuned: Several) -> None:
    found = json.loads(tuned["json"][1])
    assert len(found["rates"]) == len(found["losses"]) == len(found["smoothed"]) == 8
    assert found["plot"] is None


def test_two_devices_measure_the_same(tuned: Several) -> None:
    assert (
        command(*LINES["json"].replace("--devices 1", "--devices 2").split(), cwd=tuned.folder).stdout
        == (tuned["json"][1])
    )


def test_what_makes_no_range_is_refused(tuned: Several) -> None:
    assert tuned["no range"][0] == 2
    assert "0 < lowest < highest" in tuned["no range"][2]


def test_nothing_else_is_written(tuned: Several) -> None:
    after = {path for path in tuned.folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path.name for path in after - tuned.before.keys()} == {"cats-lr.png", "curve.svg"}
    assert all(path.read_bytes() == content for path, content in tuned.before.items())


def test_a_missing_matplotlib_is_told_before_anything_is_trained(
    anyrig: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "r.yaml").write_text("{model: a.py:f, epochs: 1, data: {train: {npz: a.npz}}}")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = anyrig("tune", "lr", tmp_path / "r.yaml")
    assert result.code == 2
    assert "pip install 'anyrig[report]'" in result.err


def test_a_curve_with_losses_that_are_not_finite_is_drawn(tmp_path: Path) -> None:
    nan = float("nan")
    plot_rates(tmp_path / "curve.png", [1e-3, 1e-2, 1e-1], [2.0, 1.0, nan], [2.0, 1.5, nan], {"suggested": None})
    assert (tmp_path / "curve.png").stat().st_size > 1000
