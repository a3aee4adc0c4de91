"""The table of cases: the same bytes on any devices, what Keras computes at V = 1, and the pages that say so."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from tests.multi.applications import FAMILIES
from tests.multi.zoo_pages import SGD_LIMIT
from tests.multi.zoo_program import (
    DEVICES,
    VIRTUAL_REPLICAS,
    applications_on,
    differing,
    keras_differences,
    runs_on,
)
from tests.multi.zoo_table import CASES

SAMPLE = 4  # cases on two device counts, and as many against Keras
FIRST_STEP_LIMIT = (
    1e-3  # of the learning rate's size: where a gradient is nearly zero, Adam makes a last bit that large
)
HOURS = 4 * 3600

Outcomes = dict[str, dict[int, Any]]


@pytest.fixture(scope="module")
def random(request: pytest.FixtureRequest) -> Random:
    return Random(request.config.option.seed)


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, random: Random) -> Outcomes:
    """What each run of the table, or of a sample, ends with on each number of devices; two processes at a time."""
    names = list(CASES) if request.config.option.full else random.sample(sorted(CASES), SAMPLE)
    if request.config.option.full:
        devices, runs = DEVICES, [f"{name}:{v}" for name in names for v in VIRTUAL_REPLICAS]
    else:
        devices, runs = (1, random.choice(DEVICES[1:])), [f"{name}:{random.choice(VIRTUAL_REPLICAS)}" for name in names]
    with ThreadPoolExecutor(max_workers=2) as pool:
        found = dict(zip(devices, pool.map(lambda count: runs_on(count, runs), devices), strict=True))
    return {run: {count: found[count][run] for count in devices} for run in runs}


@pytest.mark.timeout(HOURS)
def test_every_case_trains(outcomes: Outcomes) -> None:
    failed = {
        f"{run} on {devices}": outcome["message"]
        for run, by_devices in outcomes.items()
        for devices, outcome in by_devices.items()
        if "error" in outcome
    }
    assert failed == {}


def test_B105_B110_B111_B112_every_case_has_the_same_bytes_on_any_devices(outcomes: Outcomes) -> None:
    trained = {run: found for run, found in outcomes.items() if not any("error" in one for one in found.values())}
    assert {run: names for run, found in trained.items() if (names := differing(list(found.values())))} == {}
    assert trained


@pytest.fixture(scope="module")
def against_keras(request: pytest.FixtureRequest, random: Random) -> dict[str, Any]:
    comparable = [name for name, entry in CASES.items() if entry.kind != "Precision"]
    names = comparable if request.config.option.full else random.sample(sorted(comparable), SAMPLE)
    return keras_differences(names)


@pytest.mark.timeout(HOURS)
def test_every_case_can_be_held_against_keras(against_keras: dict[str, Any]) -> None:
    assert {name: found["message"] for name, found in against_keras.items() if "error" in found} == {}


def test_sgd_is_that_of_keras_after_ten_steps(against_keras: dict[str, Any]) -> None:
    last = {name: found["last"] for name, found in against_keras.items() if found.get("optimizer") == "SGD"}
    assert {name: gap for name, gap in last.items() if gap > SGD_LIMIT} == {}


def test_every_optimizer_is_that_of_keras_after_one_step(against_keras: dict[str, Any]) -> None:
    # Where a word comes several times in a batch, Keras squares each of its rows; here their sum is squared.
    dense = {name: found for name, found in against_keras.items() if "first" in found and not found["rows"]}
    first = {name: found["first"] for name, found in dense.items()}
    assert {name: gap for name, gap in first.items() if gap > FIRST_STEP_LIMIT} == {}


@pytest.mark.timeout(HOURS)
def test_families_of_keras_applications_have_the_same_bytes(request: pytest.FixtureRequest, random: Random) -> None:
    cheap = [family for family, member in FAMILIES.items() if member.cheap]
    families = list(FAMILIES) if request.config.option.full else [random.choice(cheap)]
    for family in families:
        one, two = applications_on(family).values()
        assert "error" not in one, f"{family}: {one}"
        assert one["digest"] == two.get("digest"), f"{family}: {two}"


def test_the_table_is_not_small() -> None:
    assert len(CASES) >= 45
