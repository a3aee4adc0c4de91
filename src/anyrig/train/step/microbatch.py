"""The work on one micro-batch as a pure function of tensors: what every device does for each virtual replica.

The model runs inside Keras's `StatelessScope`: it reads the tensors it is given in place of its variables, and what it
would have assigned is collected. Nothing here knows how many devices there are, and no variable is touched; the engine
calls the functions once for each virtual replica and adds up what they return.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from anyrig.train.step.losses import Share, denominators, losses_of_share, part_of_batch
from anyrig.train.step.merging import Rule, contribution, depends_on, refuse_write, rule_for


class Values(NamedTuple):
    """Tensors in place of the model's variables, each list in the order of `MicroBatch`'s list of variables."""

    trainable: list[tf.Tensor]
    state: list[tf.Tensor]
    loss_scale: list[tf.Tensor]
    metrics: list[tf.Tensor]


class Parts(NamedTuple):
    """What one micro-batch adds to the step. Sums over the micro-batches are what the step needs."""

    loss: tf.Tensor  # scalar: this micro-batch's part of the loss of the global batch
    gradients: list[Any]  # for each trainable variable: a tensor, IndexedSlices, or None where the loss does not reach
    moved: list[tf.Tensor]  # contributions to the state that was assigned, in the order of `MicroBatch.moved`
    metrics: list[tf.Tensor]  # what each metric variable gained from zero; with one virtual replica, its new value
    losses: list[tf.Tensor]  # its part of each compiled loss, where Keras tracks several; one virtual replica has none


class Predicted(NamedTuple):
    """What prediction gives for one micro-batch."""

    outputs: Any
    moved: list[tf.Tensor]  # as in `Parts`


class RecordingScope(keras.StatelessScope):
    """A `StatelessScope` that remembers which variables were assigned, and lets a tape see what weights were given.

    As in Keras, the gradient of a weight that the model assigns is that of its new value, not of how it was made.
    """

    def __init__(
        self, mapping: Sequence[tuple[keras.Variable, tf.Tensor]], weights: Sequence[keras.Variable], tape: Any = None
    ) -> None:
        super().__init__(mapping, collect_losses=True)
        self.assigned: list[keras.Variable] = []
        self.given_to: dict[int, list[tf.Tensor]] = {id(v): [] for v in weights}
        self._tape = tape

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Take a new value of a variable."""
        variable, value = update
        self.assigned.append(variable)
        value = tf.stop_gradient(value)  # as when a variable was assigned: what is read from it has no history
        if self._tape is not None and id(variable) in self.given_to:
            self._tape.watch(value)
            self.given_to[id(variable)].append(value)
        super().add_update((variable, value))


