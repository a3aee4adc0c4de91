"""The table of cases: the same bytes on any devices, what Keras computes at V = 1, and the pages that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from anyrig.train.parity.report import Report, Tensor
from tests.multi.applications import FAMILIES
from tests.multi.zoo_pages import PAGES, SGD_LIMIT
from tests.multi.zoo_program import (
    DEVICES,
    FAMILY_DEVICES,
    VIRTUAL_REPLICAS,
    Outcomes,
    all_runs,
    application_on,
    keras_differences,
    same_runs_of,
    shown,
)
from tests.multi.zoo_table import CASES, COMPARABLE
from tests.multi.zoo_tables import DOCS, stored

SAMPLE = 2  # cases on two device counts, and as many against Keras
FIRST_STEP_LIMIT = 1e-3  # where a gradient is nearly zero, Adam makes of a last bit a part of the learning rate
FAMILY_SECONDS = 1200.0
HOURS = 12 * 3600


@pytest.fixture(scope="module")
def random(request: pytest.FixtureRequest) -> Random:
    return Random(request.config.option.seed)


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, random: Random, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """What each run of the table, or of a sample, has shown."""
    if request.config.option.full:
        return same_runs_of(tmp_path_factory.mktemp("runs"), all_runs(CASES))
    sample = [f"{name}:{random.choice(VIRTUAL_REPLICAS)}" for name in random.sample(sorted(CASES), SAMPLE)]
    return same_runs_of(tmp_path_factory.mktemp("runs"), sample, (1, random.choice(DEVICES[1:])))


@pytest.mark.timeout(HOURS)
def test_every_case_trains_or_is_refused_by_name(found: Outcomes) -> None:
    assert {run: outcome for run, outcome in found.items() if not as_it_should(run, outcome)} == {}


def test_B105_B110_B111_B112_every_case_has_the_same_bytes_on_any_devices(found: Outcomes) -> None:
    assert {run: outcome["different"] for run, outcome in found.items() if outcome.get("different")} == {}


@pytest.fixture(scope="module")
def against_keras(request: pytest.FixtureRequest, random: Random, tmp_path_factory: pytest.TempPathFactory) -> Any:
    names = COMPARABLE if request.config.option.full else random.sample(sorted(COMPARABLE), SAMPLE)
    differences = keras_differences(tmp_path_factory.mktemp("keras"), names)
    return {name: differences[name] for name in names}


@pytest.mark.timeout(HOURS)
def test_every_case_can_be_held_against_keras(against_keras: Any) -> None:
    assert {name: found["message"] for name, found in against_keras.items() if "error" in found} == {}


def test_sgd_is_that_of_keras_after_ten_steps(against_keras: Any) -> None:
    last = {name: found["last"] for name, found in against_keras.items() if is_sgd(name, found)}
    assert {name: gap for name, gap in last.items() if not gap <= SGD_LIMIT} == {}


def test_every_optimizer_is_that_of_keras_after_one_step(against_keras: Any) -> None:
    first = {name: found["first"] for name, found in against_keras.items() if "first" in found}
    assert {name: gap for name, gap in first.items() if not gap <= FIRST_STEP_LIMIT} == {}


@pytest.mark.timeout(HOURS)
def test_families_of_keras_applications_have_the_same_bytes(
    request: pytest.FixtureRequest, random: Random, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cheap = [family for family, member in FAMILIES.items() if member.cheap]
    families = list(FAMILIES) if request.config.option.full else [random.choice(cheap)]
    folder = tmp_path_factory.mktemp("families")
    for family in families:
        one, two = (application_on(folder, devices, family, FAMILY_SECONDS) for devices in FAMILY_DEVICES)
        assert one["digest"] == two["digest"], f"{family}: {one}, {two}"


@pytest.mark.parametrize("page", sorted(PAGES))
def test_pages_show_what_was_measured(page: str) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == PAGES[page](stored()), "type: make tables PARTS=minutes=0"


def test_pages_list_every_case() -> None:
    measured = stored()
    titles = {name: [entry.kind, entry.title] for name, entry in CASES.items()}
    assert measured["same-numbers"]["cases"] == titles
    assert measured["keras-parity"]["cases"] == {name: titles[name] for name in COMPARABLE}
    assert measured["applications"]["families"].keys() == FAMILIES.keys()
    assert len(COMPARABLE) >= 100


def test_measured_runs_show_nothing_that_the_tests_refuse() -> None:
    measured = stored()
    runs = {run: outcome for run, outcome in measured["same-numbers"]["runs"].items() if outcome["devices"]}
    assert {run: outcome for run, outcome in runs.items() if not as_it_should(run, outcome)} == {}
    assert [run for run, outcome in runs.items() if outcome.get("different")] == []
    differences = measured["keras-parity"]["differences"]
    assert [name for name, found in differences.items() if is_sgd(name, found) and found["last"] > SGD_LIMIT] == []


def test_a_run_is_shown_as_its_report_has_it() -> None:
    same, other = Tensor(name="a"), Tensor(name="b", first_step=1, devices=(2,))
    report = Report(name="x", virtual_replicas=4, devices=(1, 2), steps=6, tensors=(same, other))
    assert shown(report) == {"devices": [1, 2], "tensors": 2, "different": ["b"]}
    refused = replace(report, tensors=(), problems=((1, "no [ANY-TRAIN-005]"), (2, "no [ANY-TRAIN-005]")))
    assert shown(refused) == {"devices": [1, 2], "errors": ["ANY-TRAIN-005"], "refused": True}
    assert shown(replace(refused, problems=refused.problems[:1]))["refused"] is False


def as_it_should(run: str, outcome: Mapping[str, Any]) -> bool:
    """Whether a run trained, or was refused on all device counts with the error of its case."""
    refusal = CASES[run.partition(":")[0]].refused
    if not refusal:
        return "errors" not in outcome
    return bool(outcome.get("refused")) and outcome["errors"] == [refusal]


def is_sgd(name: str, found: Mapping[str, Any]) -> bool:
    """Whether the case trains with SGD in float32 or wider."""
    return found.get("optimizer") == "SGD" and CASES[name].kind != "Precision"
