"""`Run`: a whole training run as one object that starts or carries on by itself."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from anyrig.errors import UsageError
from anyrig.locations import local_directory
from anyrig.report.loggers import loggers
from anyrig.report.say import say
from anyrig.store.commit import newest_committed, newest_sound
from anyrig.store.remote.opened import bring
from anyrig.topology.numeric import apply_numeric_settings
from anyrig.topology.plan import Precision
from anyrig.train.batch import Batch
from anyrig.train.checkpoint import CheckpointSettings, HoldsSettings, settings_of
from anyrig.train.limits import Limits
from anyrig.train.phases import Phase
from anyrig.train.session import stored_numerics
from anyrig.train.signals import stop_on_signals


class Run:
    """One run directory, with all that is needed to start it or to carry it on, on any number of devices.

    `directory` may be a URL (`s3://bucket/runs/cats`): the run is written into a folder of this machine, then the
    attribute `directory`, and uploaded from there. `build_model` is called without arguments and returns a compiled
    model. `train` and `validation` are (x, y), (x, y, sample_weight) or anything else that `Rig.fit` takes; `fit` holds
    further arguments of it (`steps_per_epoch`, `class_weight`, ...). `resume`: "auto" carries on where there is
    something, "never" refuses a directory that holds a run, "must" refuses one that does not. `loggers` names where
    metrics are written as well (see `anyrig.loggers`); `profile` is a number of steps to profile. A run goes on in the
    precision that it was started in; `precision="auto"` chooses one for a new run. `phases` are trained one after the
    other in place of `epochs`; `init_from` is a run, checkpoint or Keras file whose weights a new run begins with.
    Nothing is done before it is asked for.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        build_model: Callable[[], Any],
        *,
        train: Any,
        validation: Any = None,
        batch: Batch | None = None,
        epochs: int | None = None,
        phases: Sequence[Phase] = (),
        seed: int = 0,
        devices: int | str | None = None,
        checkpoint: HoldsSettings | CheckpointSettings | None = None,
        callbacks: Sequence[Any] = (),
        loggers: Sequence[str] = (),
        profile: int | None = None,
        precision: str = "auto",
        shuffle: bool = True,
        recipe: dict[str, Any] | None = None,
        resume: str = "auto",
        allow_changes: Collection[str] = (),
        on_nonfinite: str = "raise",
        on_oom: str = "split",
        fit: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        init_from: str | os.PathLike[str] | None = None,
    ) -> None:
        if phases and epochs is not None:
            raise UsageError("ANY-RUN-034", "epochs and phases are both set", hint="give each phase its epochs")
        doubled = [name for name, times in Counter(phase.name for phase in phases).items() if times > 1]
        if doubled:
            raise UsageError("ANY-RUN-034", f"two phases are called {doubled[0]!r}", hint="give each its own name")
        self.directory = local_directory(directory)
        self.checkpoint = replace(settings_of(checkpoint), directory=directory)
        self.history: dict[str, list[Any]] = {}
        self._build_model = build_model
        self._train_data = train
        self._validation = validation
        self._batch = batch
        self._phases = tuple(phases) or (Phase(epochs=1 if epochs is None else epochs, name=""),)
        self._seed = seed
        self._devices = devices
        self._callbacks = list(callbacks)
        self._loggers = list(loggers)
        self._profile = profile
        self._precision = precision
        self._shuffle = shuffle
        self._recipe = recipe
        self._resume = resume
        self._allow_changes = allow_changes
        self._on_nonfinite = on_nonfinite
        self._on_oom = on_oom
        self._further = dict(fit or {})
        self._limits = limits or Limits()
        self._init_from = init_from
        self._settled = False

    @cached_property
    def rig(self) -> Any:
        """The rig of this run; the numeric settings that the run was started with come into force before it."""
        bring(self.checkpoint.directory or "")
        apply_numeric_settings(stored_numerics(self.directory))
        from anyrig.train.precision import recorded
        from anyrig.train.rig import Rig

        started_in = recorded(self.directory) if self._precision == "auto" else None
        rig = Rig(devices=self._devices, precision=self._precision, seed=self._seed)
        if started_in is not None:
            rig.precision = Precision(started_in, f"Precision {started_in}: the run was started in it.")
        return rig

    @property
    def model(self) -> Any:
        """The model: as trained in this process, else with the weights of the newest sound checkpoint, else new."""
        if not self._settled:
            self._settled = True
            self._load_newest()
        return self._built

    @cached_property
    def _built(self) -> Any:
        return self.rig.build(self._build_model)

    def _load_newest(self) -> None:
        stored, _ = newest_sound(self.directory / "checkpoints")
        if stored is not None:
            from anyrig.state.restore import restore

            self.rig.prepare(self._built, _columns(self._train_data)[0])
            restore(stored, self._built, weights_only=True)

    def train(self, verbose: int | str = "auto") -> dict[str, list[Any]]:
        """Train to the end of the last epoch and return the history of the whole run.

        SIGTERM or SIGINT saves and raises `Stopped`; a second one ends the process at once.
        """
        from anyrig.report.profile import Profile

        watching: list[Any] = list(loggers(self._loggers, self.directory))
        watching += [] if self._profile is None else [Profile(self._profile)]
        self._settled = True  # fit compares the run with the stored one before it restores anything
        from anyrig.train.phased_model import PhasedModel

        self._limits = replace(self._limits, since=time.monotonic())  # all phases together have that time
        self._start_warm(verbose)
        changing = len(self._phases) > 1 or self._phases[0].changes_model
        phased = PhasedModel(self._built) if changing else None
        with stop_on_signals(self.rig.stop):
            for phase in self._phases:
                if phased is not None:
                    phased.enter(phase)
                self._fit(phase, watching, verbose)
                if self._has_all_steps():
                    break
            self.rig.stop.clear()  # what came too late for the last phase
        stored = newest_committed(self.directory / "checkpoints")
        self.history = stored.progress["history"] if stored is not None else {}
        return self.history

    def _has_all_steps(self) -> bool:
        stored = newest_committed(self.directory / "checkpoints")
        most = self._limits.max_steps
        return stored is not None and most is not None and stored.step >= most

    def _start_warm(self, verbose: int | str) -> None:
        """Give a new run the weights that it shall begin with."""
        if self._init_from is None or newest_committed(self.directory / "checkpoints") is not None:
            return
        from anyrig.train.warm_start import warm_start

        self.rig.prepare(self._built, _columns(self._train_data)[0])
        message, self.rig.loaded = warm_start(self._built, self._init_from)
        if verbose:
            say(message)

    def _fit(self, phase: Phase, watching: Sequence[Any], verbose: int | str) -> None:
        x, y, weight = _columns(self._train_data)
        self.rig.fit(
            self._built,
            x,
            y,
            epochs=phase.epochs,
            phase=phase.name or None,
            verbose=verbose,
            callbacks=[*self._callbacks, *watching, self.checkpoint],
            validation_data=self._validation,
            shuffle=self._shuffle,
            sample_weight=weight,
            batch=self._batch,
            resume="auto" if phase is not self._phases[0] else self._resume,
            allow_changes=self._allow_changes,
            on_nonfinite=self._on_nonfinite,
            on_oom=self._on_oom,
            limits=self._limits,
            recipe=self._recipe,
            **self._further,
        )

    def predict(self, x: Any, **kwargs: Any) -> Any:
        """Return the outputs of `model` for every row of `x`."""
        return self.rig.predict(self.model, x, **self._with_batch(kwargs))

    def evaluate(self, data: Any = None, **kwargs: Any) -> Any:
        """Return loss and metrics of `model` on `data`, (x, y) or a dataset; default: the validation data."""
        data = self._validation if data is None else data
        if data is None:
            raise UsageError(
                "ANY-RUN-014", "there is no validation data to evaluate on", hint="give data: run.evaluate((x, y))"
            )
        x, y, weight = _columns(data)
        return self.rig.evaluate(self.model, x, y, sample_weight=weight, **self._with_batch(kwargs))

    def _with_batch(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Add the run's own batch rule, with which the numbers are those of its validation, unless one is given."""
        return kwargs if kwargs.keys() & {"batch", "batch_size"} else {**kwargs, "batch": self._batch}


def _columns(data: Any) -> tuple[Any, Any, Any]:
    if isinstance(data, tuple) and 1 <= len(data) <= 3:
        return (*data, *(None,) * (3 - len(data)))
    return data, None, None
