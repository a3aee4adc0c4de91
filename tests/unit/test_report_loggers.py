"""Loggers: what stands in their files after a run that was killed, carried on, and seen to its end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import anyrig
from anyrig.errors import UsageError
from anyrig.report.loggers import loggers
from anyrig.report.record import Logger, Mark, Record, numbers
from anyrig.report.reports import RunReport, SaveReport, StepReport, ending
from anyrig.topology.plan import device_plan

STEPS = 4  # of an epoch


def play(logger: Logger, directory: Path | None, first: int, last: int, error: BaseException | None = None) -> None:
    """Play the steps after `first` up to `last`, two epochs of four at most; an epoch ends if its last step is played.

    The loss is one over the step. The first epoch has no validation.
    """
    at = SimpleNamespace(step=first, epoch=first // STEPS, batch=first % STEPS, rows=8 * first)
    logger.on_run_begin(RunReport(device_plan(["/device:CPU:0"], 1), 8, STEPS, 2, at, directory))
    for step in range(first + 1, last + 1):
        epoch, batch = divmod(step - 1, STEPS)
        if batch == 0:
            logger.on_epoch_begin(epoch)
        logger.on_train_batch_end(batch, {"loss": 1 / step})
        logger.on_step_report(StepReport(step, epoch, batch + 1, 8, 0.25, 0.5))
        if batch == STEPS - 1:
            logger.on_epoch_end(epoch, {"loss": 1 / step, **({"val_loss": 2.0} if epoch else {})})
    logger.on_run_end(error)


def make(name: str, directory: Path) -> Logger:
    (logger,) = loggers([name], directory)
    logger._every = 2
    return logger


def killed_and_carried_on(name: str, directory: Path) -> None:
    """Write seven steps, lose all after the third, and write the rest."""
    play(make(name, directory), directory, 0, 7, KeyboardInterrupt())
    play(make(name, directory), directory, 3, 8)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard reads in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder)).Reload()
    return {tag: [(point.step, point.value) for point in read.Scalars(tag)] for tag in sorted(read.Tags()["scalars"])}


def rounded(steps: list[int]) -> list[Any]:
    return [(step, pytest.approx(1 / step)) for step in steps]


def test_jsonl_of_a_run_that_was_carried_on_is_that_of_one_never_disturbed(tmp_path: Path) -> None:
    killed_and_carried_on("jsonl", tmp_path / "cut")
    play(make("jsonl", tmp_path / "straight"), tmp_path / "straight", 0, 8)
    cut, straight = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("cut", "straight")
    )
    kept = ("kind", "step", "epoch", "loss", "val_loss")
    assert [[line.get(key) for key in kept] for line in cut] == [[line.get(key) for key in kept] for line in straight]
    assert [(line["kind"], line["step"]) for line in cut] == [
        *(("step", 2), ("step", 4), ("epoch", 4)),
        *(("step", 6), ("step", 8), ("epoch", 8)),
    ]
    assert {"rows_per_second", "input_seconds", "compute_seconds", "save_seconds"} <= cut[-1].keys()


def test_a_line_that_a_kill_cut_short_is_taken_out(tmp_path: Path) -> None:
    play(make("jsonl", tmp_path), tmp_path, 0, 4)
    path = tmp_path / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole + whole.splitlines()[0][:20])
    play(make("jsonl", tmp_path), tmp_path, 4, 4)
    assert path.read_text() == whole


def test_csv_has_one_row_for_each_epoch_and_takes_columns_that_come_later(tmp_path: Path) -> None:
    killed_and_carried_on("csv", tmp_path)
    header, *rows = (line.split(",") for line in (tmp_path / "metrics.csv").read_text().splitlines())
    assert header[:2] == ["epoch", "step"]
    assert header[-2:] == ["loss", "val_loss"]
    assert [(row[0], row[1], row[-2], row[-1]) for row in rows] == [("1", "4", "0.25", ""), ("2", "8", "0.125", "2.0")]
    play(make("csv", tmp_path), tmp_path, 6, 8)
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 3


def test_tensorboard_reads_each_point_once(tmp_path: Path) -> None:
    other = tmp_path / "tensorboard" / "events.out.tfevents.1.other"
    other.parent.mkdir()
    other.write_bytes(b"")
    killed_and_carried_on("tensorboard", tmp_path)
    found = scalars(tmp_path / "tensorboard")
    assert found["step/loss"] == rounded([2, 4, 6, 8])
    assert found["epoch/loss"] == rounded([4, 8])
    assert found["epoch/val_loss"] == [(8, 2.0)]
    assert [step for step, _ in found["speed/compute_seconds"]] == [2, 4, 6, 8]
    assert len(list(other.parent.iterdir())) == 2
    assert other.exists()


def test_tensorboard_survives_a_torn_file_and_one_that_was_copied_but_not_removed(tmp_path: Path) -> None:
    play(make("tensorboard", tmp_path), tmp_path, 0, 4)
    (path,) = (tmp_path / "tensorboard").iterdir()
    content = path.read_bytes()
    path.with_name(f"{path.name}.anyrig").write_bytes(content[:-5])
    play(make("tensorboard", tmp_path), tmp_path, 4, 8)
    assert scalars(tmp_path / "tensorboard")["step/loss"] == rounded([2, 4, 6, 8])


@pytest.mark.parametrize(("name", "file"), [("jsonl", "metrics.jsonl"), ("csv", "metrics.csv")])
def test_in_a_folder_that_is_not_the_run_s_nothing_is_taken_out(name: str, file: str, tmp_path: Path) -> None:
    for run in (tmp_path / "other", None):
        before = (tmp_path / file).read_text() if run is None else ""
        play(make(name, tmp_path), run, 0, 8)
        assert (tmp_path / file).read_text().startswith(before)
        assert len((tmp_path / file).read_text()) > len(before)


def test_an_epoch_that_is_not_finished_comes_again(tmp_path: Path) -> None:
    """A checkpoint of an epoch's last step, made before validation: its end is repeated on the way on."""
    play(make("csv", tmp_path), tmp_path, 0, 4)
    logger = make("csv", tmp_path)
    at = SimpleNamespace(step=4, epoch=0, batch=4, rows=32)
    logger.on_run_begin(RunReport(device_plan(["/device:CPU:0"], 1), 8, STEPS, 2, at, tmp_path))
    logger.on_epoch_end(0, {"loss": 0.25})
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 2


