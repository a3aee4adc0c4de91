"""`Rig`: Keras's fit, evaluate and predict on whatever devices are there, with the same numbers on any of them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from typing import Any

import keras

from anyrig.data.arrays import split_rows
from anyrig.data.choose import Reading, default_size, open_source
from anyrig.data.dataset import refuse_shared_order
from anyrig.data.iterables import hold
from anyrig.data.source import Source
from anyrig.data.stream import Stream
from anyrig.errors import UsageError
from anyrig.report.progress import is_live
from anyrig.state.report import LoadReport
from anyrig.topology.devices import configure
from anyrig.topology.plan import DevicePlan, count, device_plan, short_name, undivided_plan
from anyrig.train.batch import Batch
from anyrig.train.fitting import FitRequest, checkpoint_among, run_fit
from anyrig.train.known_models import KnownModels
from anyrig.train.limits import Limits
from anyrig.train.passes import run_predict, run_test
from anyrig.train.precision import policy_in_force, settle
from anyrig.train.session import Session
from anyrig.train.signals import StopRequest, stop_on_signals
from anyrig.train.step.placement import variables_on
from anyrig.train.step.strategy import mirrored_strategy, runs_whole

STRATEGIES = ("auto", "mirrored")


class Rig:
    """The devices of this process, and Keras's methods on them.

    `devices`: None (all GPUs, else one CPU), "cpu", "gpu" or a number; on a machine without GPU, N logical CPUs. One
    process holds one device count. `precision`: "float32", "mixed_bfloat16", "mixed_float16", or "auto": Keras's global
    dtype policy if it is another than float32; else float32 on CPUs, mixed_bfloat16 on GPUs of compute capability 8.0
    and above, mixed_float16 on those of 7.x (not tried on a GPU yet). `seed` fixes initial weights, row order, masks
    and augmentation. `strategy`: "auto" divides each step into virtual replicas; "mirrored" runs models as Keras does
    under MirroredStrategy, with numbers that depend on the devices: for comparison.
    """

    def __init__(
        self, devices: int | str | None = None, precision: str = "auto", seed: int = 0, strategy: str = "auto"
    ) -> None:
        if strategy not in STRATEGIES:
            raise UsageError(
                "ANY-RUN-030",
                f"strategy: expected {' or '.join(STRATEGIES)}, found {strategy!r}",
                hint="leave it at auto for the same numbers on any devices",
            )
        self.requested = devices
        self.devices = configure(devices)
        self.precision = settle(precision, self.devices)
        self.seed = seed
        self.strategy = strategy
        self.stop = StopRequest()
        self.loaded: LoadReport | None = None  # of a warm start, for the loggers of the next fit
        self._known = KnownModels(self.devices, self.plan, self._plan_whole, seed)
        self.plan(None)

    def __repr__(self) -> str:
        kind = ", ".join(short_name(device) for device in self.devices)
        return (
            f"Rig of {count(len(self.devices), 'device')} ({kind}), precision {self.precision.policy}, seed {self.seed}"
        )

    def plan(self, virtual_replicas: int | None) -> DevicePlan:
        """Return the device plan for V virtual replicas (None: one for each device)."""
        return device_plan(self.devices, virtual_replicas, requested=self.requested, precision=self.precision)

    def _plan_whole(self, used: int, why: str) -> DevicePlan:
        return undivided_plan(self.devices, used, why, requested=self.requested, precision=self.precision)

    def request_stop(self) -> None:
        """Ask a fit in progress to finish its step, save and end; for programs that handle signals themselves."""
        self.stop.request()

    def build(self, build_model: Callable[..., keras.Model], *args: Any, **kwargs: Any) -> keras.Model:
        """Return `build_model(*args, **kwargs)`, its weights fixed by `seed`, its variables spread over the devices.

        Keras's global dtype policy is the rig's precision while it is built, and is put back after. A model with a
        training step of its own is built a second time, in the scope of a MirroredStrategy.
        """
        build = functools.partial(build_model, *args, **kwargs)
        model = self._built(build, variables_on(self.devices))
        if len(self.devices) > 1 and (self.strategy == "mirrored" or runs_whole(model)):
            model = self._built(build, mirrored_strategy(self.devices).scope())
        self._known.built(model, build_model)
        return model

    def _built(self, build: Callable[[], Any], where: AbstractContextManager[Any]) -> keras.Model:
        keras.utils.set_random_seed(self.seed % 2**32)
        with where, policy_in_force(self.precision.policy):
            model = build()
        if not isinstance(model, keras.Model):
            raise UsageError(
                "ANY-RUN-009",
                f"the model function returned {type(model).__name__}, not a Keras model",
                hint="return the keras.Model, compiled, from the function",
            )
        return model

    def prepare(self, model: keras.Model, x: Any) -> None:
        """Create the variables of a model that waits for its first data, `x`; nothing is done if they are there."""
        source = open_source(x, None, None, self._reading(model))
        self._known.engine(model, source.sample(), None, predict=True)

    def fit(
        self,
        model: keras.Model,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool | str = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
        *,
        batch: Batch | None = None,
        resume: str = "never",
        allow_changes: Collection[str] = (),
        on_nonfinite: str = "raise",
        limits: Limits | None = None,
        phase: str | None = None,
        on_oom: str = "split",
        recipe: dict[str, Any] | None = None,
    ) -> keras.callbacks.History:
        """Train `model` for `epochs` epochs in all; arguments and result as in Keras's `fit`.

        `x`: arrays (or nested structures of them, pandas frames), a `tf.data.Dataset`, a `keras.utils.PyDataset`, or a
        generator of (x, y, sample_weight). `batch` says rows per step and virtual replicas; without it `batch_size`
        (default 32) or the size of the data's own batches is the global batch. With an `anyrig.Checkpoint` among the
        callbacks the state is saved, and `resume` ("auto", "never", "must") says whether to go on from its newest sound
        checkpoint; `allow_changes` names what may differ from it ("data", "model", "optimizer", "precision", "recipe").
        SIGTERM and SIGINT then finish the step, save and raise `Stopped`; a second one ends the process at once.
        `recipe` replaces the description of this call that is stored. Differences from Keras: a `validation_data`
        generator is read once and kept; a generator that has ended ends the training.

        A step whose loss, gradients or moved state are not finite is never made: `on_nonfinite` says whether to
        "raise", to "skip" it, or to go back to the newest checkpoint and do without its batch ("rollback").
        A step for which memory is wanting is made with twice as many virtual replicas (`on_oom` "split"), at most three
        times in a run, which changes the numbers from there on, is printed and recorded; or it ends the fit ("raise").

        With `phase` this fit is a named part of a run, of `epochs` epochs of its own: one that is over is not repeated,
        and one that begins takes the weights that the run has, with the model as it is compiled now.
        """
        checkpoint, others = checkpoint_among(callbacks)
        if checkpoint is None and resume != "never":
            raise UsageError(
                "ANY-RUN-040",
                f"resume is {resume}, and there is no Checkpoint to go on from",
                hint='add anyrig.Checkpoint("runs/my-run") to the callbacks',
            )
        if steps_per_epoch is not None:
            steps_per_epoch = _whole("steps_per_epoch", steps_per_epoch, least=1)
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = split_rows((x, y, sample_weight), validation_split)
        rule = _one_batch_rule(batch, batch_size)
        reading = replace(
            self._reading(model), steps=steps_per_epoch, shuffle=shuffle, seed=self.seed, class_weight=class_weight
        )
        request = FitRequest(
            model=model,
            source=lambda size: open_source(x, y, sample_weight, replace(reading, global_size=size)),
            validation=self._validation(model, validation_data, validation_batch_size, validation_steps),
            batch=rule,
            default_size=default_size(x, steps_per_epoch),
            epochs=_whole("epochs", epochs),
            initial_epoch=_whole("initial_epoch", initial_epoch),
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            validation_freq=_validation_freq(validation_freq),
            verbose=_verbosity(verbose),
            callbacks=others,
            recipe=recipe,
            on_nonfinite=on_nonfinite,
            limits=limits or Limits(),
            phase=phase,
            on_oom=on_oom,
            described=_described(
                shuffle=shuffle,
                validation_split=validation_split or None,
                class_weight=class_weight and {str(key): float(weight) for key, weight in class_weight.items()},
                initial_epoch=initial_epoch or None,
                steps_per_epoch=steps_per_epoch,
                validation_steps=validation_steps,
                validation_batch_size=validation_batch_size,
            ),
        )
        try:
            if checkpoint is None:
                history = run_fit(self, self._known, request, None, None, ())
            else:
                refuse_shared_order(x, keras.utils.unpack_x_y_sample_weight(validation_data)[0])
                session = Session(
                    checkpoint.directory or "",
                    resume=resume,
                    keep=checkpoint.keep,
                    shards=checkpoint.shards,
                )
                with stop_on_signals(self.stop), session:
                    session.settle_numerics()
                    history = run_fit(self, self._known, request, session, checkpoint.interval, allow_changes)
        except BaseException:
            self.stop.clear()
            raise
        if phase is None:  # a request that comes too late for a phase stops the next one
            self.stop.clear()
        return history

    def evaluate(
        self,
        model: keras.Model,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        *,
        batch: Batch | None = None,
    ) -> Any:
        """Return the loss and metrics of `model` on the data, as Keras's `evaluate` does."""
        rule = _one_batch_rule(batch, batch_size)
        reading = replace(self._reading(model), global_size=rule.global_size, steps=steps)
        with closing(Stream(open_source(x, y, sample_weight, reading), steps)) as stream:
            engine = self._known.engine(model, stream.source.sample(), rule.virtual_replicas)
            listed = _listed(callbacks, model, verbose=_verbosity(verbose), steps=stream.length())
            logs = run_test(engine, stream, listed)
        return logs if return_dict else model._flatten_metrics_in_order(logs)

    def predict(
        self,
        model: keras.Model,
        x: Any,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks: Any = None,
        *,
        batch: Batch | None = None,
    ) -> Any:
        """Return the model's outputs for every row of `x`, in order, as Keras's `predict` does."""
        rule = _one_batch_rule(batch, batch_size)
        reading = replace(self._reading(model), global_size=rule.global_size, steps=steps)
        with closing(Stream(open_source(x, None, None, reading), steps)) as stream:
            engine = self._known.engine(model, stream.source.sample(), rule.virtual_replicas, predict=True)
            listed = _listed(callbacks, model, verbose=_verbosity(verbose), steps=stream.length())
            return run_predict(engine, stream, listed)

    def _validation(self, model: keras.Model, data: Any, batch_size: int | None, steps: int | None) -> Any:
        """Return a function from the training batch size to the validation source; None without validation data."""
        if data is None:
            return None
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)

        def source(size: int | None) -> Source:
            size = (batch_size or size) if default_size(x, None) else None
            found = open_source(x, y, weight, replace(self._reading(model), global_size=size, steps=steps))
            Stream(found, steps)  # refuses data without end before anything is trained
            return hold(found, steps) if found.once else found

        return source

    def _reading(self, model: keras.Model) -> Reading:
        inputs = getattr(model, "inputs", None)
        return Reading(input_rank=len(inputs[0].shape) if inputs else None)


