"""`parity`: a few steps of the user's own model and data on several device counts, and a verdict for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anyrig.errors import UsageError
from anyrig.train.parity.cases import Case, from_parts, from_recipe
from anyrig.train.parity.cause import origin
from anyrig.train.parity.children import Outcome, run_children
from anyrig.train.parity.compare import compared, first_step, measured, wanted
from anyrig.train.parity.report import Report

DEVICES = (1, 2, 4)
STEPS = 5
TIMEOUT = 1800.0


def parity(
    build_or_recipe: str | Path | Callable[..., Any],
    data: Any = None,
    *,
    devices: Sequence[int] = DEVICES,
    steps: int = STEPS,
    virtual_replicas: int | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    precision: str = "auto",
    strategy: str = "auto",
    arguments: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    timeout: float = TIMEOUT,
) -> Report:
    """Train `steps` steps on each of `devices` (logical devices, a process each) and compare every tensor's bytes.

    `build_or_recipe` is a recipe (the path of a .yaml file, with `overrides` such as "batch.global_size=64"), or the
    function that returns the compiled model: itself, "file.py:function" or "module:function", called with `arguments`.
    `data` goes with a function: arrays as (x, y) or (x, y, sample_weight), or a function that returns the data.
    `virtual_replicas` defaults to the recipe's, else to the largest device count. `timeout`: seconds for each process.

    Raises UsageError for what another process cannot be given. A model that cannot be trained is no exception: the
    report's `problems` tell why.
    """
    with TemporaryDirectory(prefix="anyrig-parity-") as folder:
        if data is None and isinstance(build_or_recipe, str | Path):
            case = _recipe_case(build_or_recipe, overrides, devices, virtual_replicas, steps)
        else:
            case = Case(
                name=_name(build_or_recipe),
                source=from_parts(build_or_recipe, data, arguments or {}, Path(folder)),
                virtual_replicas=_given(virtual_replicas, default=max(devices, default=1)),
                batch_size=batch_size,
                steps=steps,
                seed=seed,
                precision=precision,
                strategy=strategy,
            )
        return compare_cases([case], devices, Path(folder), timeout)[0]


def compare_cases(cases: Sequence[Case], devices: Sequence[int], folder: Path, timeout: float) -> list[Report]:
    """Return the report of each case; all of them share one process for each device count.

    What differs is trained once more, to measure the differences and find where they began. `folder` is for files.
    """
    _check(cases, devices)
    first = run_children([asdict(case) for case in cases], devices, folder / "first", timeout)
    reports = [compared(case, _of(first, case.name)) for case in cases]
    differing = {report.name: report for report in reports if report.differing}
    if not differing:
        return reports
    jobs = [_closer(case, differing[case.name]) for case in cases if case.name in differing]
    second = run_children(jobs, devices, folder / "second", timeout)
    return [
        _explained(report, _of(first, report.name), _of(second, report.name)) if report.differing else report
        for report in reports
    ]


def _closer(case: Case, report: Report) -> dict[str, Any]:
    """Return the job that trains a case again: which values are wanted, and which step (from 0) to look into."""
    return {**asdict(case), "keep": wanted(report), "look_into": first_step(report) - 1}


def _explained(report: Report, first: Mapping[int, Outcome], second: Mapping[int, Outcome]) -> Report:
    return replace(measured(report, second), origin=origin(report, first, second))


def _of(outcomes: Mapping[int, Mapping[str, Outcome]], name: str) -> dict[int, Outcome]:
    return {devices: by_name[name] for devices, by_name in outcomes.items()}


def _recipe_case(path: str | Path, overrides: Sequence[str], devices: Sequence[int], v: int | None, steps: int) -> Case:
    from anyrig.train.recipe.plan import batch_on
    from anyrig.train.recipe.schema import load_recipe

    recipe, most = load_recipe(path, overrides), max(devices, default=1)
    size, recipe_v = batch_on(recipe.batch, most)
    unset = v is None and recipe_v is None
    return Case(
        name=str(path),
        source=from_recipe(path, overrides),
        virtual_replicas=_given(v, default=recipe_v or most),
        batch_size=size,
        steps=steps,
        seed=recipe.seed,
        precision=recipe.precision,
        notes=[_UNSET] if unset else [],
    )


_UNSET = (
    "  note: the recipe sets no batch.virtual_replicas, so a run takes the number of devices it is started on, and "
    "runs on others have other numbers; set it to have the same ones"
)


def _given(value: int | None, *, default: int) -> int:
    return default if value is None else value


def _check(cases: Sequence[Case], devices: Sequence[int]) -> None:
    if len(set(devices)) < 2 or len(set(devices)) < len(devices) or min(devices) < 1:
        raise UsageError(
            "ANY-PARITY-004",
            f"devices: expected two or more different positive numbers, found {', '.join(map(str, devices)) or 'none'}",
            hint="give e.g. 1,2,4",
        )
    for case in cases:
        for name, value in (("steps", case.steps), ("virtual_replicas", case.virtual_replicas)):
            if value < 1:
                raise UsageError("ANY-PARITY-005", f"{name}: expected 1 or more, found {value}", hint="give 1 or more")


def _name(build: str | Path | Callable[..., Any]) -> str:
    return str(build) if isinstance(build, str | Path) else getattr(build, "__name__", type(build).__name__)
