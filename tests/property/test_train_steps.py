"""Properties of steps over any rows, weights, V and blocks of devices; they run in one process with three devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from anyrig.testing.processes import run_python

Failures = dict[str, str | None]


@pytest.fixture(scope="module")
def failures(request: pytest.FixtureRequest) -> Failures:
    more = 10 if request.config.option.full else 1
    program = Path(__file__).with_name("train_steps.py")
    found: Failures = run_python(program, request.config.option.seed, more, timeout=280 * more).json()
    return found


@pytest.mark.timeout(3000)
def test_B110_B112_a_divided_step_is_the_step_of_the_whole_batch(failures: Failures) -> None:
    assert failures["step_is_that_of_the_whole_batch"] is None, failures["step_is_that_of_the_whole_batch"]


def test_B111_who_does_which_virtual_replicas_changes_no_byte(failures: Failures) -> None:
    assert failures["blocks_change_no_byte"] is None, failures["blocks_change_no_byte"]


def test_U09_any_number_of_rows_can_be_evaluated_and_predicted_in_order(failures: Failures) -> None:
    found = failures["any_rows_can_be_evaluated_and_predicted"]
    assert found is None, found
