"""What the training loop tells callbacks beyond Keras's logs: how each step and save went, and what run this is.

A callback that has `on_run_begin(RunReport)`, `on_load_report(LoadReport)` (after it, where something was loaded),
`on_step_report(StepReport)`, `on_save_report(SaveReport)` or `on_run_end(error)` is called with it; the others are not.
Nothing here reads a tensor or decides anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
    """One committed checkpoint: its step, its bytes of tensors, its folder.

    `seconds` is how long it took beside training, `pause_seconds` how long training waited for it. The report comes at
    the first boundary after the commit. `warnings` says which limits on space could not be held.
    """

    step: int
    seconds: float
    pause_seconds: float
    bytes: int
    path: Path
    warnings: tuple[str, ...] = ()


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


@contextmanager
def ending(callbacks: Iterable[Any]) -> Iterator[None]:
    """Tell every callback how what is inside ended: `on_run_end(None)`, or with the error that goes on its way."""
    callbacks = list(callbacks)[::-1]  # the progress line, which is the last, first leaves its line
    try:
        yield
    except BaseException as error:
        for callback in callbacks:
            try:
                notify([callback], "on_run_end", error)
            except Exception as second:  # noqa: BLE001 - the first error is the one to be seen
                error.add_note(f"and {type(callback).__name__}.on_run_end failed: {second}")
        raise
    notify(callbacks, "on_run_end", None)
