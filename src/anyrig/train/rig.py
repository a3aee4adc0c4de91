"""`Rig`: Keras's fit, evaluate and predict on whatever devices are there, with the same numbers on any of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
import numpy as np

from anyrig.data.arrays import ArraySource, is_array_like
from anyrig.data.dataset import DatasetSource, is_dataset
from anyrig.data.source import Source
from anyrig.errors import UsageError
from anyrig.topology.devices import configure
from anyrig.topology.plan import DevicePlan, count, device_plan, short_name
from anyrig.train.batch import Batch
from anyrig.train.fitting import FitRequest, checkpoint_among, run_fit
from anyrig.train.known_models import KnownModels
from anyrig.train.loop import Logs, run_test
from anyrig.train.session import Session
from anyrig.train.signals import StopRequest, stop_on_signals
from anyrig.train.step.placement import variables_on

KERAS_BATCH_SIZE = 32


class Rig:
    """The devices of this process, and Keras's methods on them.

    `devices`: None (all GPUs, else one CPU), "cpu", "gpu" or a number; on a machine without GPU, N logical CPUs. One
    process holds one device count. `seed` fixes initial weights, row order, masks and augmentation.
    """

    def __init__(self, devices: int | str | None = None, precision: str = "auto", seed: int = 0) -> None:
        self.requested = devices
        self.devices = configure(devices)
        self.precision = precision
        self.seed = seed
        self.stop = StopRequest()
        self._known = KnownModels(self.devices, self.plan, seed)
        self.plan(None)

    def __repr__(self) -> str:
        kind = ", ".join(short_name(device) for device in self.devices)
        return f"Rig of {count(len(self.devices), 'device')} ({kind}), precision float32, seed {self.seed}"

    def plan(self, virtual_replicas: int | None) -> DevicePlan:
        """Return the device plan for V virtual replicas (None: one for each device)."""
        return device_plan(self.devices, virtual_replicas, requested=self.requested, precision=self.precision)

    def request_stop(self) -> None:
        """Ask a fit in progress to finish its step, save and end; for programs that handle signals themselves."""
        self.stop.request()

    def build(self, build_model: Callable[..., keras.Model], *args: Any, **kwargs: Any) -> keras.Model:
        """Return `build_model(*args, **kwargs)`, its weights fixed by `seed`, its variables spread over the devices."""
        keras.utils.set_random_seed(self.seed % 2**32)
        with variables_on(self.devices):
            model = build_model(*args, **kwargs)
        if not isinstance(model, keras.Model):
            raise UsageError(
                "ANY-RUN-009",
                f"the model function returned {type(model).__name__}, not a Keras model",
                hint="return the keras.Model, compiled, from the function",
            )
        self._known.built(model, build_model)
        return model

    def prepare(self, model: keras.Model, x: Any) -> None:
        """Create the variables of a model that waits for its first data, `x`; nothing is done if they are there."""
        source = self._source(model, x, None, None, _default(x), shuffle=False)
        self._known.engine(model, source.sample(), None, predict=True)

    def fit(
        self,
        model: keras.Model,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Sequence[Any] | None = None,
        validation_data: Any = None,
        shuffle: bool = True,
        sample_weight: Any = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
        *,
        batch: Batch | None = None,
        resume: str = "never",
        allow_changes: Collection[str] = (),
        recipe: dict[str, Any] | None = None,
        **later: Any,
    ) -> keras.callbacks.History:
        """Train `model` for `epochs` epochs in all; arguments and result as in Keras's `fit`.

        `batch` says rows per step and virtual replicas; without it `batch_size` (default 32) or a batched dataset's own
        size is the global batch. With an `anyrig.Checkpoint` among the callbacks the state is saved, and `resume`
        ("auto", "never", "must") says whether to go on from its newest sound checkpoint; `allow_changes` names what may
        differ from it ("data", "model", "recipe"). SIGTERM and SIGINT then finish the step, save and raise `Stopped`; a
        second one ends the process at once. `recipe` replaces the description of this call that is stored.
        """
        refuse_later(later)
        checkpoint, others = checkpoint_among(callbacks)
        request = FitRequest(
            model=model,
            source=lambda size: self._source(model, x, y, sample_weight, size, shuffle),
            validation=self._validation(model, validation_data, validation_batch_size),
            validation_freq=validation_freq,
            batch=_one_batch_rule(batch, batch_size),
            default_size=_default(x),
            epochs=epochs,
            verbose=_verbosity(verbose),
            callbacks=others,
            recipe=recipe,
            shuffle=shuffle,
        )
        try:
            if checkpoint is None:
                return run_fit(self, self._known, request, None, None, ())
            session = Session(checkpoint.directory or "", resume=resume, keep=checkpoint.keep)
            with stop_on_signals(self.stop), session:
                return run_fit(self, self._known, request, session, checkpoint.interval, allow_changes)
        finally:
            self.stop.clear()

    def evaluate(
        self,
        model: keras.Model,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: Any = None,
        callbacks: Sequence[Any] | None = None,
        return_dict: bool = False,
        *,
        batch: Batch | None = None,
    ) -> Any:
        """Return the loss and metrics of `model` on the data, as Keras's `evaluate` does."""
        rule = _one_batch_rule(batch, batch_size)
        source = self._source(model, x, y, sample_weight, rule.global_size or _default(x), shuffle=False)
        engine = self._known.engine(model, source.sample(), rule.virtual_replicas)
        listed = _listed(callbacks, model, verbose=_verbosity(verbose), steps=source.batches_per_epoch())
        logs = run_test(engine, source, listed)
        return logs if return_dict else _as_list(logs)

    def predict(
        self,
        model: keras.Model,
        x: Any,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        callbacks: Sequence[Any] | None = None,
        *,
        batch: Batch | None = None,
    ) -> Any:
        """Return the model's outputs for every row of `x`, in order, as Keras's `predict` does."""
        rule = _one_batch_rule(batch, batch_size)
        source = self._source(model, x, None, None, rule.global_size or _default(x), shuffle=False)
        engine = self._known.engine(model, source.sample(), rule.virtual_replicas, predict=True)
        listed = _listed(callbacks, model, verbose=_verbosity(verbose), steps=source.batches_per_epoch())
        listed.on_predict_begin()
        outputs = []
        for index, rows in enumerate(source.batches(0)):
            listed.on_predict_batch_begin(index)
            outputs.append(keras.tree.map_structure(lambda t: t.numpy(), engine.predict(rows, index)))
            listed.on_predict_batch_end(index, {"outputs": outputs[-1]})
        listed.on_predict_end()
        return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *outputs)

    def _validation(self, model: keras.Model, data: Any, batch_size: int | None) -> Any:
        """Return a function from the training batch size to the validation source; None without validation data."""
        if data is None:
            return None
        x, y, weight = (data, None, None) if is_dataset(data) else keras.utils.unpack_x_y_sample_weight(data)
        return lambda size: self._source(model, x, y, weight, _default(x) and (batch_size or size), shuffle=False)

    def _source(self, model: keras.Model, x: Any, y: Any, weight: Any, size: int | None, shuffle: bool) -> Source:
        if is_dataset(x):
            if y is not None or weight is not None:
                raise UsageError(
                    "ANY-DATA-006",
                    "x is a tf.data.Dataset, and y or sample_weight is given too",
                    hint="let the dataset yield (x, y, sample_weight)",
                )
            return DatasetSource(x, batch=size, batched=_is_batched(model, x))
        if not is_array_like(x):
            raise UsageError(
                "ANY-DATA-007",
                f"data of type {type(x).__name__} cannot be used",
                hint="give arrays (or lists, dicts of arrays) or a tf.data.Dataset",
            )
        return ArraySource(x, y, weight, global_size=size or KERAS_BATCH_SIZE, shuffle=shuffle, seed=self.seed)