class MicroBatch:
    """Traces a compiled, built model into functions of one micro-batch.

    `moved` lists the variables that the model assigns, each with its merge rule, as the function traced last does it.
    """

    def __init__(
        self, model: keras.Model, generators: Sequence[keras.random.SeedGenerator], virtual_replicas: int
    ) -> None:
        self.model = model
        self.seed_states = [generator.state for generator in generators]
        seeds = {id(state) for state in self.seed_states}
        self.trainable: list[keras.Variable] = list(model.trainable_variables)
        self.state: list[keras.Variable] = [v for v in model.non_trainable_variables if id(v) not in seeds]
        self.loss_scale: list[keras.Variable] = _loss_scale_variables(getattr(model, "optimizer", None))
        # Keras counts these per batch. They get the losses of the whole step when it is divided.
        self.loss_trackers = (
            list(model._compile_loss.metrics) if virtual_replicas > 1 and _several_losses(model) else []
        )
        tracked = {id(v) for tracker in self.loss_trackers for v in tracker.variables}
        self.unmerged = [v for v in metric_variables(model) if id(v) in tracked]
        self.metrics = [v for v in metric_variables(model) if id(v) not in tracked]
        self.moved: list[tuple[keras.Variable, Rule]] = []
        self.virtual_replicas = virtual_replicas
        self.random_without_training = False
        self.counts_first = False  # whether a loss has a denominator that only a pass over the micro-batches tells

    def train(self, values: Values, seeds: tf.Tensor, batch: Any, share: Share) -> Parts:
        """Return loss, gradients, moved state and metric gains of one micro-batch.

        `seeds` is int64 of shape (generators, 2); `batch` is (x, y, sample_weight) of this micro-batch's rows.
        """
        x, y, sample_weight = batch
        with tf.GradientTape(watch_accessed_variables=False) as tape, self._scope(values, seeds, tape) as scope:
            tape.watch(values.trainable)
            y_pred = _call(self.model, x, training=True)
            loss, losses = self._loss(share, x, y, y_pred, sample_weight, training=True)
            scaled = loss if self.model.optimizer is None else self.model.optimizer.scale_loss(loss)
            self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        held = [[v, *scope.given_to[id(own)]] for own, v in zip(self.trainable, values.trainable, strict=True)]
        pairs = zip(tape.gradient(scaled, held), values.trainable, strict=True)
        gradients = [_added(parts, weight.shape) for parts, weight in pairs]
        moved = self._moved(values, scope, share, [batch, seeds])
        return Parts(loss, gradients, moved, [scope.get_current_value(v) for v in self.metrics], losses)

    def test(self, values: Values, seeds: tf.Tensor, batch: Any, share: Share) -> Parts:
        """Return loss and metric gains of one micro-batch with `training=False`."""
        x, y, sample_weight = batch
        with self._scope(values, seeds) as scope:
            y_pred = _call(self.model, x, training=False)
            loss, losses = self._loss(share, x, y, y_pred, sample_weight, training=False)
            self.model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        moved = self._moved(values, scope, share, [batch, seeds])
        seeds_drawn = {id(state) for state in self.seed_states} & {id(v) for v in scope.assigned}
        self.random_without_training = bool(seeds_drawn)
        return Parts(loss, [], moved, [scope.get_current_value(v) for v in self.metrics], losses)

    def count(self, values: Values, seeds: tf.Tensor, batch: Any, *, training: bool) -> list[tf.Tensor]:
        """Return the denominator of each compiled loss for these rows; TensorFlow drops what they do not depend on."""
        x, y, sample_weight = batch
        with self._scope(values, seeds):
            return denominators(self.model, y, _call(self.model, x, training=training), sample_weight)

    def predict(self, values: Values, seeds: tf.Tensor, batch: Any, share: Share) -> Predicted:
        """Return the model's outputs and moved state for one micro-batch, with `training=False`."""
        with self._scope(values, seeds) as scope:
            outputs = _call(self.model, batch[0], training=False)
        return Predicted(outputs, self._moved(values, scope, share, [batch, seeds]))

    def _moved(self, values: Values, scope: RecordingScope, share: Share, sources: list[Any]) -> list[tf.Tensor]:
        """Return the contributions to all state that was assigned; what depends on no `sources` is the same for all."""
        self._refuse_unknown_writes(scope)
        self.moved, contributions = [], []
        given = [*keras.tree.flatten(sources), *keras.tree.flatten(list(share))]
        held = zip([*self.trainable, *self.state], [*values.trainable, *values.state], strict=True)
        for variable, old in held:
            new = scope.get_current_value(variable)
            if new is not old:
                rule = rule_for(self.model, variable, self.virtual_replicas, from_data=depends_on(new, given))
                self.moved.append((variable, rule))
                contributions.append(contribution(rule, old, new, share.rows))
        return contributions

    def _refuse_unknown_writes(self, scope: RecordingScope) -> None:
        """Raise for a variable that was assigned and would not be kept: nothing may be dropped in silence."""
        known = {id(v) for v in [*self.trainable, *self.state, *self.metrics, *self.unmerged, *self.seed_states]}
        for variable in scope.assigned:
            if id(variable) not in known:
                raise refuse_write(variable)

    def _loss(
        self, share: Share, x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        if self.virtual_replicas == 1:
            return self.model._compute_loss(x, y, y_pred, sample_weight, training=training), []
        with losses_of_share(self.model, share) as values:
            loss = self.model._compute_loss(x, y, y_pred, sample_weight, training=training)
        tracked = values if self.loss_trackers else []
        return part_of_batch(self.model, loss, share), [v * tf.cast(share.rows, v.dtype) for v in tracked]

    def _scope(self, values: Values, seeds: tf.Tensor, tape: Any = None) -> RecordingScope:
        start = values.metrics if self.virtual_replicas == 1 else _zeros(self.metrics)
        # Keras reads its loss tracker when it reports the metrics; within a micro-batch nobody wants the report.
        tracker = [] if self.model._loss_tracker is None else self.model._loss_tracker.variables
        mapping = [
            *zip(self.trainable, values.trainable, strict=True),
            *zip(self.state, values.state, strict=True),
            *zip(self.loss_scale, values.loss_scale, strict=True),
            *((state, seeds[index]) for index, state in enumerate(self.seed_states)),
            *zip(self.metrics, start, strict=True),
            *zip(self.unmerged, _zeros(self.unmerged), strict=True),
            *zip(tracker, _zeros(tracker), strict=True),
        ]
        return RecordingScope(mapping, self.trainable, tape)


def metric_variables(model: keras.Model) -> list[keras.Variable]:
    """Return the variables of all metrics but the loss tracker, which is updated once, from the loss of the step."""
    tracker = {id(v) for v in model._loss_tracker.variables} if model._loss_tracker is not None else set()
    return [v for v in model.metrics_variables if id(v) not in tracker]


def _several_losses(model: keras.Model) -> bool:
    return model._compile_loss is not None and bool(model._compile_loss.metrics)


def _zeros(variables: Sequence[keras.Variable]) -> list[tf.Tensor]:
    return [tf.zeros(variable.shape, variable.dtype) for variable in variables]


def _call(model: keras.Model, x: Any, *, training: bool) -> Any:
    return model(x, training=training) if model._call_has_training_arg else model(x)


def _added(gradients: Sequence[Any], shape: tf.TensorShape) -> Any:
    """Return the sum of what one weight's copies got; a dense one has the weight's `shape`.

    Where a weight is read by rows and as a whole (tied embeddings), TensorFlow's sum of both has none.
    """
    found = [gradient for gradient in gradients if gradient is not None]
    if not found:
        return None
    if len(found) == 1 and isinstance(found[0], tf.IndexedSlices):
        return found[0]
    return tf.ensure_shape(tf.add_n([tf.convert_to_tensor(gradient) for gradient in found]), shape)


def _loss_scale_variables(optimizer: Any) -> list[keras.Variable]:
    scale = getattr(optimizer, "dynamic_scale", None)
    return [] if scale is None else [scale]
