"""Records in MLflow and in Weights & Biases. Both are imported when training begins, and only if they are asked for.

A file in the run directory keeps the tracker's own name of the run, so that a run that is carried on is one run there
too, and the mark of the last record that was sent. What has been sent cannot be taken back, and a run repeats the same
numbers after its checkpoint, so a record up to that mark is not sent again.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from anyrig.errors import Stopped, UsageError
from anyrig.report.files import replace_text
from anyrig.report.record import Mark, Record


def require(module: str, extra: str) -> Any:
    """Import an optional package, or raise UsageError naming the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise UsageError(
            "ANY-REPORT-001", f"{module} is not installed", hint=f"pip install 'anyrig[{extra}]'"
        ) from error


class _Sent:
    """What was sent of a run: the tracker's identifier of it and the last mark, kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.identifier: str | None = None
        self._last = Mark(0, False)

    def read(self, after: Mark | None) -> None:
        """Read the file of a run directory; without one, each fit is a run of its own."""
        if after is not None and self._path.exists():
            content = json.loads(self._path.read_text(encoding="utf-8"))
            self.identifier, self._last = content["id"], Mark(*content["last"])

    def is_new(self, record: Record) -> bool:
        """Tell whether a record comes after all that was sent."""
        return record.mark > self._last

    def keep(self, record: Record) -> None:
        """Store that `record` was sent."""
        self._last = record.mark
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(self._path, json.dumps({"id": self.identifier, "last": self._last}) + "\n")


class MlflowRun:
    """One MLflow run, where MLflow's own settings say (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, ...)."""

    def __init__(self, directory: Path) -> None:
        self._name = directory.resolve().name
        self._sent = _Sent(directory / "mlflow.json")
        self._mlflow: Any = None

    def open(self, after: Mark | None) -> None:
        """Begin the run, or go on with it; it is MLflow's active run while training lasts."""
        mlflow = require("mlflow", "mlflow")
        self._sent.read(after)
        inside = mlflow.active_run() is not None
        run = mlflow.start_run(run_id=self._sent.identifier, run_name=self._name, nested=inside)
        self._sent.identifier, self._mlflow = run.info.run_id, mlflow

    def write(self, record: Record) -> None:
        """Send one record."""
        if self._sent.is_new(record):
            self._mlflow.log_metrics(record.values(), step=record.mark.step, run_id=self._sent.identifier)
            self._sent.keep(record)

    def close(self, error: BaseException | None) -> None:
        """End the run: finished, killed (stopped to be carried on), or failed."""
        if self._mlflow is not None:
            self._mlflow.end_run("FINISHED" if error is None else "KILLED" if isinstance(error, Stopped) else "FAILED")


class WandbRun:
    """One run of Weights & Biases, in the project that its own settings name (WANDB_PROJECT, WANDB_MODE, ...)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sent = _Sent(directory / "wandb.json")
        self._run: Any = None

    def open(self, after: Mark | None) -> None:
        """Begin the run, or go on with it."""
        wandb = require("wandb", "wandb")
        self._sent.read(after)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            dir=self._directory, name=self._directory.resolve().name, id=self._sent.identifier, resume="allow"
        )
        self._sent.identifier = self._run.id
        self._run.define_metric("*", step_metric="steps")

    def write(self, record: Record) -> None:
        """Send one record."""
        if self._sent.is_new(record):
            self._run.log({"steps": record.mark.step, **record.values()})
            self._sent.keep(record)

    def close(self, error: BaseException | None) -> None:
        """Send what is left, and how it ended."""
        if self._run is not None:
            self._run.finish(exit_code=0 if error is None else 1)
