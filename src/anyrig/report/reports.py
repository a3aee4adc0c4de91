"""What the training loop tells callbacks beyond Keras's logs: how each step and save went, and what run this is.

A callback that has `on_run_begin(RunReport)`, `on_step_report(StepReport)`, `on_save_report(SaveReport)` or
`on_run_end()` is called with it; the others are not. Nothing here reads a tensor or decides anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyrig.topology.plan import DevicePlan


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step that is done. `step` counts from 1 over the run; `batch` batches of `epoch` (from 0) are done.

    `rows` are those of this step. `input_seconds` were spent waiting for the batch, `compute_seconds` on the step
    itself (on an accelerator: until it was handed over).
    """

    step: int
    epoch: int
    batch: int
    rows: int
    input_seconds: float
    compute_seconds: float


@dataclass(frozen=True, slots=True)
class SaveReport:
    """One committed checkpoint: its step, how long training waited for it, its bytes of tensors, its folder."""

    step: int
    seconds: float
    bytes: int
    path: Path


@dataclass(frozen=True, slots=True)
class RunReport:
    """A fit that begins. `position` (step, epoch, batch, rows) is where it begins; `epochs` is the total.

    `steps_per_epoch` is None where it is not known, `directory` where no checkpoints are made.
    """

    plan: DevicePlan
    global_size: int | None
    steps_per_epoch: int | None
    epochs: int
    position: Any
    directory: Path | None


def notify(callbacks: Iterable[Any], hook: str, *reports: Any) -> None:
    """Call `hook` of every callback that has it."""
    for callback in callbacks:
        if (call := getattr(callback, hook, None)) is not None:
            call(*reports)
