"""Models with their own `train_step`: run as Keras runs them, carried on exactly on the same devices, and at all on
others. (B097: a GAN of two models and two optimizers on several devices; B105: BatchNorm under MirroredStrategy.)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anyrig.testing.processes import run_python

PROGRAM = Path(__file__).with_name("own_steps.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("own_steps")
    return {devices: run_python(PROGRAM, devices, folder, timeout=280).json() for devices in (2, 1)}


@pytest.mark.parametrize("devices", [1, 2])
def test_B126_a_stopped_run_carried_on_has_the_bytes_of_an_uninterrupted_one(found: Any, devices: int) -> None:
    assert found[devices]["resumed_equals_whole"]


def test_every_optimizer_is_in_the_checkpoint_under_its_attribute(found: Any) -> None:
    names = found[2]["names"]
    assert names == found[1]["names"]
    assert "optimizer/optimizers.d/discriminator/dense.0/kernel/velocity" in names
    assert "optimizer/optimizers.g/generator/dense.0/kernel/momentum" in names
    assert not [name for name in names if name.startswith("optimizer/main")]


def test_two_devices_hold_a_copy_each_and_one_state_describes_both(found: Any) -> None:
    assert (found[1]["copies"], found[2]["copies"]) == (1, 2)
    assert found[2]["statistics_agree"]


def test_B125_a_checkpoint_of_two_devices_is_the_same_on_one(found: Any) -> None:
    assert found[1]["restored"]


def test_one_device_equals_keras_fit(found: Any) -> None:
    assert found[1]["keras"] == 0
    assert all(ours == theirs for ours, theirs in found[1]["keras_history"].values())


@pytest.mark.parametrize("devices", [1, 2])
def test_logs_and_predictions_are_those_of_the_models_own_steps(found: Any, devices: int) -> None:
    assert found[devices]["logs"] == ["error", "val_error"]
    assert found[devices]["predict"] < 1e-6


@pytest.mark.parametrize("devices", [1, 2])
def test_a_log_that_is_not_finite_ends_the_run_with_step_and_row(found: Any, devices: int) -> None:
    assert (
        "step 3 (epoch 1, batch 3): error in the logs is not finite; x is not finite in row"
        in (found[devices]["not_finite"])
    )


def test_a_batch_with_fewer_rows_than_devices_is_refused_b112(found: Any) -> None:
    assert found[2]["refused"] == "ANY-TRAIN-030"


def test_any_model_can_be_run_under_mirrored_strategy_for_comparison(found: Any) -> None:
    assert found[2]["mirrored"] >= 0