def refuse_later(given: dict[str, Any]) -> None:
    """Raise UsageError for arguments of Keras's fit that this version does not have, and for unknown ones."""
    for name in given:
        known = name in ("class_weight", "initial_epoch", "steps_per_epoch", "validation_split", "validation_steps")
        raise UsageError(
            "ANY-RUN-015",
            f"fit: {name} is {'not available in this version' if known else 'no argument of fit'}",
            hint="leave it out" + ("; class weights can be given as sample_weight" if name == "class_weight" else ""),
        )


def _default(x: Any) -> int | None:
    return None if is_dataset(x) else KERAS_BATCH_SIZE


def _one_batch_rule(batch: Batch | None, batch_size: int | None) -> Batch:
    if batch is None:
        return Batch(global_size=batch_size)
    if batch_size is not None and batch.global_size not in (None, batch_size):
        raise UsageError(
            "ANY-BATCH-003",
            f"batch_size {batch_size} and batch.global_size {batch.global_size} disagree",
            hint="give one of the two",
        )
    return batch


def _is_batched(model: keras.Model, dataset: Any) -> bool:
    """Tell whether the elements of a dataset have a rows axis, from the rank of the model's first input if known."""
    spec = keras.tree.flatten(dataset.element_spec)[0]
    inputs = getattr(model, "inputs", None)
    return not inputs or spec.shape.rank is None or spec.shape.rank >= len(inputs[0].shape)


def _verbosity(verbose: int | str) -> int:
    """Return Keras's number for `verbose`: "auto" is the progress bar on a terminal, one line an epoch elsewhere."""
    if verbose == "auto":
        return 1 if sys.stdout.isatty() else 2
    return int(verbose)


def _listed(callbacks: Any, model: keras.Model, *, verbose: int, steps: int | None) -> keras.callbacks.CallbackList:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks, add_progbar=verbose != 0, verbose=verbose, epochs=1, steps=steps, model=model
    )


def _as_list(logs: Logs) -> Any:
    """Return the values as Keras's evaluate does without `return_dict`: a number, or a list with the loss first."""
    values = list(logs.values())
    return values[0] if len(values) == 1 else values
