"""When a fit saves, what it saves, and how it goes on from what was saved.

Saves happen in the loop after all callbacks of a boundary, so that one state belongs to one step. The last step of an
epoch is saved at the epoch's end, unless a stop comes in between: then the end of the epoch is repeated on the way on.

In the loop a save is only begun: references are taken, and the session commits what they hold beside training. What
came of it, a report or an error, is fetched at the boundaries that follow, in this thread. Before the next save, before
the newest checkpoint is looked for, and however the loop is left, the save in flight is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import keras

from anyrig import names
from anyrig.checkpoints import other_versions
from anyrig.environment import environment
from anyrig.errors import Stopped, UsageError
from anyrig.positions import describe_position
from anyrig.report.reports import RunReport, notify
from anyrig.state.callbacks import callbacks_state, restore_callbacks
from anyrig.state.capture import Captured, CapturePlan, capture, plan_capture, take
from anyrig.state.optimizers import held_optimizers, optimizer_classes
from anyrig.state.report import LoadReport
from anyrig.state.restore import restore
from anyrig.state.walk import model_variables
from anyrig.store.commit import newest_sound
from anyrig.store.digest import state_digest_of
from anyrig.store.read import Checkpoint
from anyrig.store.tensors import StoredTensor
from anyrig.topology.numeric import numeric_settings
from anyrig.train.deadline import grace_period
from anyrig.train.every import Every
from anyrig.train.identity import refuse_changes
from anyrig.train.limits import Limits
from anyrig.train.loop import Boundary, Loop, Position
from anyrig.train.nonfinite import GoBack
from anyrig.train.pace import Pace, refuse_missing
from anyrig.train.session import Session, not_finite
from anyrig.train.signals import StopRequest

_SHOWN = 20  # lines of what was not loaded
# What may differ between two phases of one run.
_OF_A_PHASE = ("compile", "epochs", "initial_epoch", "callbacks")


class LimitReached(Exception):
    """The run has had the steps that its limits allow."""


class Saver:
    """Runs a loop so that its state is saved and restored; without a session it only looks for stop requests."""

    def __init__(
        self,
        stop: StopRequest,
        session: Session | None,
        every: Every | None,
        loop: Loop,
        callbacks: Sequence[keras.callbacks.Callback],
        settled: Mapping[str, Any],
        limits: Limits,
    ) -> None:
        self.stop = stop
        self.session = session
        self.pace: Pace | None = None
        if session is not None and every is not None:
            self.pace = Pace(every, session.keeper, grace_period(), loop.nonfinite.tell)
        self.loop = loop
        self.callbacks = callbacks
        self.settled = settled
        self.limits = limits
        self._started = time.monotonic() if limits.since is None else limits.since
        self.identity: dict[str, Any] = {}
        self.loaded: LoadReport | None = None
        self._slots = "strict"
        self.messages: list[str] = []
        self._plan: CapturePlan | None = None
        self._newest_at: Position | None = None  # where the session's newest checkpoint was made
        self._before_end: list[StoredTensor] | None = None  # the last epoch's state, held if it is not saved
        self._entries_before = {name: len(values) for name, values in loop.history.items()}
        if loop.nonfinite.choice == "rollback" and session is None:
            raise UsageError(
                "ANY-TRAIN-019",
                'on_nonfinite is "rollback", and there is no checkpoint to go back to',
                hint="add an anyrig.Checkpoint to the callbacks",
            )

    def open(self, identity: Mapping[str, Any], allowed: Collection[str]) -> None:
        """Compare the run with the stored one and restore the stored state, if there is one."""
        assert self.session is not None
        self.identity = dict(identity)
        frozen = {id(v) for v in self.loop.model.non_trainable_variables}
        constant = {item.name for item in model_variables(self.loop.model) if id(item.variable) in frozen}
        tensors = capture(self.loop.model, optimizer=False, metrics=False).tensors
        self.session.constant_not_finite = not_finite(tensor for tensor in tensors if tensor.name in constant)
        self.messages += [f"not kept when the run is carried on: {line}" for line in self._unsupported()]
        self.messages += self.session.messages
        self.messages += [f"{r.name} cannot be used and was set aside: {r.reason}" for r in self.session.rejected]
        if self.session.stored is None:
            self.session.begin()
            self.session.events.emit("start", **self.settled)
            if self.loaded is not None:
                self.session.events.emit("load", step=0, **self.loaded.event)
            return
        if self._begins_phase():
            self._open_phase(identity, allowed)
            return
        differences = refuse_changes(self.session.stored.record["run"], identity, allowed)
        self.session.begin()
        self.loop.nonfinite.left_out = list(self.session.progress.get("left_out", []))
        self._slots = "partial" if "optimizer" in allowed else "strict"
        self.loaded = self._load(self.session.stored)
        self.loop.engine.read_seeds()
        position = self.loop.position
        self.session.newest, self._newest_at = self.session.stored, replace(position)
        self.messages += [f"changed: {line}" for line in differences]
        self.messages += _load_lines(self.loaded)
        self.messages.append(f"resuming {self.session.named} at {self._where()}")
        if self.session.progress["changed_at_end"] and not self._ended():
            self.messages.append(
                "the end of the earlier training changed the state (best weights restored, averages taken over): "
                "going on from that is not what training for all epochs at once would have given"
            )
        if self._ended():
            early = "a callback ended it" if position.epoch < self.loop.epochs else "all is done"
            self.messages.append(
                f"nothing is left to train: {early} after epoch {position.epoch} of {self.loop.epochs}"
            )
        self.session.events.emit("resume", changed=differences, **asdict(position))
        self.session.events.emit("load", step=position.step, **self.loaded.event)

    def _load(self, stored: Checkpoint) -> LoadReport:
        report = restore(stored, self.loop.model, slots=self._slots)
        return replace(report, source=str(stored.path), step=stored.step, notes=tuple(other_versions(stored.record)))

    def _begins_phase(self) -> bool:
        """Tell whether this fit is a phase that the newest checkpoint does not know yet."""
        stored = self.session.progress.get("phases") if self.session is not None else None
        return stored is not None and len(stored) < len(self.settled["phases"])

    def _open_phase(self, identity: Mapping[str, Any], allowed: Collection[str]) -> None:
        """Take the weights that the phase before has left; what is trained from here on, and how, is new."""
        assert self.session is not None
        assert self.session.stored is not None
        before, now = dict(self.session.stored.record["run"]), dict(identity)
        for run in (before, now):
            run["recipe"] = {key: value for key, value in run["recipe"].items() if key not in _OF_A_PHASE}
            run["model_config_hash"] = run["source_hash"] = None
        differences = refuse_changes(before, now, allowed)
        self.session.begin()
        self.loop.nonfinite.left_out = list(self.session.progress.get("left_out", []))
        restore(self.session.stored, self.loop.model, weights_only=True)
        self.session.stored = None
        self.loop.engine.read_seeds()
        self.messages += [f"changed: {line}" for line in differences]
        self.messages.append(f"phase {self.settled['phases'][-1]['name']} begins at {self._where()}")
        self.session.events.emit("phase", **self.settled["phases"][-1], **asdict(self.loop.position))

    def run(self) -> None:
        """Run the loop; on the way and at the end, save."""
        loop = self.loop
        loop.at_boundary = self.at_boundary
        loop.on_begin = self._begin
        loop.go_back = self._go_back
        try:
            self._run()
            self._settle()
        except BaseException as error:
            self._wait_after(error)
            raise

    def _run(self) -> None:
        loop = self.loop
        try:
            loop.run()
        except LimitReached as limit:
            self._fetch(wait=True)
            self.loop.nonfinite.tell(str(limit), kind="limit")
            return
        if loop.position.epoch < loop.epochs:
            loop.nonfinite.tell(f"ended early by a callback, {self._where()}", kind="ended_early")
        if self.session is None:
            return
        self._save_end()
        self.session.events.emit("end", **asdict(loop.position))

    def _save_end(self) -> None:
        """Save what on_train_end and the optimizer's final averages changed, which belongs to the run."""
        assert self.session is not None
        self._fetch(wait=True)
        captured, position = self._capture(), self.loop.position
        now = state_digest_of(captured.tensors, position.step)
        newest = self.session.newest if self._newest_at == position else None
        if newest is not None and newest.state_digest == now:
            return
        before = newest and newest.state_digest
        if self._before_end is not None:
            before = state_digest_of(self._before_end, position.step)
        self._save("end", captured, changed_at_end=before != now)
        self._fetch(wait=True)

    def _fetch(self, *, wait: bool) -> None:
        """Tell the callbacks of a save that has ended; raise the error of one that failed."""
        report = self.session.saved(wait=wait) if self.session is not None else None
        if report is not None and self.pace is not None:
            self.pace.ended(report)
            notify(self.loop.callbacks.callbacks, "on_save_report", report)

    def _wait_after(self, error: BaseException) -> None:
        """Let the save in flight end before `error` goes its way, which nothing that fails here takes the place of."""
        try:
            self._fetch(wait=True)
            self._settle()
        except Exception as second:  # noqa: BLE001 - the first error is the one to be seen
            error.add_note(f"and the save that was going on failed: {second}")

    def _settle(self) -> None:
        """Let what is saved get to where it belongs, and tell what did not."""
        for line in self.session.settle() if self.session is not None else ():
            self.loop.nonfinite.tell(line, kind="remote")

    def at_boundary(self, boundary: Boundary) -> None:
        """Save if it is time or a stop was requested; end the run by raising Stopped in the latter case."""
        self._fetch(wait=False)
        if self.pace is not None and self.session is not None:
            self.pace.reached(boundary, self.session.events.emit, saving=self.session.in_flight)
        self._emit_epoch(boundary)
        if self.limits.seconds is not None and time.monotonic() - self._started >= self.limits.seconds:
            self.stop.request(f"limits.max_time ({self.limits.max_time})")
        ended = boundary.kind == "epoch" and self._finished()
        stopping = self.stop.requested and not ended
        limited = self._at_most_steps() and not ended
        if self.pace is not None and self.session is not None and stopping:
            self.pace.stopping(self.stop, saving=self.session.in_flight)
        if self.session is not None and (stopping or limited or self._due(boundary)):
            self._save(boundary.kind)
        elif self.session is not None and ended:
            self._before_end = self._capture().tensors
        if boundary.kind == "epoch":
            self._refuse_missing_metric()
        if stopping:
            self._fetch(wait=True)
            self._raise_stopped()
        if limited:
            raise self._limit_reached()

    def _at_most_steps(self) -> bool:
        return self.limits.max_steps is not None and self.loop.position.step >= self.limits.max_steps

    def _limit_reached(self) -> LimitReached:
        saved = f"saved {self.session.named} at" if self.session is not None else "nothing was saved; this is"
        return LimitReached(f"limits.max_steps ({self.limits.max_steps}) reached: {saved} {self._where()}")

    def _due(self, boundary: Boundary) -> bool:
        return self.pace is not None and self.pace.due(boundary, self.loop.position, self.loop.last_logs)

    def _refuse_missing_metric(self) -> None:
        loop, monitor = self.loop, self.session.keep.monitor if self.session is not None else None
        validated = loop.validate is None or loop.model._should_eval(loop.position.epoch - 1, loop.validation_freq)
        refuse_missing(monitor, loop.last_logs, loop.position.epoch, validated=bool(validated))

    def _finished(self) -> bool:
        return self.loop.position.epoch >= self.loop.epochs or self.loop.model.stop_training

    def _ended(self) -> bool:
        """Tell whether the stored run is at its end: all epochs done, or ended by a callback after an epoch."""
        progress = self.session.progress if self.session is not None else {}
        return self._finished() or (progress["stop_training"] and not self.loop.position.batch)

    def _unsupported(self) -> list[str]:
        return callbacks_state(self.callbacks).unsupported

    def _begin(self) -> None:
        self._restore_again()
        loop, directory = self.loop, self.session.directory if self.session is not None else None
        size, length = self.settled["global_size"], loop.stream.length()
        report = RunReport(loop.engine.plan, size, length, loop.epochs, replace(loop.position), directory)
        notify(loop.callbacks.callbacks, "on_run_begin", report)
        if self.loaded is not None:
            notify(loop.callbacks.callbacks, "on_load_report", self.loaded)
        if self.pace is not None:
            self.pace.begin()
        if self._at_most_steps():
            raise self._limit_reached()

    def _restore_again(self) -> None:
        """Let the stored state win over what callbacks set when training began, and give callbacks their own state."""
        stored = self.session.stored if self.session is not None else None
        if stored is None:
            return
        self._load(stored)
        arrays: dict[str, dict[str, Any]] = {}
        for name in stored.names:
            group, _, rest = name.partition("/")
            if group == "callbacks":
                key, _, array = rest.partition("/")
                arrays.setdefault(names.unescape(key), {})[array] = stored.tensor(name)
        restore_callbacks(self.callbacks, stored.progress["callbacks"], arrays)
        self.loop.model.stop_training = stored.progress["stop_training"]

    def _go_back(self, asked: GoBack) -> None:
        """Put the newest committed state of this phase in place: variables, callbacks, position and history."""
        if self.session is None:
            raise asked.otherwise from asked
        self._fetch(wait=True)
        self.session.stored, _ = newest_sound(self.session.checkpoints)
        if self.session.stored is None or self._begins_phase():  # a phase has an optimizer of its own
            raise asked.otherwise from asked
        loop, progress = self.loop, self.session.progress
        loop.position = Position(**progress["position"])
        loop.memory.went_back(loop.position.step)
        loop.stream.go_to(**progress["stream"])
        loop.history, loop.last_logs = progress["history"], progress["metrics"]
        for callback in loop.callbacks.callbacks:
            if isinstance(callback, keras.callbacks.History):
                begins = self._entries_before
                callback.history = {name: values[begins.get(name, 0) :] for name, values in loop.history.items()}
                callback.epoch = [epoch for epoch in callback.epoch if epoch < loop.position.epoch]
        self._restore_again()

    def _capture(self) -> Captured:
        """Take references to the state; what takes long, finding its names, is done once for the same variables."""
        if self._plan is None or not self._plan.still_holds(self.loop.model):
            self._plan = plan_capture(self.loop.model)
        return take(self._plan)

    def _save(self, boundary: str, captured: Captured | None = None, *, changed_at_end: bool = False) -> None:
        """Begin to save the present state, `captured` if it is at hand; the save before is waited for first."""
        assert self.session is not None
        loop = self.loop
        waited_since = time.monotonic()
        self._fetch(wait=True)
        began = time.perf_counter()
        captured, states = captured or self._capture(), callbacks_state(self.callbacks)
        arrays = [
            StoredTensor(name=f"callbacks/{names.escape(key)}/{name}", array=array)
            for key, held in states.arrays.items()
            for name, array in held.items()
        ]
        self._newest_at = replace(loop.position)
        self.session.save(
            loop.position.step,
            [*captured.tensors, *arrays],
            began=began,
            progress={
                "step": loop.position.step,
                "updates": _updates(loop.model),
                "position": asdict(loop.position),
                "stream": {"number": loop.stream.number, "taken": loop.stream.taken},
                "boundary": boundary,
                "changed_at_end": changed_at_end,
                "stop_training": bool(loop.model.stop_training),
                "left_out": loop.nonfinite.left_out,
                "epochs": loop.epochs,
                "metrics": loop.last_logs,
                "history": loop.history,
                "callbacks": states.json,
                "forks": loop.memory.forks,
                **self.settled,
                "virtual_replicas": loop.engine.plan.virtual_replicas if loop.engine.plan.divided else None,
            },
            documents=captured.documents,
            assets=captured.assets,
            record=self._record,
        )
        if self.pace is not None:
            self.pace.saved(waited_since)

    @cached_property
    def _record(self) -> dict[str, Any]:
        assert self.session is not None
        return {
            "run": self.identity,
            "keep": asdict(self.session.keep),
            "inputs": keras.tree.map_structure(_specification, self.loop.stream.source.sample()[0]),
            "numeric": numeric_settings(),
            "environment": environment(),
            "optimizers": optimizer_classes(held_optimizers(self.loop.model)),
        }

    def _where(self) -> str:
        position = self.loop.position
        return f"step {position.step:,}, {describe_position(position.epoch, position.batch, self.loop.epochs)}"

    def _emit_epoch(self, boundary: Boundary) -> None:
        if self.session is not None and boundary.kind == "epoch":
            self.session.events.emit("epoch", **asdict(self.loop.position), metrics=self.loop.last_logs)

    def _raise_stopped(self) -> None:
        position, reason, where = self.loop.position, self.stop.reason, self._where()
        if self.session is None:
            raise Stopped(
                "ANY-RUN-013",
                f"stopped by {reason} after {where}; nothing was saved",
                hint="add an anyrig.Checkpoint to the callbacks",
            )
        self.session.events.emit("stop", reason=reason, **asdict(position))
        raise Stopped(
            "ANY-RUN-011",
            f"stopped by {reason}: saved {self.session.named} at {where}",
            hint="start it again the same way, on any number of devices, to go on",
        )


def _load_lines(report: LoadReport) -> list[str]:
    """Say what was not loaded as it was stored: a loss scale after a change of precision, slots, other versions."""
    ours = {name: why for name, why in report.ignored.items() if name.startswith(("model/", "optimizer/", "ema/"))}
    lines = list(report.notes) + [f"{name}: {reason}" for name, reason in report.started.items()]
    lines += [f"{name} is left out: {why}" for name, why in ours.items()]
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"... and {len(lines) - _SHOWN} more in events.jsonl"]


def _specification(leaf: Any) -> dict[str, Any]:
    """Return shape and dtype of one input, from which a model that is not built yet can be built without its data."""
    return {"shape": [None, *leaf.shape[1:]], "dtype": keras.backend.standardize_dtype(leaf.dtype)}


def _updates(model: keras.Model) -> int:
    optimizer = model.optimizer
    return int(keras.ops.convert_to_numpy(optimizer.iterations)) if optimizer is not None else 0
