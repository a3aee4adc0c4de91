"""The training loop: epochs, steps, Keras callbacks, validation; entered at any position.

The loop knows nothing of disks or devices. It drives an engine over a stream of batches, calls the callbacks as Keras's
`fit` does, and tells `at_boundary` after all callbacks of each execution (`steps_per_execution` steps, mostly one) and
of each epoch, where saving and stopping belong.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import keras

from anyrig.data.source import Batch, count_rows, no_rows
from anyrig.data.stream import Stream
from anyrig.errors import UsageError
from anyrig.report.reports import StepReport, notify
from anyrig.train.nonfinite import GoBack, NonFinitePolicy
from anyrig.train.outofmemory import OutOfMemoryPolicy, back_to_committed
from anyrig.train.passes import Logs, ValidationStopped, executions, last_of, plain
from anyrig.train.step.engine import Engine
from anyrig.train.step.exhausted import OutOfMemory


@dataclass(slots=True)
class Position:
    """How far a run is: batches and rows consumed in all, epochs finished, batches consumed in the current epoch."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Boundary:
    """A point between two executions: `kind` is "batch" or "epoch".

    `last_batch` says that an epoch's end comes next, `steps` how many steps were done since the boundary before.
    """

    kind: str
    last_batch: bool = False
    steps: int = 1


class LogsOfEpoch(keras.callbacks.Callback):
    """Keeps an epoch's logs as the other callbacks left them: ReduceLROnPlateau, for one, adds the learning rate."""

    logs: Logs

    def on_epoch_end(self, _epoch: int, logs: Logs | None = None) -> None:
        """Take the logs."""
        self.logs = plain(logs or {})


