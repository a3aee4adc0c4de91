"""The progress line: what it says, that it stays in its line, and what it costs."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anyrig.report.progress import Live, Moment, Plain, Progress, display, epoch_line, in_notebook
from anyrig.report.reports import RunReport, SaveReport, StepReport
from anyrig.report.span import Span
from anyrig.topology.plan import device_plan

METRICS = {"accuracy": 0.97123, "loss": 0.10311}


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Metric:
    """A value that counts how often it is read."""

    def __init__(self) -> None:
        self.reads = 0

    def numpy(self) -> Any:
        self.reads += 1
        return SimpleNamespace(tolist=lambda: 0.5)


def run_report(steps_per_epoch: int | None = 4, **position: int) -> RunReport:
    at = SimpleNamespace(**{"step": 0, "epoch": 0, "batch": 0, "rows": 0, **position})
    plan = device_plan(["/device:CPU:0"], 2)
    return RunReport(plan, 8, steps_per_epoch, 2, at, None)


def screen(written: str, width: int = 80) -> list[str]:
    """Return what a terminal shows after `written`: carriage returns overwrite, the last column wraps."""
    lines, row, column = [[" "] * width], 0, 0
    for character in written:
        if character == "\r":
            column = 0
        elif character == "\n":
            row, column = row + 1, 0
        else:
            if column == width:
                row, column = row + 1, 0
            while len(lines) <= row:
                lines.append([" "] * width)
            lines[row][column] = character
            column += 1
    return ["".join(line).rstrip() for line in lines]


def train(progress: Progress, clock: Clock, *, first: int = 0, steps: int = 4, logs: Any = METRICS) -> None:
    """Play one epoch of `steps` steps of 8 rows in a second each."""
    for batch in range(first, steps):
        clock.now += 1
        progress.on_train_batch_end(batch, logs)
        progress.on_step_report(StepReport(batch + 1, 0, batch + 1, 8, 0.25, 0.5))


def test_a_running_line_says_all() -> None:
    moment = Moment(
        epoch=2,
        epochs=10,
        batch=128,
        batches=313,
        rows_per_second=12345.6,
        left=12.3,
        metrics=METRICS,
        saved=(1200, 12),
    )
    assert moment.line() == (
        "epoch 3/10  128/313  ETA 0:12  12,346 rows/s  accuracy 0.9712  loss 0.1031  saved step 1,200 12 s ago"
    )


def test_what_is_not_known_is_left_out() -> None:
    moment = Moment(epoch=0, epochs=3, batch=7, batches=None, rows_per_second=3.25, left=None)
    assert moment.line() == "epoch 1/3  batch 7  3.2 rows/s"


def test_times_and_speeds_are_those_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = Progress(Live(lambda: 120), clock)
    progress.on_run_begin(run_report())
    progress.on_epoch_begin(0)
    train(progress, clock, steps=3)
    assert screen(capsys.readouterr().out) == ["epoch 1/2  3/4  ETA 0:01  8.0 rows/s  accuracy 0.9712  loss 0.1031"]
    progress.on_save_report(SaveReport(3, 0.1, 0.01, 10, Path("step-3")))
    clock.now += 5
    progress.on_test_batch_end(1, {})
    assert "  validating, batch 2  accuracy 0.9712  loss 0.1031  saved step 3 5 s ago" in capsys.readouterr().out
    progress.on_epoch_end(0, {**METRICS, "val_loss": 0.2})
    shown = capsys.readouterr().out
    assert shown.rstrip() == "\repoch 1/2  3.0 s  8.0 rows/s  accuracy 0.9712  loss 0.1031  val_loss 0.2000"


def test_a_line_never_leaves_its_line_and_nothing_of_the_line_before_stays(capsys: pytest.CaptureFixture[str]) -> None:
    live = Live(lambda: 20)
    for line in ("a" * 50, "b" * 15, "c"):
        live.update(line)
    assert screen(capsys.readouterr().out, 20) == ["c"]
    live.update("a" * 50)
    assert screen(capsys.readouterr().out, 20) == ["a" * 18 + "…"]
    live.finish("done " * 5)
    live.update("next")
    assert screen(capsys.readouterr().out, 20) == ["done done done done", "done", "next"]


def test_an_epoch_carried_on_in_its_middle_of_unknown_length(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    progress = Progress(Live(lambda: 80), clock)
    progress.on_run_begin(run_report(None, step=2, batch=2))
    train(progress, clock, first=2, logs={})
    assert screen(capsys.readouterr().out) == ["epoch 1/2  batch 4  8.0 rows/s"]
    progress.on_epoch_end(0, {})
    progress.on_epoch_begin(1)
    capsys.readouterr()
    train(progress, clock, steps=2, logs={})
    assert screen(capsys.readouterr().out) == ["epoch 2/2  2/4  ETA 0:02  8.0 rows/s"]


def test_metrics_are_read_ten_times_a_second_at_most() -> None:
    clock, metric = Clock(), Metric()
    progress = Progress(Live(lambda: 80), clock)
    progress.on_run_begin(run_report())
    for step in range(1000):
        clock.now += 0.001
        progress.on_train_batch_end(step, {"loss": metric})
        progress.on_step_report(StepReport(step + 1, 0, step + 1, 8, 0.0, 0.001))
    assert metric.reads == 10


def test_without_a_terminal_whole_lines_are_printed_and_nothing_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    clock, metric = Clock(), Metric()
    progress = Progress(Plain(), clock)
    progress.on_run_begin(run_report())
    progress.on_epoch_begin(0)
    train(progress, clock, logs={"loss": metric})
    progress.on_epoch_end(0, METRICS)
    progress.on_run_end(None)
    assert capsys.readouterr().out == "epoch 1/2  4.0 s  8.0 rows/s  accuracy 0.9712  loss 0.1031\n"
    assert metric.reads == 0


def test_a_line_that_is_not_finished_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    live = Live(lambda: 20)
    live.update("abc")
    live.finish("")
    live.finish("")
    print("stopped")
    assert screen(capsys.readouterr().out) == ["abc", "stopped"]


@pytest.mark.parametrize(
    ("tty", "term", "live"), [(True, "xterm", True), (True, "dumb", False), (False, "xterm", False)]
)
def test_only_a_terminal_is_drawn_on(tty: bool, term: str, live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.StringIO()
    stdout.isatty = lambda: tty  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setenv("TERM", term)
    assert display().live is live


def test_a_kernel_of_a_notebook_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_notebook()
    shell = type("ZMQInteractiveShell", (), {})
    monkeypatch.setitem(sys.modules, "ipykernel.zmqshell", SimpleNamespace(ZMQInteractiveShell=shell))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=shell))
    assert in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert not in_notebook()


def test_validation_between_epochs_does_not_count_as_training() -> None:
    span = Span.at(0.0)
    span.add(StepReport(1, 0, 1, 8, 0.25, 0.5), 2.0)
    span.go_on(10.0)
    span.save_seconds += 1.0
    span.add(StepReport(2, 1, 1, 8, 0.75, 1.5), 12.0)
    assert span.speed() == {
        "rows_per_second": 4.0,
        "input_seconds": 0.5,
        "compute_seconds": 1.0,
        "save_seconds": 0.5,
    }
    assert epoch_line(0, 3, span, {}) == "epoch 1/3  4.0 s  4.0 rows/s"
