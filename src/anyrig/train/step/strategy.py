"""Models that cannot be divided into virtual replicas, run as Keras runs them under `tf.distribute`.

A model with its own `train_step` (a GAN, several optimizers) does in it what it likes, so its step can only be run
whole: once on one device, or on each replica of a `MirroredStrategy` with that replica's rows. The numbers then depend
on the number of devices, and the plan says so. What Keras leaves out is added around it: each replica and step has its
own keyed random numbers, rows that do not divide are shared out as evenly as can be, optimizers are built before the
first step (inside a replica they cannot be), and moving statistics are averaged over the replicas after each step, so
that one state describes them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator

from anyrig.data.source import Batch
from anyrig.errors import UsageError
from anyrig.state.optimizers import held_optimizers
from anyrig.state.seeds import seed_generators
from anyrig.state.values import summed_copies, to_array
from anyrig.topology.plan import DevicePlan, count, split_rows
from anyrig.train.step import seeds
from anyrig.train.step.binding import require_compiled
from anyrig.train.step.exhausted import exhaustion
from anyrig.train.step.finite import NotFinite
from anyrig.train.step.seeds import GLOBAL_GENERATOR


def own_steps(model: keras.Model) -> tuple[str, ...]:
    """Return which of Keras's steps `model` overrides: "train_step", "test_step", "predict_step"."""
    steps = ("train_step", "test_step", "predict_step")
    return tuple(step for step in steps if getattr(type(model), step) is not getattr(keras.Model, step))


def runs_whole(model: keras.Model) -> bool:
    """Tell whether `model` trains or evaluates by steps of its own, or was made under a `tf.distribute` strategy."""
    return bool({"train_step", "test_step"} & {*own_steps(model)}) or model._distribute_strategy is not None


@cache
def mirrored_strategy(devices: tuple[str, ...]) -> tf.distribute.Strategy:
    """Return the one MirroredStrategy of this process: the collectives of two would be taken for one another."""
    return tf.distribute.MirroredStrategy(devices)


class StrategyEngine:
    """Executes the whole steps of one model on the replicas of the strategy it was made under."""

    def __init__(self, plan: DevicePlan, model: keras.Model, seed: int) -> None:
        self.plan = plan
        self.model = model
        self.seed = seed
        self._strategy = model.distribute_strategy
        self._generators = seed_generators(model)
        self._states = [*(generator.state for _, generator in self._generators), global_seed_generator().state]
        self._own_states: list[Any] = []
        self._settle = tf.function(self._settle_copies, autograph=False)

    def expect(self, sample: Batch) -> None:
        """Do nothing: Keras's own functions find out by themselves."""

    def read_seeds(self) -> None:
        """Take each generator's own seed from the model as it is now; to be called after weights were loaded."""
        self._own_states = [to_array(state) for state in self._states]

    def train(self, batch: Batch, step: int) -> dict[str, Any]:
        """Do the model's own training step number `step` on one global batch; return its logs.

        Raises NotFinite, with the step done, if one of them is not finite.
        """
        self.model.make_train_function()
        with exhaustion(lambda: True), self._keyed(step):
            logs: dict[str, Any] = self.model.train_function(iter([self._shares(batch)]))
        if self._strategy.num_replicas_in_sync > 1:
            self._settle()
        if not isinstance(logs, dict):
            raise UsageError(
                "ANY-TRAIN-032",
                f"{type(self.model).__name__}.train_step returned {type(logs).__name__}, not its logs",
                hint='end it with: return {"loss": loss}',
            )
        bad = [name for name, value in logs.items() if not np.isfinite(keras.tree.flatten(value)).all()]
        if bad:
            raise NotFinite([f"{name} in the logs" for name in bad], updated=True)
        return logs

    def test(self, batch: Batch, index: int) -> dict[str, Any]:
        """Do the model's own evaluation step on one global batch; return its logs."""
        self.model.make_test_function()
        with self._keyed(-1 - index):
            logs: dict[str, Any] = self.model.test_function(iter([self._shares(batch)]))
        return logs

    def predict(self, batch: Batch, index: int) -> Any:
        """Return the outputs of the model's own prediction step for one global batch, rows in order."""
        self.model.make_predict_function()
        with self._keyed(-1 - index):
            return self.model.predict_function([self._shares((batch[0], None, None))])

    def _shares(self, batch: Batch) -> Any:
        """Return the batch as `train_step` gets it in Keras, each replica with its part of the rows."""
        data = keras.utils.pack_x_y_sample_weight(*batch)
        replicas = self._strategy.num_replicas_in_sync
        leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None]
        if replicas == 1:
            return keras.tree.map_structure(lambda leaf: None if leaf is None else tf.convert_to_tensor(leaf), data)
        rows = int(leaves[0].shape[0])
        if rows < replicas:
            raise UsageError(
                "ANY-TRAIN-030",
                f"a batch of {count(rows, 'row')} cannot be shared out over {count(replicas, 'device')}: a model with "
                "its own train_step needs a row on each",
                hint="choose a batch size that leaves no such rest, or drop it: dataset.batch(n, drop_remainder=True)",
            )
        cuts = [0, *accumulate(split_rows(rows, replicas))]

        def distributed(leaf: Any) -> Any:
            if leaf is None:
                return None
            parts = [tf.convert_to_tensor(leaf[start:stop]) for start, stop in pairwise(cuts)]
            return self._strategy.experimental_distribute_values_from_function(
                lambda replica: parts[replica.replica_id_in_sync_group]
            )

        return keras.tree.map_structure(distributed, data)

    @contextmanager
    def _keyed(self, step: int) -> Iterator[None]:
        """Give every seed generator its key of this step on each replica, and its own seed back afterwards."""
        paths = [path for path, _ in self._generators]
        own = [(path, int(state[0])) for path, state in zip(paths, self._own_states, strict=False)]
        keys = seeds.keys(self.seed, [*own, (GLOBAL_GENERATOR, 0)], step, self._strategy.num_replicas_in_sync)
        try:
            for index, state in enumerate(self._states):
                for replica, copy in enumerate(_copies(state)):
                    copy.assign(keys[replica, index])
            yield
        finally:
            for state, held in zip(self._states, self._own_states, strict=True):
                state.assign(held)

    def _settle_copies(self) -> None:
        """Make of copies that the replicas moved each by itself what a checkpoint of them would restore.

        Moving statistics (BatchNorm) become the mean of all on each; what is summed when read is held by the first.
        """
        seeded = {id(state) for state in self._states}
        for variable in self.model.metrics_variables:
            if summed := summed_copies(variable):
                total = tf.add_n([copy.read_value() for copy in summed])
                for index, copy in enumerate(summed):
                    copy.assign(tf.zeros_like(total) if index else total)
        for variable in self.model.non_trainable_variables:
            copies = _copies(variable)
            if id(variable) not in seeded and len(copies) > 1 and keras.backend.is_float_dtype(variable.dtype):
                mean = tf.add_n([copy.read_value() for copy in copies]) / len(copies)
                for copy in copies:
                    copy.assign(mean)


