"""A TensorFlow profile of a few steps of a fit: where the time goes, operation by operation.

The steps before it are left alone, so that tracing and the filling of the input pipeline are not in it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from anyrig.errors import UsageError
from anyrig.report.reports import RunReport, StepReport
from anyrig.report.say import say

_BEFORE = 3  # steps that are left out


class Profile(keras.callbacks.Callback):
    """Profiles `steps` steps after the first three of a fit, into `directory` (default: RUN/tensorboard)."""

    def __init__(self, steps: int, directory: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        if steps < 1:
            raise UsageError("ANY-REPORT-004", f"profile: expected a number of steps, found {steps}", hint="e.g. 10")
        self._steps = steps
        self._directory = Path(directory) if directory is not None else None
        self._done = self._profiled = 0
        self._running = False

    def on_run_begin(self, run: RunReport) -> None:
        """Settle the folder."""
        if self._directory is None and run.directory is None:
            raise UsageError(
                "ANY-REPORT-005",
                "profile: there is no run directory to write to",
                hint='give a folder: anyrig.Profile(10, "logs"), or add an anyrig.Checkpoint',
            )
        if self._directory is None and run.directory is not None:
            self._directory = run.directory / "tensorboard"
        self._done = self._profiled = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Start before the first step that is profiled."""
        if self._done == _BEFORE:
            tf.profiler.experimental.start(str(self._directory))
            self._running = True

    def on_step_report(self, step: StepReport) -> None:
        """Stop after the last one."""
        self._done += 1
        if self._running and self._done == _BEFORE + self._steps:
            self._stop()

    def on_run_end(self, error: BaseException | None) -> None:
        """Stop if training ended before, and say where the profile is."""
        if self._running:
            self._stop()
        if self._profiled:
            say(
                f"profile of {self._profiled} steps: {self._directory}/plugins/profile\n"
                f"  to see it: pip install tensorboard-plugin-profile && tensorboard --logdir {self._directory}"
            )
        elif error is None:
            say(f"no profile: the fit had {self._done} steps, and the first {_BEFORE} are left out")

    def get_state(self) -> dict[str, Any]:
        """Return nothing: each fit is profiled anew."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take nothing back."""

    def _stop(self) -> None:
        tf.profiler.experimental.stop()
        self._running = False
        self._profiled = self._done - _BEFORE