@dataclass(slots=True)
class Loop:
    """One call of fit, from `position` to `epochs`."""

    engine: Engine
    model: keras.Model
    stream: Stream
    epochs: int
    position: Position
    history: dict[str, list[Any]]
    callbacks: keras.callbacks.CallbackList
    memory: OutOfMemoryPolicy
    at_boundary: Callable[[Boundary], None] = lambda boundary: None
    validate: Callable[[], Logs] | None = None
    validation_freq: Any = 1
    earlier: Position = field(default_factory=Position)  # what the model was trained before, in calls of their own
    on_begin: Callable[[], None] = lambda: None
    most_steps: int | None = None  # of the run in all; an execution of several ends there as well
    nonfinite: NonFinitePolicy = field(default_factory=NonFinitePolicy)
    go_back: Callable[[GoBack], None] = lambda asked: None  # to the newest committed state, with position and history
    last_logs: Logs = field(default_factory=dict)
    _compiled: tuple[Any, ...] = ()
    _trainable: list[bool] = field(default_factory=list)
    _seen: LogsOfEpoch = field(default_factory=LogsOfEpoch)

    def run(self) -> None:
        """Train to the end; `at_boundary` may end it earlier by raising."""
        self.model.stop_training = False
        self._compiled, self._trainable = _compiled_parts(self.model), _trainable_layers(self.model)
        self.callbacks.callbacks.append(self._seen)
        self.callbacks.on_train_begin()
        if self.position.step == 0 and self.model._initial_epoch:  # set by Keras's BackupAndRestore
            self.begin_at(self.model._initial_epoch)
        if self.position.batch:
            self.callbacks.on_epoch_begin(self.position.epoch)
        self.on_begin()
        with closing(self.stream):
            # A stop asked for in an epoch that is not finished ends that epoch first.
            while self.position.epoch < self.epochs and (self.position.batch or not self._ends()):
                try:
                    self._epoch()
                except GoBack as asked:
                    self.go_back(asked)
        optimizer = self.model.optimizer
        if isinstance(optimizer, keras.optimizers.Optimizer) and self.position.epoch:
            optimizer.finalize_variable_values(self.model.trainable_weights)
        self.callbacks.on_train_end(self.last_logs or None)

    def begin_at(self, epoch: int) -> None:
        """Begin with `epoch`, as if the epochs before it had been trained."""
        self.position.epoch = self.stream.number = epoch
        self.position.step = epoch * (self.stream.length() or 0)

    def _ends(self) -> bool:
        if not self.model.stop_training and self.stream.is_over():
            warnings.warn(
                f"the data ran out: training ends after epoch {self.position.epoch} of {self.epochs}", stacklevel=2
            )
            self.model.stop_training = True
        return bool(self.model.stop_training)

    def _epoch(self) -> None:
        epoch = self.position.epoch
        if self.position.batch == 0:
            self.model.reset_metrics()
            self.callbacks.on_epoch_begin(epoch)
        logs = {} if self.model.stop_training else self._batches()
        # A step of the model's own may return logs that are no metrics: they are the epoch's then, as in Keras.
        logs = plain(self.model._get_metrics_result_or_logs(logs) if logs else self.model.get_metrics_result())
        if self.validate is not None and self.model._should_eval(epoch, self.validation_freq):
            try:
                logs |= {f"val_{name}": value for name, value in self.validate().items()}
            except ValidationStopped:
                self.at_boundary(Boundary("batch"))
                raise
        self.callbacks.on_epoch_end(epoch, logs)
        self.last_logs = self._seen.logs
        for name, value in self.last_logs.items():
            self.history.setdefault(name, []).append(value)
        self.stream.end_epoch()
        self.position.epoch, self.position.batch = epoch + 1, 0
        self.at_boundary(Boundary("epoch"))

    def _batches(self) -> Logs:
        """Do the steps that are left of the epoch and return the logs after the last one."""
        group = executions(self.model)
        epoch = self.earlier.epoch + self.position.epoch
        self._refuse_freezing()
        waiting, logs = time.perf_counter(), Logs()
        left = None if self.most_steps is None else self.most_steps - self.position.step
        for batches, ends in self.stream.epoch(epoch, self.position.batch, group, left):
            fetched = time.perf_counter()
            self.callbacks.on_train_batch_begin(self.position.batch)
            begun = time.perf_counter()
            rows, logs = self._steps(batches)
            computed = time.perf_counter()
            self.callbacks.on_train_batch_end(last_of(self.position.batch, len(batches), group), logs)
            place = (self.position.step, self.position.epoch, self.position.batch, rows)
            report = StepReport(*place, fetched - waiting, computed - begun)
            notify(self.callbacks.callbacks, "on_step_report", report)
            last = bool(ends or self.model.stop_training)
            self.at_boundary(Boundary("batch", last_batch=last, steps=len(batches)))
            if self.model.stop_training:
                break
            waiting = time.perf_counter()
        if self.position.batch == 0:
            raise no_rows()
        self._refuse_freezing()
        return logs

    def _refuse_freezing(self) -> None:
        """Raise if layers were frozen or unfrozen: traces know nothing of it, and those of a resumed run would."""
        if self.engine.plan.divided and _trainable_layers(self.model) != self._trainable:
            raise _changed_on_the_way("partly frozen or unfrozen")

    def _steps(self, batches: list[Batch]) -> tuple[int, Logs]:
        """Do one step for each batch; return their rows in all, and the logs after the last one."""
        rows, logs = 0, {}
        for batch in batches:
            if any(now is not then for now, then in zip(_compiled_parts(self.model), self._compiled, strict=True)):
                raise _changed_on_the_way("compiled anew")
            place = (self.earlier.step + self.position.step, self.position.epoch, self.position.batch)
            logs = self._train(batch, place)
            self.position.step += 1
            self.position.batch += 1
            rows += count_rows(batch)
        self.position.rows += rows
        return rows, logs

    def _train(self, batch: Batch, place: tuple[int, int, int]) -> Logs:
        """Do one step, in smaller parts where memory is wanting; `place` is its step, epoch and batch."""
        while True:
            try:
                return self.nonfinite.train(self.engine, batch, *place)
            except OutOfMemory as found:
                self.engine = self.memory.smaller(self.engine, batch, self.position.step, found)
                if found.half_made:
                    raise back_to_committed(self.position.step, found) from found


def _compiled_parts(model: keras.Model) -> tuple[Any, ...]:
    return model.optimizer, model._compile_loss, model._compile_metrics


def _trainable_layers(model: keras.Model) -> list[bool]:
    return [layer.trainable for layer in model._flatten_layers()]


def _changed_on_the_way(how: str) -> UsageError:
    return UsageError(
        "ANY-TRAIN-016",
        f"the model was {how} while it was being trained",
        hint='let the fit end, compile, and call fit again; within one run, as its next phase: fit(..., phase="fine")',
    )
