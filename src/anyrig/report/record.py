"""What loggers write: one record for every n steps and one for each epoch, handed to a sink.

`Logger` is the Keras callback that makes records from the hooks of `reports.py`; a sink (a file, TensorBoard, a
tracking server) writes them. A run that is carried on repeats what came after its checkpoint, so each record has a mark
that orders it within the run: a sink takes out, or leaves out, what would stand there twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import keras

from anyrig.errors import UsageError
from anyrig.report.reports import RunReport, SaveReport, StepReport
from anyrig.report.span import Span
from anyrig.report.weights import Spread, spreads
from anyrig.state.report import LoadReport

EVERY = 10  # steps between records: reading the metrics waits for the device


class Mark(NamedTuple):
    """Where a record stands in a run; an epoch's end comes after its last step."""

    step: int
    of_epoch: bool


@dataclass(frozen=True, slots=True)
class Record:
    """Metrics after a step or an epoch, and the speed since the record before; `epoch` counts from 1.

    Of a load, `load` has counts and `weights` how the loaded weights are spread, or `load` the loss of the first step.
    """

    mark: Mark
    epoch: int
    metrics: Mapping[str, float]
    speed: Mapping[str, float]
    load: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, Spread] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Return "step", "epoch" or "load"."""
        if self.load:
            return "load"
        return "epoch" if self.mark.of_epoch else "step"

    def values(self) -> dict[str, float]:
        """Return all values by tag: "epoch/val_loss", "step/loss", "speed/rows_per_second"."""
        speed = {} if self.mark.of_epoch else {f"speed/{name}": value for name, value in self.speed.items()}
        return {f"{self.kind}/{name}": value for name, value in {**self.metrics, **self.load}.items()} | speed


class Sink(Protocol):
    """Where records go."""

    def open(self, after: Mark | None) -> None:
        """Get ready. What is stored of this run after `after` will come again; None: nothing is known of earlier."""

    def write(self, record: Record) -> None:
        """Write one record, so that it outlives the process."""

    def close(self, error: BaseException | None) -> None:
        """Let go of files and connections; called also after an error, and without `open`."""


class Logger(keras.callbacks.Callback):
    """Writes metrics and speed into `sink` every `every` steps and after each epoch of a `rig.fit`.

    `directory` is where the sink writes: only in the run's own directory is earlier content taken for the run's.
    """

    def __init__(
        self, sink: Sink, directory: Path, every: int = EVERY, now: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._sink = sink
        self._directory = directory.resolve()
        self._every = every
        self._now = now
        self._logs: Mapping[str, Any] = {}
        self._just_loaded = False
        self._step: int | None = None
        self._steps = self._epoch = Span.at(now())

    def on_run_begin(self, run: RunReport) -> None:
        """Open the sink where the run begins or goes on."""
        at = run.position
        self._step = at.step
        self._steps, self._epoch = Span.at(self._now()), Span.at(self._now())
        own = run.directory is not None and run.directory.resolve() == self._directory
        try:
            self._sink.open(Mark(at.step, at.batch == 0) if own else None)
        except OSError as error:
            raise UsageError(
                "ANY-REPORT-006",
                f"a logger cannot write into {self._directory}: {error}",
                hint="give loggers a folder that you may write to",
            ) from error

    def on_load_report(self, report: LoadReport) -> None:
        """Write how much was loaded where the run begins or goes on, how fast, what was not, and how weights spread."""
        counts = {
            "tensors": len(report.restored),
            "bytes": report.bytes,
            "seconds": report.seconds,
            "cast": len(report.cast),
            "left": len(report.ignored),
            "started": len(report.started),
        }
        load = {name: float(count) for name, count in counts.items()}
        weights = dict(spreads(self.model, report.restored))
        self._sink.write(Record(Mark(self._step or 0, False), 1, {}, {}, load, weights))
        self._just_loaded = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Leave out what lay between the epochs."""
        self._steps.go_on(self._now())
        self._epoch.go_on(self._now())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep the metrics, unread."""
        self._logs = logs or {}

    def on_step_report(self, step: StepReport) -> None:
        """Count the step, and write if it is time."""
        before, self._step = self._step or 0, step.step
        for span in (self._steps, self._epoch):
            span.add(step, self._now(), step.step - before)
        if self._just_loaded and (loss := numbers(self._logs).get("loss")) is not None:
            self._sink.write(Record(Mark(step.step, False), step.epoch + 1, {}, {}, {"first_loss": loss}))
        self._just_loaded = False
        if step.step // self._every > before // self._every:
            self._write(Mark(step.step, False), step.epoch, self._logs, self._steps)
            self._steps = Span.at(self._now())

    def on_save_report(self, save: SaveReport) -> None:
        """Count the time that training waited for a save."""
        for span in (self._steps, self._epoch):
            span.save_seconds += save.pause_seconds

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the epoch."""
        if self._step is None:
            raise UsageError(
                "ANY-REPORT-003", "a logger of anyrig was given to Keras's own fit", hint="train with rig.fit or Run"
            )
        self._write(Mark(self._step, True), epoch, logs or {}, self._epoch)
        self._epoch = Span.at(self._now())

    def on_run_end(self, error: BaseException | None) -> None:
        """Close the sink."""
        self._sink.close(error)

    def get_state(self) -> dict[str, Any]:
        """Return nothing: what a logger goes on from is in its file, so it may be added or left out at any time."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take nothing back."""

    def _write(self, mark: Mark, epoch: int, logs: Mapping[str, Any], span: Span) -> None:
        self._sink.write(Record(mark, epoch + 1, numbers(logs), span.speed()))


def numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as numbers; a metric of several values becomes several: "f1_score/0", "f1_score/1".

    What a user's callback puts among them and is no number (a text, None) is left out.
    """
    found: dict[str, float] = {}
    for name, value in logs.items():
        array = value.numpy() if hasattr(value, "numpy") else value
        plain = array.tolist() if hasattr(array, "tolist") else array
        if isinstance(plain, list | tuple):
            found |= numbers({f"{name}/{index}": item for index, item in enumerate(plain)})
        elif isinstance(plain, int | float):
            found[name] = float(plain)
    return found
