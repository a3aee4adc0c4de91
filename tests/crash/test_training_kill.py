"""kill -9 at random moments of real training that saves every step in the background, over and over in one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from anyrig.testing.processes import run_python
from tests.crash.conftest import Measured

KILLS, KILLS_IN_FULL = 10, 200


@pytest.mark.timeout(7200)
def test_U04_U05_kill_at_random_moments_of_training(place: Path, seed: int, full: bool, measured: Measured) -> None:
    program, kills = Path(__file__).with_name("killed_training.py"), KILLS_IN_FULL if full else KILLS
    root = Path(__file__).parents[2]
    found = run_python(program, place, kills, seed, env={"PYTHONPATH": f"{root / 'src'}:{root}"}, timeout=7000).json()
    assert found["kills"] == sum(found["when"].values()) == kills
    assert found["steps"] >= kills / 2, "it went on between kills"
    assert found["different"] == [], "steps whose state is not that of a run that nobody disturbed"
    assert found["clean"] is True
    for fault, outcomes in found.pop("own").items():
        assert outcomes["as before"] > 2
        tried, action = sum(outcomes.values()), "`anyrig.save` over a checkpoint"
        measured("walks", action=action, fault=fault, tried=tried, outcomes=outcomes)
    measured("training", **found)
