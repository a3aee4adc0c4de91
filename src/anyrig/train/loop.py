"""The training loop: epochs, steps, Keras callbacks, validation; entered at any position.

The loop knows nothing of disks or devices. It drives an engine over a source, calls the callbacks as Keras's `fit`
does, and tells `at_boundary` after all callbacks of each step and each epoch, where saving and stopping belong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras

from anyrig.data.source import Batch, Source
from anyrig.errors import UsageError
from anyrig.train.signals import StopRequest
from anyrig.train.step.engine import Engine

Logs = dict[str, Any]


@dataclass(slots=True)
class Position:
    """How far a run is: batches and rows consumed in all, epochs finished, batches consumed in the current epoch."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Boundary:
    """A point between two steps: `kind` is "batch" or "epoch"; `last_batch` says that an epoch's end comes next."""

    kind: str
    last_batch: bool = False


class ValidationStopped(Exception):
    """A stop was asked for during validation; the epoch's end is repeated when the run goes on."""


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
    source: Source
    epochs: int
    position: Position
    history: dict[str, list[Any]]
    callbacks: keras.callbacks.CallbackList
    at_boundary: Callable[[Boundary], None] = lambda boundary: None
    validate: Callable[[], Logs] | None = None
    validation_freq: Any = 1
    earlier: Position = field(default_factory=Position)  # what the model was trained before, in calls of their own
    on_begin: Callable[[], None] = lambda: None
    last_logs: Logs = field(default_factory=dict)
    _optimizer: Any = None
    _seen: LogsOfEpoch = field(default_factory=LogsOfEpoch)

    def run(self) -> None:
        """Train to the end; `at_boundary` may end it earlier by raising."""
        self.model.stop_training = False
        self._optimizer = self.model.optimizer
        self.callbacks.callbacks.append(self._seen)
        self.callbacks.on_train_begin()
        if self.position.step == 0 and self.model._initial_epoch:  # set by Keras's BackupAndRestore
            self.position.epoch = self.model._initial_epoch
            self.position.step = self.position.epoch * (self.source.batches_per_epoch() or 0)
        if self.position.batch:
            self.callbacks.on_epoch_begin(self.position.epoch)
        self.on_begin()
        # A stop asked for in an epoch that is not finished ends that epoch first.
        while self.position.epoch < self.epochs and (self.position.batch or not self.model.stop_training):
            self._epoch()
        optimizer = self.model.optimizer
        if isinstance(optimizer, keras.optimizers.Optimizer) and self.position.epoch:
            optimizer.finalize_variable_values(self.model.trainable_weights)
        self.callbacks.on_train_end(self.last_logs or None)

    def _epoch(self) -> None:
        epoch = self.position.epoch
        if self.position.batch == 0:
            self.model.reset_metrics()
            self.callbacks.on_epoch_begin(epoch)
        if not self.model.stop_training:
            self._batches()
        logs = plain(self.model.get_metrics_result())
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
        self.position.epoch, self.position.batch = epoch + 1, 0
        self.at_boundary(Boundary("epoch"))

    def _batches(self) -> None:
        epoch = self.earlier.epoch + self.position.epoch
        for batch, ends in _with_last(self.source.batches(epoch, self.position.batch)):
            if self.model.optimizer is not self._optimizer:
                raise UsageError(
                    "ANY-TRAIN-016",
                    "the model was compiled anew while it was being trained",
                    hint="let the fit end, compile, and call fit again",
                )
            self.callbacks.on_train_batch_begin(self.position.batch)
            logs = self.engine.train(batch, self.earlier.step + self.position.step)
            self.position.step += 1
            self.position.batch += 1
            self.position.rows += int(keras.tree.flatten(batch[0])[0].shape[0])
            self.callbacks.on_train_batch_end(self.position.batch - 1, logs)
            last = ends or self.model.stop_training
            self.at_boundary(Boundary("batch", last_batch=last))
            if last:
                return
        if self.position.batch == 0:
            raise UsageError("ANY-DATA-003", "the data has no rows", hint="give at least one row")


def plain(logs: Logs) -> Logs:
    """Return Keras's logs as Python numbers (or lists of numbers for a metric with several values)."""
    return {name: keras.tree.map_structure(_plain_value, value) for name, value in logs.items()}


def _plain_value(value: Any) -> Any:
    return value.numpy().tolist() if hasattr(value, "numpy") else value


def _with_last(batches: Iterator[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Yield each batch and whether it is the last one, which takes looking one ahead."""
    current = next(batches, None)
    while current is not None:
        following = next(batches, None)
        yield current, following is None
        current = following


def run_test(
    engine: Engine, source: Source, callbacks: keras.callbacks.CallbackList, stop: StopRequest | None = None
) -> Logs:
    """Run one pass of evaluation and return its logs; end it with ValidationStopped when `stop` is requested."""
    engine.model.reset_metrics()
    callbacks.on_test_begin()
    logs: Logs = {}
    for index, batch in enumerate(source.batches(0)):
        if stop is not None and stop.requested:
            raise ValidationStopped
        callbacks.on_test_batch_begin(index)
        logs = engine.test(batch, index)
        callbacks.on_test_batch_end(index, logs)
    result = plain(logs)
    callbacks.on_test_end(result)
    return result
