"""Progress of a fit: one line for each epoch, updated in place on a terminal or in a notebook, else printed at its end.

Driven by the hooks of `reports.py`. Metrics are tensors and are read only when they are shown, at most ten times a
second, so that no step waits for the screen. Only carriage returns and spaces are used, and only where they are
understood; elsewhere no control characters are written.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import keras

from anyrig.report.reports import RunReport, SaveReport, StepReport
from anyrig.report.say import say
from anyrig.report.span import Span
from anyrig.report.words import age, clock, values

_EVERY = 0.1  # seconds between updates
_RECENT = 50  # updates that the speed shown is an average over
_NOTEBOOK_WIDTH = 120


class Display(Protocol):
    """Where lines go. `live` tells whether a line can be updated in place."""

    live: bool

    def update(self, line: str) -> None:
        """Show `line` in place of the one before."""

    def finish(self, line: str) -> None:
        """Leave `line` standing; the next one comes below it."""


class Plain:
    """A file, a pipe, a log: whole lines only."""

    live = False

    def update(self, line: str) -> None:
        """Show nothing."""

    def finish(self, line: str) -> None:
        """Print `line`."""
        if line:
            say(line)


class Live:
    """A terminal or a notebook's output. A line is cut at the width, so that the carriage return reaches its start."""

    live = True

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self._shown = 0

    def update(self, line: str) -> None:
        """Draw over the line before."""
        width = max(self._width() - 1, 1)  # a terminal wraps after its last column
        line = line if len(line) <= width else line[: width - 1] + "…"
        say(f"\r{line:<{min(self._shown, width)}}", end="")
        self._shown = len(line)

    def finish(self, line: str) -> None:
        """Draw all of `line`, or leave what is shown if it is empty, and go to the next line."""
        if line or self._shown:
            say(f"\r{line:<{self._shown}}" if line else "")
        self._shown = 0


def in_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook."""
    kernel = sys.modules.get("ipykernel.zmqshell")
    shell = sys.modules.get("IPython")
    return kernel is not None and shell is not None and isinstance(shell.get_ipython(), kernel.ZMQInteractiveShell)


def is_live() -> bool:
    """Tell whether a line on stdout can be updated in place."""
    return in_notebook() or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")


def display() -> Display:
    """Return the display that stdout allows."""
    if not is_live():
        return Plain()
    return Live((lambda: _NOTEBOOK_WIDTH) if in_notebook() else (lambda: shutil.get_terminal_size().columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a running line shows. `batches` and `left` (seconds) are None where they are not known."""

    epoch: int
    epochs: int
    batch: int
    batches: int | None
    rows_per_second: float | None = None
    left: float | None = None
    validating: int = 0
    metrics: Mapping[str, object] = field(default_factory=dict)
    saved: tuple[int, float] | None = None

    def line(self) -> str:
        """Return "epoch 3/10  128/313  ETA 0:12  12,345 rows/s  accuracy 0.9712  saved step 1,200 12 s ago"."""
        return "  ".join(part for part in self._parts() if part)

    def _parts(self) -> list[str]:
        saved = ""
        if self.saved is not None:
            ago = age(self.saved[1])
            saved = f"saved step {self.saved[0]:,} {ago}{'' if ago == 'now' else ' ago'}"
        return [
            _epoch(self.epoch, self.epochs),
            f"{self.batch:,}/{self.batches:,}" if self.batches else f"batch {self.batch:,}",
            f"validating, batch {self.validating:,}" if self.validating else "",
            f"ETA {clock(self.left)}" if self.left is not None and not self.validating else "",
            "" if self.validating else _rate(self.rows_per_second),
            values(self.metrics, "  "),
            saved,
        ]


def epoch_line(epoch: int, epochs: int, span: Span, metrics: Mapping[str, object]) -> str:
    """Return the line that stays: "epoch 3/10  4.2 s  12,345 rows/s  accuracy 0.9712  val_accuracy 0.9690"."""
    parts = (_epoch(epoch, epochs), f"{span.seconds:.1f} s", _rate(span.rows_per_second), values(metrics, "  "))
    return "  ".join(part for part in parts if part)


def _epoch(epoch: int, epochs: int) -> str:
    return f"epoch {epoch + 1}/{epochs}"


def _rate(rows_per_second: float | None) -> str:
    return "" if rows_per_second is None else f"{rows_per_second:,.{0 if rows_per_second >= 10 else 1}f} rows/s"


class Progress(keras.callbacks.Callback):
    """Shows a fit on `display`; see the module."""

    def __init__(self, display: Display, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._display = display
        self._now = now
        self._epochs = 0
        self._batches: int | None = None
        self._epoch = self._batch = self._validating = 0
        self._logs: Mapping[str, Any] = {}
        self._span = Span.at(now())
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=_RECENT)
        self._saved: tuple[int, float] | None = None
        self._next = 0.0

    def on_run_begin(self, run: RunReport) -> None:
        """Take what is known of the run."""
        self._epochs, self._batches = run.epochs, run.steps_per_epoch
        self._begin(run.position.epoch, run.position.batch)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin a line."""
        self._begin(epoch, 0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep the metrics, unread."""
        self._logs = logs or {}

    def on_step_report(self, step: StepReport) -> None:
        """Count the step, and show it if it is time."""
        self._span.add(step, self._now())
        self._batch = step.batch
        self._show()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Show how far validation is."""
        self._validating = batch + 1
        self._show()

    def on_save_report(self, save: SaveReport) -> None:
        """Remember the save for the lines to come."""
        self._saved = save.step, self._now()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Leave the epoch's line standing, and learn how many batches an epoch has."""
        self._batches = self._batches or self._batch
        self._display.finish(epoch_line(epoch, self._epochs, self._span, _read(logs or {})))

    def on_run_end(self, error: BaseException | None) -> None:
        """Leave a line that is not finished as it stands, so that what comes next has a line of its own."""
        self._display.finish("")

    def _begin(self, epoch: int, batch: int) -> None:
        self._epoch, self._batch, self._validating, self._logs = epoch, batch, 0, {}
        self._span = Span.at(self._now())
        self._recent.clear()

    def _show(self) -> None:
        now = self._now()
        if not self._display.live or now < self._next:
            return
        self._recent.append((now, self._batch, self._span.rows))
        self._display.update(self._moment(now).line())
        self._next = self._now() + _EVERY

    def _moment(self, now: float) -> Moment:
        seconds, batches, rows = (last - first for last, first in zip(self._recent[-1], self._recent[0], strict=True))
        known = seconds > 0 and batches > 0
        left = None
        if known and self._batches is not None:
            left = max(self._batches - self._batch, 0) * seconds / batches
        return Moment(
            epoch=self._epoch,
            epochs=self._epochs,
            batch=self._batch,
            batches=self._batches,
            rows_per_second=rows / seconds if known else None,
            left=left,
            validating=self._validating,
            metrics=_read(self._logs),
            saved=self._saved and (self._saved[0], now - self._saved[1]),
        )


def _read(logs: Mapping[str, Any]) -> dict[str, object]:
    """Return metrics as Python numbers; this is where a device is waited for."""
    return {name: keras.tree.map_structure(_number, value) for name, value in logs.items()}


def _number(value: Any) -> Any:
    return value.numpy().tolist() if hasattr(value, "numpy") else value
