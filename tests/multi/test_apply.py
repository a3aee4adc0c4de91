"""The apply stage of every step: once, after the sum over all virtual replicas, on the owners, whatever the devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anyrig.testing.processes import run_python

PROGRAM = Path(__file__).with_name("apply_cases.py")
DEVICES = (1, 2)


@pytest.fixture(scope="module")
def results() -> dict[int, Any]:
    return {devices: run_python(PROGRAM, devices, timeout=400).json() for devices in DEVICES}


@pytest.fixture(scope="module")
def cases(results: dict[int, Any]) -> dict[int, Any]:
    return {devices: result["cases"] for devices, result in results.items()}


@pytest.mark.timeout(800)
def test_the_bytes_do_not_depend_on_the_devices(cases: dict[int, Any]) -> None:
    for name, one in cases[1].items():
        assert (name, one["digest"], one["loss"]) == (name, cases[2][name]["digest"], cases[2][name]["loss"])


def test_a_step_that_meets_nan_is_left_out_on_any_devices(cases: dict[int, Any]) -> None:
    assert {case["updates"] for result in cases.values() for name, case in result.items() if name != "scaled"} == {6}


def test_the_loss_scale_is_judged_on_the_sum_over_all_virtual_replicas(cases: dict[int, Any]) -> None:
    """The first steps overflow and are left out, alike on any devices: FACTS of MirroredStrategy's replica 0."""
    assert 0 < cases[1]["scaled"]["updates"] < 6
    assert cases[1]["scaled"]["updates"] == cases[2]["scaled"]["updates"]


def test_no_large_operation_of_an_update_is_off_its_variables_owner(cases: dict[int, Any]) -> None:
    for result in cases.values():
        for name, case in result.items():
            # Adafactor's outer product of a row and a column of averages begins with small tensors, wherever they are.
            outer_products = 2 if name == "adafactor" else 0
            assert len(case["misplaced"]) <= outer_products, (name, case["misplaced"])
            assert case["checked"] > 10, name


def test_jit_compile_is_used_when_asked_for_and_the_model_stays_ordinary(cases: dict[int, Any]) -> None:
    assert cases[1]["xla"]["digest"] != cases[1]["not xla"]["digest"]
    assert [cases[devices]["xla"]["jit_compile"] for devices in DEVICES] == [True, False]
    assert all(case["own predict"] for result in cases.values() for case in result.values())


def test_what_xla_cannot_compile_is_refused_by_name(results: dict[int, Any]) -> None:
    for result in results.values():
        assert "jit_compile=True: XLA cannot compile" in result["refused"]
        assert "ANY-TRAIN-021" in result["refused"]
