"""Saves under names of the user's choosing, as Keras's ModelCheckpoint makes them: to choose a model, not to resume.

Each save is a checkpoint in a folder of the formatted name, written as every other: all of it or nothing. A name
without fields holds the newest alone; the one before is removed after it is on the disk. Nothing is ever restored.
"""

from __future__ import annotations

import difflib
import math
import os
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from anyrig.environment import environment
from anyrig.errors import UsageError
from anyrig.report.say import say
from anyrig.state.capture import capture
from anyrig.state.replicas import with_means
from anyrig.state.values import to_array
from anyrig.store.background import Background
from anyrig.store.commit import committed_steps, folders_with_steps, sweep_partials
from anyrig.store.lock import RunLock
from anyrig.store.plan import Shards
from anyrig.store.read import Checkpoint
from anyrig.store.retain import remove_steps
from anyrig.store.write import drained, write_checkpoint
from anyrig.train.checkpoint import CheckpointSettings, mode_of
from anyrig.train.every import Every
from anyrig.train.plain_fit import refuse_workers
from anyrig.train.session import not_finite, refuse_not_finite

_COUNTS = ("epoch", "batch", "step")
_ADDED = "learning_rate"  # Keras's callbacks put it into an epoch's logs
_MARK = "named_save"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSettings:
    """What is saved when, and under which name: fields are epoch and batch (from 1), step, and the metrics."""

    template: str
    every: Every
    shards: Shards
    weights_only: bool
    best_only: bool
    monitor: str
    mode: Literal["min", "max"]
    threshold: float | None

    @property
    def metrics(self) -> set[str]:
        """Names of the metrics that are asked for."""
        return (fields_of(self.template) - {*_COUNTS}) | ({self.monitor} if self.best_only else set())


def named_settings(
    settings: CheckpointSettings,
    *,
    weights_only: bool,
    best_only: bool,
    monitor: str | None,
    mode: str,
    threshold: float | None,
) -> NamedSettings:
    """Return what these settings mean; raise UsageError for what could only fail, or mean nothing, later."""
    monitor = monitor or "val_loss"
    if settings.directory is None:
        raise _refused("there is no name to save under", "give one: anyrig.Checkpoint('best', save_best_only=True)")
    if "://" in os.fspath(settings.directory):
        raise _refused(
            f"{settings.directory} is a URL: only a run directory may be one", "give a folder of this machine"
        )
    if settings.interval.unit not in ("step", "epoch"):
        raise _refused(f"every {settings.every} is for a run directory", 'give every="1 epoch" or "100 steps"')
    if best_only and settings.interval.unit == "step" and monitor.startswith("val_"):
        raise _refused(
            f"save_best_only by {monitor} every {settings.every}: within an epoch there is no {monitor}",
            'save every "1 epoch", or monitor a metric of training',
        )
    allowed = replace(
        CheckpointSettings(settings.directory, every=settings.every),
        max_shard_size=settings.max_shard_size,
        split=settings.split,
    )
    if settings != allowed:
        raise _refused("keep_..., max_total_size and min_free are for a run directory", "leave them away")
    try:
        found = mode_of(monitor, mode) if best_only else "min"
    except ValueError as error:
        raise _refused(str(error), 'e.g. mode="max"') from error
    template = os.fspath(settings.directory)
    formatted(template, dict.fromkeys(_COUNTS, 1) | dict.fromkeys(fields_of(template) - {*_COUNTS}, 0.5))
    return NamedSettings(
        template=template,
        every=settings.interval,
        shards=settings.shards,
        weights_only=weights_only,
        best_only=best_only,
        monitor=monitor,
        mode=found,
        threshold=threshold,
    )


def fields_of(template: str) -> set[str]:
    """Return the names of the fields in a template; raise UsageError if one is no plain name."""
    try:
        found = [
            (field, spec, kind) for _, field, spec, kind in string.Formatter().parse(template) if field is not None
        ]
    except ValueError as error:
        raise _refused(f"{template!r}: {error}", "write {{ and }} for braces that are no fields") from error
    for field, spec, kind in found:
        if not field.isidentifier() or kind or "{" in (spec or ""):
            raise _refused(f"{template!r} has the field {field!r}", "fields are names: {epoch:02d}, {val_loss:.2f}")
    return {field for field, _, _ in found}


def formatted(template: str, values: Mapping[str, float]) -> str:
    """Return the name with its fields filled in; a value that is not there is written "none"."""
    parts = []
    for literal, field, spec, _ in string.Formatter().parse(template):
        parts.append(literal)
        if field is not None:
            try:
                parts.append(format(values[field], spec or "") if field in values else "none")
            except ValueError as error:
                raise _refused(
                    f"{template!r}: {field}: {error}", "counts are {epoch:02d}, metrics {loss:.2f}"
                ) from error
    return "".join(parts)


