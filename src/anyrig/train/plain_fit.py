"""A run directory for plain `model.fit`: the state is saved at ends of epochs and restored when the fit is made again.

Keras's own loop trains, so nothing is promised of the numbers on the way on but what Keras keeps: weights, optimizer,
epoch. Of the files everything is promised that `Rig.fit` promises: same lock, same writer, same retention.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from anyrig.environment import environment
from anyrig.errors import UsageError
from anyrig.locations import local_directory
from anyrig.report.reports import SaveReport
from anyrig.report.say import say
from anyrig.state.capture import Captured, capture
from anyrig.state.replicas import with_means
from anyrig.state.restore import restore
from anyrig.state.values import to_array
from anyrig.store.digest import state_digest_of
from anyrig.store.tensors import StoredTensor
from anyrig.topology.numeric import numeric_settings
from anyrig.train.checkpoint import CheckpointSettings
from anyrig.train.keras_loop import FirstEpoch, LoopCall
from anyrig.train.kerasfit import changed_settings, kept_settings, optimizer_settings, to_be_validated
from anyrig.train.loop import Boundary, Position
from anyrig.train.pace import refuse_missing
from anyrig.train.session import Session, not_finite
from anyrig.train.timing import Timing

LOOP = "model.fit"

# A fit that was interrupted never comes to `on_train_end`: the next one of the process takes its directory over.
_open_sessions: dict[Path, tuple[Session, LoopCall]] = {}


def refuse_other_loop(progress: Mapping[str, Any], loop: str) -> None:
    """Raise if the run was trained by another loop: what it left says not all that this one needs."""
    trained_by = progress.get("loop", "Rig.fit")
    if progress and trained_by != loop:
        raise UsageError(
            "ANY-RUN-052",
            f"this run was trained by {trained_by}, and cannot be carried on by {loop}: its numbers would be neither's",
            hint=f"go on with {trained_by}, or begin another run directory with its weights",
        )


class PlainFit:
    """The saves of plain fits, one after another, into one run directory."""

    def __init__(self, settings: CheckpointSettings, saved: Callable[[SaveReport], None]) -> None:
        self._settings = settings
        self._saved = saved
        self._fit: _Fit | None = None

    def begin(self, model: Any, params: Mapping[str, Any]) -> None:
        """Take the directory, and restore the newest sound state into `model`; Keras then begins with its epoch."""
        directory = self._settings.directory
        if directory is None:
            raise UsageError(
                "ANY-RUN-012", "callbacks: the Checkpoint has no directory", hint='anyrig.Checkpoint("runs/my-run")'
            )
        if self._settings.interval.unit == "step":
            raise UsageError(
                "ANY-RUN-053",
                f"checkpoint: every {self._settings.every}, and plain model.fit can only be carried on after an epoch",
                hint='save every "1 epoch" or "10 minutes", with shorter epochs (steps_per_epoch), or use anyrig.Rig',
            )
        refuse_workers(model)
        key = local_directory(directory).expanduser().absolute()
        left = _open_sessions.get(key)
        if left is not None and not left[1].running and _open_sessions.pop(key, None) is left:
            close(left[0])
        with ExitStack() as stack:
            session = stack.enter_context(
                Session(directory, resume="auto", keep=self._settings.keep, shards=self._settings.shards)
            )
            verbose = bool(params.get("verbose", 1))
            self._fit = _Fit(session, model, self._settings, params["epochs"], verbose, self._saved)
            self._fit.open()
            _open_sessions[key] = session, LoopCall.present()
            stack.pop_all()

    def epoch_begins(self, epoch: int) -> None:
        """Note from where steps are counted."""
        if self._fit is not None:
            self._fit.epoch_begins()

    def batch_ends(self, batch: int, logs: Mapping[str, Any]) -> None:
        """Count the steps of the epoch."""
        if self._fit is not None:
            self._fit.counted = batch + 1

    def epoch_ends(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Save if it is time."""
        if self._fit is None:
            return
        self._fit.epoch_ends(epoch, logs)
        try:
            self._fit.refuse_missing_metric()
        except UsageError:
            close(self._let_go().session)
            raise

    def end(self) -> None:
        """Save what the end has changed, wait until all is written and uploaded, and let go of the directory."""
        if self._fit is None:
            return
        fit = self._let_go()
        try:
            fit.save_end()
        finally:
            close(fit.session)

    def _let_go(self) -> _Fit:
        fit, self._fit = self._fit, None
        assert fit is not None
        _open_sessions.pop(fit.session.directory, None)
        return fit

    def state(self) -> dict[str, Any]:
        """Return nothing: the run directory has it all."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""


class _Fit:
    """One fit: where it stands, and what it saves."""

    def __init__(
        self,
        session: Session,
        model: Any,
        settings: CheckpointSettings,
        epochs: int,
        verbose: bool,
        told: Callable[[SaveReport], None],
    ) -> None:
        self.session = session
        self.model = model
        self.counted = 0  # batches of this epoch by Keras's numbers
        self._updates_before = 0
        self._timing = Timing(settings.interval)
        self._epochs = epochs
        self._verbose = verbose
        self._told = told
        self._optimizer = optimizer_settings(model)
        self._before_end: list[StoredTensor] | None = None  # what the last epoch left, held if it is not saved
        progress = session.progress
        self._step: int = progress.get("step", 0)
        self._epoch: int = progress.get("position", {}).get("epoch", 0)
        self._metrics: dict[str, float] = progress.get("metrics", {})
        self._history: dict[str, list[float]] = progress.get("history", {})
        self._saved: tuple[int, bool] | None = None

    def open(self) -> None:
        """Restore what is stored, if anything is, and say where training goes on."""
        session, stored = self.session, self.session.stored
        refuse_other_loop(session.progress, LOOP)
        session.constant_not_finite = not_finite(capture(self.model, optimizer=False, metrics=False).tensors)
        if stored is not None:
            with self.model.distribute_strategy.scope():
                restore(stored, self.model, metrics=False)  # Keras resets them when an epoch begins
            self._compare_optimizer(stored.record.get("optimizer_settings", {}))
        session.begin()
        for message in session.messages:
            self._say(message)
        self._timing.begin(time.perf_counter())
        for rejected in session.rejected:
            self._say(f"{rejected.name} cannot be used and was set aside: {rejected.reason}")
        if stored is None:
            session.events.emit("start", loop=LOOP, epochs=self._epochs)
            return
        session.newest, self._saved = stored, (self._step, bool(stored.progress["stop_training"]))
        ended = "a callback ended it" if stored.progress["stop_training"] else "all is done"
        if stored.progress["stop_training"] or self._epoch >= self._epochs:
            self._say(f"nothing is left to train: {ended} after epoch {self._epoch} of {self._epochs}")
            self.model._initial_epoch = FirstEpoch.of_this_fit(max(self._epoch, self._epochs), self.model)
            self._hand_history()
        else:
            self._say(f"resuming {session.named} at step {self._step:,}, after epoch {self._epoch} of {self._epochs}")
            self.model._initial_epoch = FirstEpoch.of_this_fit(self._epoch, self.model)
        session.events.emit("resume", **self._position())

    def _compare_optimizer(self, first: Mapping[str, str]) -> None:
        if said := changed_settings(first, self._optimizer, optimizer_settings(self.model)):
            say(said)
        self._optimizer = kept_settings(first, self._optimizer)

    def _hand_history(self) -> None:
        """Let `fit`, which makes no epoch, return the numbers of those that the run has made."""
        history = getattr(self.model, "history", None)
        if isinstance(history, keras.callbacks.History):
            history.history = {name: list(values) for name, values in self._history.items()}

    def refuse_missing_metric(self) -> None:
        """Raise if the epoch that is over lacks the monitored metric."""
        monitor, epoch = self.session.keep.monitor, self._epoch
        validated = any(name.startswith("val_") for name in self._metrics) or to_be_validated(self.model, epoch)
        refuse_missing(monitor, self._metrics, epoch, validated=validated)

    def epoch_begins(self) -> None:
        """Note from where steps are counted."""
        self.counted, self._updates_before = 0, _updates(self.model)

    def epoch_ends(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Note where training stands, and save if it is time."""
        self._fetch(wait=False)
        self._step, self._epoch = self._step + self._steps_of_epoch(), epoch + 1
        self._metrics = {name: float(value) for name, value in logs.items() if np.ndim(value) == 0}
        for name, value in self._metrics.items():
            self._history.setdefault(name, []).append(value)
        self.session.events.emit("epoch", **self._position(), metrics=self._metrics)
        self._before_end = None
        if self._due():
            self._save(self._capture(), "epoch")
        elif self.model.stop_training or self._epoch >= self._epochs:
            self._before_end = self._capture().tensors

    def _steps_of_epoch(self) -> int:
        """Return how many batches the epoch had.

        Keras's number counts several steps in one execution as if the last one was full; how far it was, the updates
        tell, unless a step of the user's makes another number of them.
        """
        in_one: int = self.model.steps_per_execution
        made = _updates(self.model) - self._updates_before
        return made if self.counted - in_one < made <= self.counted else self.counted

    def save_end(self) -> None:
        """Save what the end of training has changed; an unchanged state is there already."""
        self._fetch(wait=True)
        captured, newest = self._capture(), self.session.newest
        now = state_digest_of(captured.tensors, self._step)
        unchanged = newest is not None and newest.state_digest == now
        stopped = bool(self.model.stop_training) and self._epoch < self._epochs
        if self._step and not (unchanged and self._saved == (self._step, stopped)):
            # A callback that stops after this one was asked leaves nothing to compare with: then no metric is claimed.
            held = self._before_end
            same = unchanged if held is None else state_digest_of(held, self._step) == now
            self._save(captured, "end", stopped=stopped, changed=not same)
            self._fetch(wait=True)
        self.session.events.emit("end", **self._position())
        for line in self.session.settle():
            say(line)
            self.session.events.emit("remote", message=line)

    def _fetch(self, *, wait: bool) -> None:
        """Tell of a save that has ended; raise the error of one that failed."""
        report = self.session.saved(wait=wait)
        if report is not None:
            self._told(report)
            for warning in report.warnings:
                self._say(warning)
                self.session.events.emit("warning", message=warning)

    def _due(self) -> bool:
        now, boundary = time.perf_counter(), Boundary("epoch")
        self._timing.reached(boundary, now, saving=self.session.in_flight)
        keeper = self.session.keeper
        best = keeper.would_be_best(self._metrics.get(keeper.keep.monitor or ""))
        return best or self._timing.due(boundary, Position(self._step, self._epoch), now)

    def _capture(self) -> Captured:
        captured = capture(self.model)
        return replace(captured, tensors=with_means(self.model, captured.tensors))

    def _save(self, captured: Captured, boundary: str, *, stopped: bool = False, changed: bool = False) -> None:
        began = time.perf_counter()
        self._fetch(wait=True)
        self.session.save(
            self._step,
            captured.tensors,
            began=began,
            progress={
                "loop": LOOP,
                "step": self._step,
                "updates": _updates(self.model),
                "position": self._position(),
                "boundary": boundary,
                "changed_at_end": changed,
                "stop_training": stopped,
                "epochs": self._epochs,
                "metrics": self._metrics,
                "history": self._history,
            },
            documents=captured.documents,
            assets=captured.assets,
            record={
                "keep": asdict(self.session.keep),
                "optimizer_settings": self._optimizer,
                "numeric": numeric_settings(),
                "environment": environment(),
            },
        )
        self._timing.saved(began, time.perf_counter())
        self._saved = self._step, stopped

    def _position(self) -> dict[str, int]:
        return {"step": self._step, "epoch": self._epoch, "batch": 0}

    def _say(self, message: str) -> None:
        if self._verbose:
            say(message)


def close(session: Session) -> None:
    """Wait for the save in flight, and let go of the directory whatever came of it."""
    try:
        session.saved(wait=True)
    finally:
        session.__exit__(None, None, None)


def refuse_workers(model: Any) -> None:
    """Raise if several processes train `model`: each would save."""
    strategy = model.distribute_strategy
    if strategy.extended._in_multi_worker_mode():
        raise UsageError(
            "ANY-RUN-054",
            f"checkpoint: {type(strategy).__name__} trains in several processes, and each of them would save",
            hint="train on one machine (MirroredStrategy, or anyrig.Rig on all its devices)",
        )


def _updates(model: Any) -> int:
    return 0 if model.optimizer is None else int(to_array(model.optimizer.iterations))