def bind_to_strategy(model: keras.Model, sample: Any, step: str) -> None:
    """Build what the model's own `step` ("train_step", ...) uses and is not built: layers, and optimizers' slots.

    `sample` is a batch (x, y, sample_weight) or specifications of one. The step is run once on symbolic rows, with
    optimizers that only note which variables they are given. Raises UsageError if that cannot be.
    """
    if step != "predict_step":
        require_compiled(model)
    data = keras.tree.map_structure(_any_rows, sample)
    symbolic = keras.src.backend.compute_output_spec
    strategy = model.distribute_strategy
    with strategy.scope():
        if not _all_built(model):
            with suppress(NotImplementedError):  # a model may consist of parts that only its own step calls
                symbolic(model, data[0])
        waiting = [used for used in held_optimizers(model).values() if not used.built] if step == "train_step" else []
        if waiting or not _all_built(model):
            with _noting_variables(waiting) as noted:
                try:
                    strategy.run(lambda: symbolic(getattr(model, step), keras.utils.pack_x_y_sample_weight(*data)))
                except Exception as error:
                    raise _not_symbolic(model, step, error) from error
            for optimizer, variables in noted:
                optimizer.build(variables)
    model.built = True  # its own call may never be used, and then nothing else says so


def _all_built(model: keras.Model) -> bool:
    return all(layer.built for layer in model._flatten_layers(include_self=False))


def _not_symbolic(model: keras.Model, step: str, error: Exception) -> UsageError:
    return UsageError(
        "ANY-TRAIN-031",
        f"{type(model).__name__}.{step} could not be run on symbolic rows to build what is not built yet: "
        f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
        hint="build the layers (call them once) and the optimizers (optimizer.build(variables)) in the model function; "
        "--debug shows where it failed",
    )


@contextmanager
def _noting_variables(optimizers: Sequence[Any]) -> Iterator[list[tuple[Any, list[keras.Variable]]]]:
    """Let `optimizers` change nothing, and yield the variables that each is asked to update, first call first."""
    noted: list[tuple[Any, list[keras.Variable]]] = []

    def note(optimizer: Any) -> Any:
        def apply(_gradients: Any, trainable_variables: Any = None) -> None:
            if all(optimizer is not known for known, _ in noted):
                noted.append((optimizer, list(trainable_variables)))

        return apply

    for optimizer in optimizers:
        vars(optimizer)["apply"] = note(optimizer)
    try:
        yield noted
    finally:
        for optimizer in optimizers:
            del vars(optimizer)["apply"]


def _copies(variable: keras.Variable) -> Sequence[Any]:
    """Return the copies of a variable on the replicas, or the variable alone where it is not mirrored."""
    return getattr(variable.value, "values", None) or [variable.value]


def _any_rows(leaf: Any) -> Any:
    if leaf is None:
        return None
    return keras.KerasTensor((None, *leaf.shape[1:]), keras.backend.standardize_dtype(leaf.dtype))
