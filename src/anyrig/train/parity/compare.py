"""Compares what the same case did on several device counts. Pure: hashes in, verdicts out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from anyrig.train.parity.cases import Case
from anyrig.train.parity.children import Outcome
from anyrig.train.parity.report import Report, Tensor


def compared(case: Case, outcomes: Mapping[int, Outcome]) -> Report:
    """Return the report of `case` from its outcome on each device count; the first count is what others are held to."""
    problems = tuple((devices, outcome.problem) for devices, outcome in outcomes.items() if outcome.problem)
    trained = {devices: outcome for devices, outcome in outcomes.items() if not outcome.problem}
    return Report(
        name=case.name,
        virtual_replicas=case.virtual_replicas,
        devices=tuple(outcomes),
        steps=max((len(outcome.states) - 1 for outcome in trained.values()), default=case.steps),
        tensors=_tensors(trained) if len(trained) > 1 else (),
        problems=problems,
        promised=all(outcome.promised for outcome in outcomes.values()),
        notes=tuple(case.notes),
    )


def first_step(report: Report) -> int:
    """Return the number of steps after which something differed first; 0 is before training."""
    return min(tensor.first_step or 0 for tensor in report.differing)


def wanted(report: Report) -> dict[int, list[str]]:
    """Return the tensors whose values tell how large the differences are, by step: where they began, and the end."""
    keep: dict[int, list[str]] = {}
    for tensor in report.differing:
        for step in {tensor.first_step or 0, report.steps}:
            keep.setdefault(step, []).append(tensor.name)
    return keep


def measured(report: Report, outcomes: Mapping[int, Outcome]) -> Report:
    """Return `report` with the largest absolute differences, from outcomes that hold the `wanted` values."""
    opened = {devices: np.load(outcome.arrays) for devices, outcome in outcomes.items() if outcome.arrays}
    largest: dict[str, float] = {}
    for first, *others in [opened.values()] if opened else []:
        for key in first.files:
            gaps = [_gap(first[key], other[key]) for other in others if key in other.files]
            name = key.partition(":")[2]
            largest[name] = max([largest.get(name, 0.0), *gaps])
    for archive in opened.values():
        archive.close()
    return replace(report, tensors=tuple(replace(t, largest=largest.get(t.name)) for t in report.tensors))


def _tensors(trained: Mapping[int, Outcome]) -> tuple[Tensor, ...]:
    reference, *others = trained
    names = dict.fromkeys(name for outcome in trained.values() for state in outcome.states[-1:] for name in state)
    tensors = []
    for name in names:
        since = {devices: _first_step(trained[reference], trained[devices], name) for devices in others}
        differing = {devices: step for devices, step in since.items() if step is not None}
        first = min(differing.values(), default=None)
        tensors.append(Tensor(name=name, first_step=first, devices=tuple(differing)))
    return tuple(tensors)


def _first_step(one: Outcome, other: Outcome, name: str) -> int | None:
    steps = max(len(one.states), len(other.states))
    return next((step for step in range(steps) if _hash(one, step, name) != _hash(other, step, name)), None)


def _hash(outcome: Outcome, step: int, name: str) -> str | None:
    return outcome.states[step].get(name) if step < len(outcome.states) else None


def _gap(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest absolute difference; infinite for other shapes or where only one is a number."""
    if one.shape != other.shape:
        return float("inf")
    differ = ~((one == other) | (np.isnan(one) & np.isnan(other)))
    gap = np.abs(one[differ] - other[differ])
    return float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0))
