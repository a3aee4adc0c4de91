"""The model is an ordinary Keras model in mid-run, wherever its variables live; and the update runs where they live."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anyrig.testing.processes import run_python

PROGRAM = Path(__file__).with_name("callbacks_midrun.py")
DEVICES = (1, 2, 4)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    return {d: run_python(PROGRAM, d, tmp_path_factory.mktemp(str(d)), timeout=200).json() for d in DEVICES}


def test_B105_U10_U11_set_weights_predict_evaluate_and_save_from_a_callback_keep_the_bytes_equal(
    results: dict[int, Any],
) -> None:
    assert len({result["digest"] for result in results.values()}) == 1
    assert results[1]["seen"]["saved"] is True
    assert results[2]["seen"] == results[1]["seen"]
    assert results[4]["seen"] == results[1]["seen"]


def test_every_large_operation_of_the_update_is_on_its_variables_owner(results: dict[int, Any]) -> None:
    for devices, result in results.items():
        assert result["misplaced"] == []
        assert result["checked"] > 50
        assert result["slots with their variable"] is True
        assert result["updated on"] == result["owners"]
        assert len(result["owners"]) == min(devices, 2), (
            "two large kernels, each on the device with the fewest bytes so far"
        )
