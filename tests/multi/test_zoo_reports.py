"""What users reported of other tools does not happen here: training on several devices, mixed precision, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anyrig.testing.processes import run_python

STEPS = 6  # two epochs of 34 rows in batches of 13


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_python(Path(__file__).with_name("zoo_reports.py"), tmp_path_factory.mktemp("runs"), timeout=280).json()


def test_B065_a_resumed_schedule_goes_on_at_its_step(found: Any) -> None:
    outcome = found["schedule_and_averages"]
    assert outcome["differing"] == []
    assert outcome["iterations"] == STEPS
    assert outcome["rates"][0] == outcome["rates"][1]


def test_B080_averages_are_stored_beside_the_weights(found: Any) -> None:
    checksums = found["schedule_and_averages"]["stopped"]
    averages = {name: value for name, value in checksums.items() if name.startswith("ema/")}
    assert len(averages) == 6
    assert all(checksums[name.replace("ema/", "model/", 1)] != value for name, value in averages.items())


def test_B076_B077_a_resumed_loss_scale_goes_on_as_it_was(found: Any) -> None:
    outcome = found["loss_scale"]
    assert outcome["differing"] == []
    assert any("loss_scale" in name or "dynamic_scale" in name for name in outcome["stopped"])


def test_B100_B127_a_model_made_outside_trains_on_two_devices_to_the_same_bytes(found: Any) -> None:
    inside, outside = found["made_outside"]["digests"]
    assert inside == outside


def test_B101_B105_a_saved_model_predicts_and_goes_on_as_the_trained_one(found: Any) -> None:
    assert found["made_outside"]["predicts alike"] is True
    assert found["made_outside"]["iterations"] == STEPS


def test_B107_many_moving_averages_do_not_slow_a_save(found: Any) -> None:
    outcome = found["many_batch_norms"]
    assert outcome["tensors"] > 6 * 60
    assert outcome["seconds"] < 5
