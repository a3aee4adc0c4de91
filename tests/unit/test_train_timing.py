"""When a save is due: pure clocks and counters."""

from __future__ import annotations

from itertools import pairwise

import pytest

from anyrig.train.every import parse_every
from anyrig.train.loop import Boundary, Position
from anyrig.train.timing import BUDGET, LEAST, MOST, Timing

BATCH, LAST, EPOCH = Boundary("batch"), Boundary("batch", last_batch=True), Boundary("epoch")


def run(timing: Timing, *, steps: int, step: float, pause: float, writing: int = 0, slower: float = 0) -> list[float]:
    """Train `steps` steps of `step` seconds; return when it saved. A save pauses and slows `writing` steps down."""
    now, left, saves = 1000.0, 0, []
    timing.begin(now)
    for count in range(1, steps + 1):
        now += step + (slower if left else 0.0)
        left = max(0, left - 1)
        timing.reached(BATCH, now, saving=left > 0)
        if timing.due(BATCH, Position(step=count), now):
            saves.append(now - 1000.0)
            timing.saved(now, now + pause)
            now, left = now + pause, writing
    return saves


@pytest.mark.parametrize(
    ("every", "due"),
    [
        ("4 steps", [4, 8, 12]),
        ("1 epoch", [5, 10]),
        ("2 epochs", [10]),
        ("1 minute", [3, 6, 9, 12]),  # at 20 s a step
    ],
)
def test_steps_epochs_and_minutes(every: str, due: list[int]) -> None:
    timing, found, now = Timing(parse_every(every)), [], 0.0
    timing.begin(now)
    for step in range(1, 13):
        now += 20
        ends = step % 5 == 0
        boundaries = [LAST, EPOCH] if ends else [BATCH]
        for boundary in boundaries:
            timing.reached(boundary, now, saving=False)
            if timing.due(boundary, Position(step=step, epoch=step // 5), now):
                found.append(step)
                timing.saved(now, now)
    assert sorted(set(found)) == due
    assert len(found) == len(due)  # once at the end of an epoch, not before it and at it


def test_several_steps_an_execution_do_not_jump_over_a_save() -> None:
    timing = Timing(parse_every("4 steps"))
    three = Boundary("batch", steps=3)
    assert [step for step in range(3, 25, 3) if timing.due(three, Position(step=step), 0)] == [6, 9, 12, 18, 21, 24]


def test_auto_saves_as_often_as_costs_two_percent() -> None:
    saves = run(timing := Timing(parse_every("auto")), steps=2000, step=1.0, pause=2.0)
    assert timing.cost == pytest.approx(2.0)
    assert saves[0] == LEAST  # nothing is measured yet
    gaps = [later - earlier for earlier, later in pairwise(saves[1:])]
    assert all(2.0 / gap <= BUDGET for gap in gaps)
    assert max(gaps) <= 2.0 / BUDGET + 2.0


def test_by_the_clock_no_save_waits_for_the_one_before() -> None:
    timing = Timing(parse_every("1 minute"))
    timing.begin(0.0)
    timing.saved(0.0, 1.0)
    timing.reached(BATCH, 100.0, saving=True)
    assert not timing.due(BATCH, Position(step=1), 100.0)
    timing.reached(BATCH, 101.0, saving=False)
    assert timing.due(BATCH, Position(step=2), 101.0)


def test_auto_counts_steps_that_a_save_slows_down() -> None:
    run(timing := Timing(parse_every("auto")), steps=500, step=1.0, pause=0.1, writing=10, slower=0.3)
    assert timing.cost == pytest.approx(0.1 + 10 * 0.3)
    assert timing.step_seconds == pytest.approx(1.0)
    assert timing.interval == pytest.approx(3.1 / BUDGET)


@pytest.mark.parametrize(("pause", "interval"), [(0.0001, LEAST), (1000.0, MOST)])
def test_auto_has_bounds(pause: float, interval: float) -> None:
    run(timing := Timing(parse_every("auto")), steps=5000, step=1.0, pause=pause)
    assert timing.interval == interval


def test_validation_and_pauses_are_no_part_of_a_step() -> None:
    timing = Timing(parse_every("auto"))
    timing.begin(0.0)
    timing.reached(BATCH, 1.0, saving=False)
    timing.reached(EPOCH, 500.0, saving=False)
    timing.saved(500.0, 600.0)
    timing.reached(BATCH, 601.0, saving=False)
    assert timing.step_seconds == 1.0
    assert timing.cost == 100.0