class NamedSaves:
    """The saves of a fit, or of several one after another."""

    def __init__(self, settings: NamedSettings, *, verbose: bool = False) -> None:
        self._settings = settings
        self._verbose = verbose
        self._best = settings.threshold
        self._background: Background[None] = Background()
        self._model: Any = None
        self._folder = Path()
        self._constant: frozenset[str] = frozenset()
        self._known: set[str] | None = None
        self._epoch = self._batch = self._steps = 0
        self._told = False

    def begin(self, model: Any, params: Mapping[str, Any]) -> None:
        """Look at what is there under a name without fields: its best value is the one to beat."""
        settings = self._settings
        refuse_workers(model)
        self._folder = Path.cwd()  # callbacks may change it
        self._model, self._known, self._batch, self._steps = model, None, 0, 0
        self._constant = not_finite(capture(model, optimizer=False, metrics=False).tensors)
        if fields_of(settings.template):
            return
        newest = _newest_of_ours(Path(settings.template))
        value = newest.progress["metrics"].get(settings.monitor) if newest is not None and settings.best_only else None
        if value is not None and (self._best is None or self._better(value)):
            self._best = value
            say(f"{settings.template} holds {settings.monitor} {value:.6g}: only a better one takes its place")

    def epoch_begins(self, epoch: int) -> None:
        """Note which epoch it is."""
        self._epoch, self._batch = epoch, 0

    def batch_ends(self, batch: int, logs: Mapping[str, Any]) -> None:
        """Check the names of metrics after the first batch; save if it is time."""
        new, self._batch = batch + 1 - self._batch, batch + 1
        if self._known is None:
            new = min(new, self._model.steps_per_execution)  # the others of the epoch were made before a restart
            self._steps = max(_updates(self._model) - new, 0)  # the run's, restored by now with the optimizer
            self._known = {*logs, *(f"val_{name}" for name in logs), _ADDED}
            self._refuse_unknown(sorted(logs))
        self._steps += new
        every = self._settings.every
        if every.unit == "step" and self._steps % every.count < new:
            self._save_if_better(_numbers(logs))

    def epoch_ends(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Save if it is time."""
        self._background.finished()
        every = self._settings.every
        if every.unit == "epoch" and (epoch + 1) % every.count == 0:
            self._save_if_better(_numbers(logs))

    def end(self) -> None:
        """Wait for the save in flight."""
        self._background.wait()

    def state(self) -> dict[str, Any]:
        """Return the best value so far, if there is one."""
        return {"best": self._best} if self._settings.best_only and self._best is not None else {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take the best value of the interrupted fit."""
        self._best = state["best"]

    def _refuse_unknown(self, there: list[str]) -> None:
        unknown = sorted(self._settings.metrics - (self._known or set()))
        if unknown:
            near = difflib.get_close_matches(unknown[0], sorted(self._known or ()), n=1)
            raise _refused(
                f"there is no metric {unknown[0]}; training has {', '.join(there)}, and validation the same with val_",
                f"did you mean {near[0]}?" if near else "use one of them",
            )

    def _save_if_better(self, metrics: Mapping[str, float]) -> None:
        settings = self._settings
        if settings.best_only:
            value = metrics.get(settings.monitor)
            if value is None and not self._told:
                self._told = True
                say(f"{settings.template}: no {settings.monitor} after epoch {self._epoch + 1}; nothing is saved")
            if value is None or not self._better(value):
                return
            self._best = value
        self._save(metrics)

    def _better(self, value: float) -> bool:
        if math.isnan(value) or self._best is None:
            return not math.isnan(value)
        return value < self._best if self._settings.mode == "min" else value > self._best

    def _save(self, metrics: Mapping[str, float]) -> None:
        settings, model = self._settings, self._model
        step = max(_updates(model), self._steps)
        counts = {"epoch": self._epoch + 1, "batch": self._batch, "step": step}
        whole = not settings.weights_only
        captured = capture(model, optimizer=whole, metrics=whole)
        write = partial(
            write_checkpoint,
            documents=captured.documents,
            assets=captured.assets,
            progress={_MARK: True, "weights_only": settings.weights_only, **counts, "metrics": dict(metrics)},
            record={"environment": environment()},
            shards=settings.shards,
            check=partial(refuse_not_finite, step=step, constant=self._constant),
        )
        name, alone = formatted(settings.template, {**metrics, **counts}), not fields_of(settings.template)
        path = self._folder / name
        if self._verbose:
            say(f"saving {name} at step {step:,}")
        self._background.start(partial(_write, path, step, with_means(model, captured.tensors), write, alone=alone))


def _write(path: Path, step: int, tensors: list[Any], write: Any, *, alone: bool) -> None:
    """Commit one save into the folder `path`, and remove the others there if it is to be alone."""
    path.mkdir(parents=True, exist_ok=True)
    with RunLock(path):
        _newest_of_ours(path)
        sweep_partials(path)
        write(path, step, drained(tensors), replace=True)
        if alone:
            remove_steps(path, [found for found in committed_steps(path) if found != step])


def _newest_of_ours(path: Path) -> Checkpoint | None:
    """Return the newest checkpoint in `path`; raise if there are others than a named save has made."""
    found = [folder for folder in folders_with_steps(path) if isinstance(folder, Checkpoint)]
    if any(_MARK not in folder.progress for folder in found) or (path / "checkpoints").is_dir():
        raise _refused(f"{path} holds a run, which saves under this name would mix with", "give another name")
    return found[0] if found else None


def _updates(model: Any) -> int:
    return 0 if model.optimizer is None else int(to_array(model.optimizer.iterations))


def _numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in logs.items() if np.ndim(value) == 0}


def _refused(problem: str, hint: str) -> UsageError:
    return UsageError("ANY-RUN-055", f"checkpoint: {problem}", hint=hint)
