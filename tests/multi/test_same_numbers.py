"""The first promise: the bytes do not depend on how many devices did the work, nor on where the run was killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from anyrig.testing.processes import run_python

PROGRAM = Path(__file__).with_name("train_cases.py")
CASES = ("convolutional", "sparse", "several", "weighted")
DEVICES = (1, 2, 3, 4)
VIRTUAL_REPLICAS = (4, 6)
STEPS, EPOCHS, ROWS = 5, 3, 123

Results = dict[str, dict[int, Any]]


def train(devices: int, folder: Path, *runs: str, expect: int | None = 0) -> Any:
    finished = run_python(PROGRAM, devices, folder, *runs, timeout=500, expect=expect)
    return finished.json() if finished.returncode == 0 else None


@pytest.fixture(scope="module")
def random(request: pytest.FixtureRequest) -> Random:
    """A generator from the session's printed seed."""
    return Random(request.config.option.seed)


@pytest.fixture(scope="module")
def plan(request: pytest.FixtureRequest, random: Random) -> dict[int, list[str]]:
    """Which case with which V runs on which device counts: all of them, or a sample with every count and every case."""
    everything = [f"{case}:{v}" for case in CASES for v in VIRTUAL_REPLICAS]
    if request.config.option.full:
        return dict.fromkeys(DEVICES, everything)
    chosen = [f"convolutional:{v}" for v in VIRTUAL_REPLICAS]
    others = [f"{case}:{random.choice(VIRTUAL_REPLICAS)}" for case in CASES[1:]]
    more = {devices: [run] for devices, run in zip(random.sample(DEVICES[1:], 3), others, strict=True)}
    return {1: chosen + others, **{devices: chosen + more[devices] for devices in DEVICES[1:]}}


@pytest.fixture(scope="module")
def results(plan: dict[int, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What each planned run ended with, by run and device count; two processes at a time."""
    folder = tmp_path_factory.mktemp("runs")
    with ThreadPoolExecutor(max_workers=2) as pool:
        outcomes = dict(zip(plan, pool.map(lambda d: train(d, folder / str(d), *plan[d]), plan), strict=True))
    runs = {run for planned in plan.values() for run in planned}
    return {run: {d: outcome[run] for d, outcome in outcomes.items() if run in outcome} for run in runs}


def differing(one: Any, other: Any) -> list[str]:
    names = one["tensors"].keys() | other["tensors"].keys()
    return sorted(name for name in names if one["tensors"].get(name) != other["tensors"].get(name))


def comparisons(results: Results) -> Iterator[tuple[str, Any, Any]]:
    for run, outcomes in results.items():
        for devices, outcome in outcomes.items():
            yield f"{run} on 1 and {devices} devices", outcomes[1], outcome


@pytest.mark.timeout(1200)
def test_B105_B113_U18_every_tensor_has_the_same_bytes_on_any_devices(results: Results) -> None:
    different = {what: names for what, one, other in comparisons(results) if (names := differing(one, other))}
    assert different == {}
    assert all(len(outcomes) > 1 for outcomes in results.values())


def test_history_and_predictions_are_the_same_on_any_devices(results: Results) -> None:
    for what, one, other in comparisons(results):
        assert one["history"] == other["history"], what
        assert one["predictions"] == other["predictions"], what


def test_U09_uneven_batches_count_every_row_once(results: Results) -> None:
    for outcomes in results.values():
        for outcome in outcomes.values():
            assert outcome["position"] == {"step": STEPS * EPOCHS, "epoch": EPOCHS, "batch": 0, "rows": ROWS * EPOCHS}


def test_masks_depend_on_the_virtual_replicas(results: Results) -> None:
    assert differing(results["convolutional:4"][1], results["convolutional:6"][1])


@pytest.mark.timeout(600)
def test_U04_B075_B147_killed_three_times_and_carried_on_elsewhere(
    results: Results, tmp_path: Path, random: Random
) -> None:
    counts = random.sample(DEVICES, 4)
    # Saves are 2 steps apart: three kills after 1 to 4 steps each leave the last of 15 steps to the last process.
    for devices, steps in zip(counts, random.choices(range(1, 5), k=3), strict=False):
        assert train(devices, tmp_path, f"convolutional:4:{steps}", expect=-signal.SIGKILL) is None
    carried_on = train(counts[-1], tmp_path, "convolutional:4")["convolutional:4"]
    straight = results["convolutional:4"][1]
    assert differing(straight, carried_on) == [], f"devices {counts}"
    assert carried_on == straight