def test_the_time_of_a_save_is_told_with_the_steps_that_waited_for_it(tmp_path: Path) -> None:
    written: list[Record] = []
    sink: Any = SimpleNamespace(open=lambda after: None, write=written.append, close=lambda error: None)
    clock = iter(float(second) for second in range(10**6))
    logger = Logger(sink, tmp_path, every=2, now=lambda: next(clock))
    logger.on_run_begin(
        RunReport(device_plan(["/device:CPU:0"], 1), 8, 2, 2, SimpleNamespace(step=0, epoch=0, batch=0), None)
    )
    logger.on_step_report(StepReport(1, 0, 1, 8, 0.25, 0.5))
    logger.on_save_report(SaveReport(1, 9.0, 3.0, 10, tmp_path))
    logger.on_step_report(StepReport(2, 0, 2, 8, 0.75, 0.5))
    (record,) = written
    assert record.mark == Mark(2, False)
    assert {name: record.speed[name] for name in ("input_seconds", "compute_seconds", "save_seconds")} == {
        "input_seconds": 0.5,
        "compute_seconds": 0.5,
        "save_seconds": 1.5,
    }


def test_a_metric_of_several_values_becomes_several() -> None:
    tensor = SimpleNamespace(numpy=lambda: SimpleNamespace(tolist=lambda: [0.5, 1.0]))
    assert numbers({"f1": tensor, "loss": 2}) == {"f1/0": 0.5, "f1/1": 1.0, "loss": 2.0}
    assert numbers({"f1": np.array([0.5, 1.0]), "loss": np.float32(2)}) == {"f1/0": 0.5, "f1/1": 1.0, "loss": 2.0}


def test_a_name_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean tensorboard"):
        anyrig.loggers(["tensorbord"], "runs/x")


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_package_is_told_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=rf"{name} is not installed\n  next: pip install 'anyrig\[{name}\]'"):
        loggers([name], "runs/x")


def test_a_logger_in_keras_s_own_fit_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"train with rig\.fit"):
        make("csv", tmp_path).on_epoch_end(0, {})


def test_mlflow_keeps_one_run_with_each_point_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "cats")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    play(make("mlflow", tmp_path / "run"), tmp_path / "run", 0, 7, anyrig.Stopped("ANY-X-000", "stopped", hint="none"))
    client = mlflow.MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name = 'cats'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "KILLED"
    play(make("mlflow", tmp_path / "run"), tmp_path / "run", 3, 8)
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "step/loss")
    assert [(point.step, point.value) for point in history] == [(step, 1 / step) for step in (2, 4, 6, 8)]
    assert mlflow.active_run() is None


def test_wandb_goes_on_with_its_run_and_sends_each_point_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[dict[str, Any]] = []
    sent: list[Any] = []
    ended: list[int] = []

    def init(**given: Any) -> Any:
        begun.append(given)
        end: Callable[..., None] = lambda *, exit_code: ended.append(exit_code)  # noqa: E731
        return SimpleNamespace(id="abc", define_metric=lambda *_, **__: None, log=sent.append, finish=end)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    killed_and_carried_on("wandb", tmp_path / "run")
    assert [(given["id"], given["resume"], given["name"]) for given in begun] == [
        (None, "allow", "run"),
        ("abc", "allow", "run"),
    ]
    assert [line["steps"] for line in sent if "step/loss" in line] == [2, 4, 6, 8]
    assert ended == [1, 0]


def test_an_error_reaches_every_callback_and_stays_the_one_that_is_raised() -> None:
    told: list[Any] = []

    def fail(error: Any) -> None:
        raise OSError("disk")

    callbacks: list[Any] = [SimpleNamespace(on_run_end=fail), SimpleNamespace(on_run_end=told.append), object()]
    with pytest.raises(ValueError, match="mine") as raised, ending(callbacks):
        raise ValueError("mine")
    assert told == [raised.value]
    assert "disk" in raised.value.__notes__[0]
    with pytest.raises(OSError, match="disk"), ending(callbacks):
        pass


def test_what_is_no_number_is_left_out() -> None:
    assert numbers({"loss": 1, "note": "warmed up", "best": None, "found": [None, 2.0]}) == {
        "loss": 1.0,
        "found/1": 2.0,
    }


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (logger,) = anyrig.loggers(["jsonl"], tmp_path / "file" / "logs")
    run = RunReport(device_plan(["/device:CPU:0"], 1), 8, 2, 2, SimpleNamespace(step=0, epoch=0, batch=0), None)
    with pytest.raises(UsageError, match=r"(?s)cannot write into .*logs.*ANY-REPORT-006"):
        logger.on_run_begin(run)
