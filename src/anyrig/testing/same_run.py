"""Assert that a model trains to the same bytes on any number of devices; for the tests of people who write models.

Each device count is a child process, and all cases of a table share it, so a table costs little more than one case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anyrig.train.parity.cases import Case, from_pair
from anyrig.train.parity.report import Report
from anyrig.train.parity.run import DEVICES, STEPS, TIMEOUT, compare_cases, parity


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCase:
    """One entry of a table. `function(**arguments)` returns (build_model, data), in the child process.

    It may return a third part, a dict of more arguments for fit (class_weight, validation_data, ...). It is at the top
    level of a file or module, or named as "file.py:function" or "module:function"; what it returns may be anything,
    lambdas too. `arguments` are JSON values. `batch_size` None: 32 rows, or a dataset's own.
    """

    function: str | Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    virtual_replicas: int = 4
    batch_size: int | None = None
    steps: int = STEPS
    seed: int = 0
    precision: str = "auto"


def assert_same_run(
    build: str | Callable[..., Any],
    data: Any,
    virtual_replicas: int = 4,
    devices: Sequence[int] = DEVICES,
    *,
    steps: int = STEPS,
    batch_size: int | None = None,
    seed: int = 0,
    precision: str = "auto",
    arguments: Mapping[str, Any] | None = None,
    timeout: float = TIMEOUT,
) -> Report:
    """Train `steps` steps on each of `devices`; raise AssertionError with the report unless all bytes are the same.

    `build(**arguments)` returns a compiled model. It is a function at the top level of a file or module, as a child
    process imports it. `data` is (x, y) or (x, y, sample_weight) of arrays, or such a function that returns the data.
    A model that cannot be trained fails, too, with the error in the message. `timeout`: seconds for each process.
    """
    report = parity(
        build,
        data,
        devices=devices,
        steps=steps,
        virtual_replicas=virtual_replicas,
        batch_size=batch_size,
        seed=seed,
        precision=precision,
        arguments=arguments,
        timeout=timeout,
    )
    if not report.same:
        raise AssertionError(str(report))
    return report


def same_runs(
    cases: Mapping[str, RunCase], devices: Sequence[int] = DEVICES, *, timeout: float = TIMEOUT
) -> dict[str, Report]:
    """Return the report of each case of a table. Nothing is asserted: look at `same`, `refused` and `problems`.

    All cases run in one child process for each device count, and those that differ once more; `timeout` is for each
    process. A case that ends the process leaves the later ones with a problem that says so.
    """
    prepared = [
        Case(
            name=name,
            source=from_pair(case.function, case.arguments),
            virtual_replicas=case.virtual_replicas,
            batch_size=case.batch_size,
            steps=case.steps,
            seed=case.seed,
            precision=case.precision,
        )
        for name, case in cases.items()
    ]
    with TemporaryDirectory(prefix="anyrig-parity-") as folder:
        return {report.name: report for report in compare_cases(prepared, devices, Path(folder), timeout)}
