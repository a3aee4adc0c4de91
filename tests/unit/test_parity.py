"""Parity without TensorFlow: what can be handed to a child process, and what a report says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyrig.errors import UsageError
from anyrig.testing import same_run
from anyrig.train.parity import children
from anyrig.train.parity.cases import Case, from_parts, open_case, reference
from anyrig.train.parity.cause import origin
from anyrig.train.parity.children import Outcome
from anyrig.train.parity.compare import compared, measured, wanted
from anyrig.train.parity.report import Report
from anyrig.train.parity.run import parity


def build(size: int = 3) -> Any:
    return f"a model of {size}"


class Holder:
    @staticmethod
    def build() -> None: ...


def closure() -> Any:
    def inside() -> None: ...

    return inside


@pytest.mark.parametrize("function", [lambda: 0, Holder.build, closure(), len, Holder()])
def test_a_function_that_no_other_process_can_import_is_refused(function: Any) -> None:
    with pytest.raises(UsageError, match=r"(?s)build: .*cannot be imported.*top level of a \.py file.*ANY-PARITY-001"):
        reference(function, "build")


def test_functions_are_named_by_module_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reference(build, "build") == f"{__name__}:build"
    monkeypatch.chdir(tmp_path)
    assert reference("cats.py:build", "build") == f"{tmp_path / 'cats.py'}:build"
    assert reference("package.cats:build", "build") == "package.cats:build"


def test_arrays_are_handed_over_as_they_are(tmp_path: Path) -> None:
    x: dict[str, Any] = {
        "a": np.arange(6.0).reshape(3, 2),
        "b": [np.array(["one", "two", "three"]), np.zeros((3, 0), np.int8)],
    }
    source = from_parts(build, (x, np.ones(3, np.float16)), {"size": 7}, tmp_path)
    opened = open_case(source)
    found, y, weight = opened.data
    assert opened.build() == "a model of 7"
    assert weight is None
    assert y.dtype == np.float16
    assert found["a"].tobytes() == x["a"].tobytes()
    assert [part.tolist() for part in found["b"]] == [["one", "two", "three"], [[], [], []]]


@pytest.mark.parametrize("data", [iter([1]), (np.array([object()]), None), [1, 2]])
def test_data_that_no_file_of_arrays_can_hold_is_refused(data: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"(?s)cannot be handed to another process.*ANY-PARITY-002"):
        from_parts(build, data, {}, tmp_path)


@pytest.mark.parametrize("devices", [(), (2,), (1, 2, 2), (0, 1)])
def test_device_counts_must_be_different_and_positive(devices: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="ANY-PARITY-004"):
        parity(build, (np.zeros(3), np.zeros(3)), devices=devices)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"virtual_replicas": 0}])
def test_steps_and_virtual_replicas_must_be_positive(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(wrong))}: expected 1 or more, found 0"):
        parity(build, (np.zeros(3), np.zeros(3)), **wrong)  # type: ignore[arg-type]


def test_a_child_starts_no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(children._INSIDE, "1")
    with pytest.raises(UsageError, match=r'(?s)without end.*if __name__ == "__main__"'):
        parity(build, (np.zeros(3), np.zeros(3)))


def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_PROGRAM", "import time\nprint('stuck', flush=True)\ntime.sleep(600)")
    found = children.run_children([{"name": "slow"}, {"name": "next"}], [1, 2], tmp_path / "job", timeout=1)
    for outcomes in found.values():
        assert "still running after 1 s" in str(outcomes["slow"].problem)
        assert str(outcomes["next"].problem).startswith("not run: in slow")


def test_children_have_the_settings_of_tensorflow_and_the_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert children._settings()["TF_ENABLE_ONEDNN_OPTS"] == "0"
    job = children._job([], 2, tmp_path)
    assert str(tmp_path) in job.read_text()
    assert os.path.isabs(job)


CASE = Case(name="cats", source={}, virtual_replicas=4, steps=2)
SAME = {"model/a/kernel": "1", "metrics/loss/total": "2"}


def outcome(*kernels: str, **more: Any) -> Outcome:
    return Outcome(states=[{**SAME, "model/a/kernel": kernel} for kernel in kernels], **more)


def test_the_first_step_that_differs_is_found_though_later_ones_agree() -> None:
    report = compared(CASE, {1: outcome("a", "b", "c"), 2: outcome("a", "x", "c"), 4: outcome("a", "b", "c")})
    assert [(t.name, t.first_step, t.devices) for t in report.tensors] == [
        ("model/a/kernel", 1, (2,)),
        ("metrics/loss/total", None, ()),
    ]
    assert wanted(report) == {1: ["model/a/kernel"], 2: ["model/a/kernel"]}
    assert not report.same


def test_fewer_steps_and_missing_tensors_are_differences() -> None:
    shorter = compared(CASE, {1: outcome("a", "b", "c"), 2: outcome("a", "b")})
    assert {t.first_step for t in shorter.tensors} == {2}
    missing = compared(CASE, {1: outcome("a"), 2: Outcome(states=[{"model/a/kernel": "a"}])})
    assert [t.name for t in missing.differing] == ["metrics/loss/total"]
    assert compared(CASE, {1: outcome("a", "b"), 2: outcome("a", "b")}).same


def test_one_device_count_that_cannot_train_is_no_success() -> None:
    good = outcome("a", "b")
    report = compared(CASE, {1: good, 2: good, 4: Outcome(problem="ValueError: four")})
    assert not report.same
    assert report.trained
    assert report.differing == ()
    assert "trained on some device counts only" in str(report)
    assert "on 4 devices: ValueError: four" in str(report)


def test_no_step_is_no_success() -> None:
    assert not compared(CASE, {1: outcome("a"), 2: outcome("a")}).same
    assert not compared(CASE, {1: Outcome(problem="no"), 2: Outcome(problem="no")}).same


def test_differences_are_measured_where_there_are_numbers(tmp_path: Path) -> None:
    values = {1: [1.0, np.nan, np.inf], 2: [1.5, np.nan, np.inf], 4: [1.0, np.nan, np.inf]}
    outcomes = {}
    for devices, array in values.items():
        np.savez(tmp_path / f"{devices}.npz", **{"1:model/a/kernel": np.array(array)})  # type: ignore[arg-type]
        outcomes[devices] = outcome(str(devices), arrays=str(tmp_path / f"{devices}.npz"))
    report = compared(CASE, outcomes)
    assert measured(report, outcomes).tensors[0].largest == 0.5
    np.savez(tmp_path / "2.npz", **{"1:model/a/kernel": np.array([1.0, 2.0, np.inf])})  # type: ignore[arg-type]
    infinite = measured(report, outcomes)
    assert infinite.tensors[0].largest == float("inf")
    assert infinite.as_json()["tensors"][0]["largest"] is None


def test_what_is_not_promised_is_shown_all_the_same() -> None:
    outcomes = {1: outcome("a", "b", promised=False), 2: outcome("a", "x", promised=False)}
    report = compared(CASE, outcomes)
    text = str(report)
    assert "1 of 2 tensors and logs differ" in text
    assert "equal bytes are not promised for a model with its own train_step" in text
    assert "model/a/kernel" in text
    assert "as under Keras's MirroredStrategy" in origin(report, outcomes, outcomes).cause


def test_a_step_that_could_not_be_looked_into_is_told() -> None:
    outcomes = {1: outcome("a", "b", facts={"failed": "TypeError: no"}), 2: outcome("a", "x", facts={"batch": ""})}
    found = origin(compared(CASE, outcomes), outcomes, outcomes)
    assert found.cause == "not found: the step could not be looked into; TypeError: no"


def test_assert_same_run_shows_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = iter([compared(CASE, {1: outcome("a", "a"), 2: outcome("a", other)}) for other in "ba"])
    monkeypatch.setattr(same_run, "parity", lambda *_, **__: next(reports))
    with pytest.raises(AssertionError, match=r"(?s)cats: 1 of 2 tensors and logs differ.*model/a/kernel"):
        same_run.assert_same_run(build, None)
    assert isinstance(same_run.assert_same_run(build, None), Report)