def _whole(name: str, value: Any, least: int = 0) -> int:
    if not hasattr(value, "__index__") or operator.index(value) < least:
        raise UsageError(
            "ANY-RUN-039",
            f"{name}: expected a whole number, {least} or more, found {value!r}",
            hint="round it: math.ceil(rows / size)",
        )
    return operator.index(value)  # NumPy's integers, too, which no checkpoint can hold


def _validation_freq(value: Any) -> Any:
    """Return every how many epochs validation runs, or after which epochs (from 1), as Keras has it."""
    return list(value) if isinstance(value, Collection) else _whole("validation_freq", value, 1)


def _described(**arguments: Any) -> dict[str, Any]:
    """Return the arguments that are set, for the description of a call."""
    return {name: value for name, value in arguments.items() if value is not None}


def _one_batch_rule(batch: Batch | None, batch_size: int | None) -> Batch:
    if batch is None or batch_size is None:
        return batch or Batch(global_size=batch_size)
    if batch.global_size not in (None, batch_size):
        raise UsageError(
            "ANY-BATCH-003",
            f"batch_size {batch_size} and batch.global_size {batch.global_size} disagree",
            hint="give one of the two",
        )
    return replace(batch, global_size=batch_size)


def _verbosity(verbose: int | str) -> int:
    """Return Keras's number for `verbose`: "auto" is the progress bar on a terminal, one line an epoch elsewhere."""
    if verbose == "auto":
        return 1 if is_live() else 2
    return int(verbose)


def _listed(callbacks: Any, model: keras.Model, *, verbose: int, steps: int | None) -> keras.callbacks.CallbackList:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks, add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=steps, model=model
    )
