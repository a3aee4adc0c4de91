"""Loggers by name, as a recipe lists them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anyrig.errors import UsageError

if TYPE_CHECKING:
    from anyrig.report.record import Logger, Sink


def _tensorboard(directory: Path) -> Sink:
    from anyrig.report.tensorboard import TensorBoardFolder

    return TensorBoardFolder(directory / "tensorboard")


def _jsonl(directory: Path) -> Sink:
    from anyrig.report.files import JsonLinesFile

    return JsonLinesFile(directory / "metrics.jsonl")


def _csv(directory: Path) -> Sink:
    from anyrig.report.files import CsvFile

    return CsvFile(directory / "metrics.csv")


def _mlflow(directory: Path) -> Sink:
    from anyrig.report.trackers import MlflowRun, require

    require("mlflow", "mlflow")
    return MlflowRun(directory)


def _wandb(directory: Path) -> Sink:
    from anyrig.report.trackers import WandbRun, require

    require("wandb", "wandb")
    return WandbRun(directory)


SINKS: dict[str, Callable[[Path], Sink]] = {
    "tensorboard": _tensorboard,
    "jsonl": _jsonl,
    "csv": _csv,
    "mlflow": _mlflow,
    "wandb": _wandb,
}


def loggers(names: Sequence[str], directory: str | os.PathLike[str]) -> list[Logger]:
    """Return a Keras callback for `rig.fit` for each name; they write into `directory`, best the run's own.

    Names: tensorboard, jsonl, csv, mlflow, wandb. Raises UsageError for another one, and for a package that is missing.
    """
    from anyrig.report.record import Logger

    for name in names:
        if name not in SINKS:
            near = difflib.get_close_matches(name, SINKS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"use any of {', '.join(SINKS)}"
            raise UsageError("ANY-REPORT-002", f"there is no logger {name}", hint=hint)
    return [Logger(SINKS[name](Path(directory)), Path(directory)) for name in dict.fromkeys(names)]
