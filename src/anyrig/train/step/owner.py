"""The owner engine: one TensorFlow process, an ordinary Keras model, each variable on one owner device.

One `tf.function` is one step. Every device reads the weights from their owners, works through its block of virtual
replicas one after another, and adds up whole subtrees of the fixed tree. Each variable's owner finishes the tree and
makes the update with the unmodified Keras optimizer. There is no lasting copy of a weight, so what a callback assigns
is seen by the next step.

Two rules make the bytes independent of the devices. The micro-batch is one traced function that is never inlined, so
its graph is optimised in the same way wherever it is called. And `tf.ensure_shape` stands on every result and after
every addition, since grappler would otherwise rewrite a tree of additions into one AddN of another order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator

from anyrig.data.source import Batch
from anyrig.state.seeds import seed_generators
from anyrig.state.values import to_array
from anyrig.state.walk import model_variables
from anyrig.topology.plan import DevicePlan, share_memory
from anyrig.train.step import seeds, xla
from anyrig.train.step.exhausted import exhaustion
from anyrig.train.step.finite import FiniteCheck
from anyrig.train.step.losses import CountsNeeded, Share, share_of
from anyrig.train.step.microbatch import MicroBatch, Parts, Predicted, Values
from anyrig.train.step.placement import follow_largest_input, owner, sums_already_made
from anyrig.train.step.purity import refuse_impure
from anyrig.train.step.tree import reduce_tree

_HOST = "/device:CPU:0"


class OwnerEngine:
    """Executes the steps of one built and compiled model by one device plan."""

    def __init__(self, plan: DevicePlan, model: keras.Model, seed: int) -> None:
        self.plan = plan
        self.model = model
        self.seed = seed
        self._generators = seed_generators(model)
        held = [generator for _, generator in self._generators]
        self.micro = MicroBatch(model, [*held, global_seed_generator()], plan.virtual_replicas)
        self.own_seeds: list[tuple[str, int]] = []
        self.device_of = {v: device for device, block in zip(plan.devices, plan.blocks, strict=True) for v in block}
        self._sliced = _variables_to_slice(self.micro.trainable, len(plan.devices))
        self._functions: dict[Any, Callable[..., Any]] = {}
        self._open: list[tuple[int | None, ...]] = []
        self._micro_batches: dict[Any, Callable[..., Any]] = {}  # those of each step, outside of it
        self._xla = xla.asked_for(model)
        self._check: FiniteCheck | None = None  # made when a training step is traced first
        with tf.device(_HOST):
            self._updates_begun = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._updates_made = 0

    def read_seeds(self) -> None:
        """Take each generator's own seed from the model as it is now; to be called after weights were loaded."""
        own = [(path, int(to_array(generator.state)[0])) for path, generator in self._generators]
        self.own_seeds = [*own, (seeds.GLOBAL_GENERATOR, 0)]
        self._updates_made = int(self._updates_begun.numpy())  # whatever broke off an earlier fit is over

    def expect(self, sample: Batch) -> None:
        """Take from a batch, or specifications of one, which sizes besides the rows change from batch to batch.

        Those that a specification leaves open (lengths of padded texts) are left open in traces, too.
        """
        leaves = [leaf for leaf in keras.tree.flatten(sample) if leaf is not None]
        self._open = [tuple(leaf.shape) if isinstance(leaf, tf.TensorSpec) else () for leaf in leaves]

    def train(self, batch: Batch, step: int) -> dict[str, Any]:
        """Do training step number `step` on one global batch; return Keras's logs so far in this epoch.

        Raises NotFinite, with every variable as it was, if the loss or what the step would assign from is not finite;
        OutOfMemory, which tells whether they are as they were, for want of memory.
        """
        try:
            with exhaustion(self._half_made):
                logs: dict[str, Any] = self._run(self._train_step, self.micro.train, batch, step)
            self._updates_made += 1
            return logs
        except tf.errors.InvalidArgumentError as error:
            found = self._check.explain(error) if self._check is not None else None
            if found is None:
                raise
            raise found from None

    def test(self, batch: Batch, index: int) -> dict[str, Any]:
        """Do evaluation step number `index` on one global batch; return Keras's logs so far."""
        return self._run(self._test_step, self.micro.test, batch, -1 - index)

    def predict(self, batch: Batch, index: int) -> Any:
        """Return the model's outputs for global batch number `index`, rows in order."""
        return self._run(self._predict_step, self.micro.predict, batch, -1 - index)

    # A trace is kept for each kind of step and structure of the batch, and one more where a batch has fewer rows than
    # virtual replicas: then the last ones are empty, which the trace has to know.
    def _run(self, step_function: Callable[..., Any], work: Callable[..., Any], batch: Batch, step: int) -> Any:
        leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
        filled = min(self.plan.virtual_replicas, int(leaves[0].shape[0]))
        known = self._open if len(self._open) == len(leaves) else [()] * len(leaves)
        specs = [_any_rows(leaf, sizes) for leaf, sizes in zip(leaves, known, strict=True)]
        shape = keras.tree.map_structure(lambda leaf: leaf is not None, batch)
        key = (step_function.__name__, filled, repr(shape), tuple(specs))
        if key not in self._functions:
            self._functions[key], self._micro_batches[key] = self._trace(step_function, work, filled, shape, specs)
        keys = seeds.keys(self.seed, self.own_seeds, step, self.plan.virtual_replicas)
        with xla.told_by_name(compiled=self._xla):
            try:
                return self._functions[key](leaves, keys)
            except tf.errors.CancelledError:
                # A device that fails inside a micro-batch cancels the others, and of that alone TensorFlow tells. A
                # micro-batch changes no variable, so it can be done again by itself, where it raises what was wrong.
                self._micro_batches[key](leaves, keys)
                if self._half_made() or not share_memory(self.plan):
                    raise
                raise MemoryError("each micro-batch fits into memory by itself, but not beside the others") from None

    def _half_made(self) -> bool:
        return int(self._updates_begun.numpy()) > self._updates_made

    def _trace(self, step_function: Any, work: Any, filled: int, shape: Any, specs: list[tf.TensorSpec]) -> Any:
        """Return the step as a function of leaves and keys, and one that does its micro-batches alone."""

        @tf.function(autograph=False, experimental_attributes={"_noinline": True}, jit_compile=self._xla or None)
        def micro(values: Values, keys: tf.Tensor, leaves: list[tf.Tensor], share: Share) -> Any:
            result = work(values, keys, _pack(shape, leaves), share)
            refuse_impure(tf.compat.v1.get_default_graph())
            return result

        @tf.function(autograph=False, experimental_attributes={"_noinline": True})
        def count(values: Values, keys: tf.Tensor, leaves: list[tf.Tensor]) -> list[tf.Tensor]:
            return self.micro.count(values, keys, _pack(shape, leaves), training=work == self.micro.train)

        if self.model.run_eagerly:
            line_by_line = functools.partial(self._parts, micro.python_function, count.python_function, filled)
            return self._eager(line_by_line, step_function), line_by_line
        key_spec = tf.TensorSpec((self.plan.virtual_replicas, len(self._generators) + 1, 2), tf.int64)

        @tf.function(autograph=False, input_signature=[specs, key_spec])
        def step(leaves: list[tf.Tensor], keys: tf.Tensor) -> Any:
            parts, rows = self._parts(micro, count, filled, leaves, keys)
            return step_function(parts, rows)

        try:
            return step.get_concrete_function(), functools.partial(self._parts, micro, count, filled)
        except CountsNeeded:  # traced by functions of its own: a second attempt of these may not make variables
            self.micro.counts_first = True
            return self._trace(step_function, work, filled, shape, specs)

    def _eager(self, line_by_line: Callable[..., Any], step_function: Any) -> Any:
        """Return a step whose micro-batches run line by line, for debuggers and prints; only the update is traced."""
        finish = tf.function(step_function, autograph=False)

        def step(leaves: list[Any], keys: Any) -> Any:
            try:
                parts, rows = line_by_line(leaves, keys)
            except CountsNeeded:
                self.micro.counts_first = True
                parts, rows = line_by_line(leaves, keys)
            return finish(parts, rows)

        return step

    def _parts(self, micro: Any, count: Any, filled: int, arrays: list[Any], keys: Any) -> Any:
        """Return the parts of every non-empty virtual replica, and the number of rows of all."""
        leaves, keys = [tf.convert_to_tensor(array) for array in arrays], tf.convert_to_tensor(keys)
        given, rows = self._given(filled, leaves, keys), tf.shape(leaves[0])[0]
        counts = self._on_devices(count, given) if self.micro.counts_first else [[]] * filled
        shares = self._shares(rows, counts)
        return self._on_devices(micro, [(*g, share) for g, share in zip(given, shares, strict=True)]), rows

    def _given(self, filled: int, leaves: list[tf.Tensor], keys: tf.Tensor) -> list[tuple[Any, ...]]:
        """Return keys and rows of every non-empty virtual replica, the rows as `batch.row_ranges` gives them."""
        with tf.device(_HOST):
            starts = self._starts(tf.shape(leaves[0])[0])
            return [(keys[v], [leaf[starts[v] : starts[v + 1]] for leaf in leaves]) for v in range(filled)]

    def _on_devices(self, function: Any, given: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return what `function` makes of what each non-empty virtual replica is given, computed on its device."""
        parts: list[Any] = []
        before: list[tf.Tensor] = []
        for device, block in zip(self.plan.devices, self.plan.blocks, strict=True):
            before = before if self.plan.in_turn else []
            with tf.device(device), tf.control_dependencies(before):
                values = self._read_variables()
                for v in (v for v in block if v < len(given)):
                    # One micro-batch after another: a device never holds the activations of two.
                    with tf.control_dependencies(before):
                        part = function(values, *given[v])
                    parts.append(keras.tree.map_structure(_barrier, part))
                    before = [keras.tree.flatten(part)[0]]
        return parts

    def _starts(self, rows: tf.Tensor) -> list[tf.Tensor]:
        replicas = self.plan.virtual_replicas
        return [v * (rows // replicas) + tf.minimum(v, rows % replicas) for v in range(replicas + 1)]

    def _shares(self, rows: tf.Tensor, counts: list[list[tf.Tensor]]) -> list[Share]:
        """Return each virtual replica's share of the batch; the counts are added up in the tree as all is."""
        with tf.device(_HOST):
            totals = [self._sum(list(parts), _HOST) for parts in zip(*counts, strict=True)]
            starts = self._starts(rows)
            return [share_of(starts[v + 1] - starts[v], rows, own, totals) for v, own in enumerate(counts)]

    def _read_variables(self) -> Values:
        """Return the current values of the model's variables, read once for the device in scope."""
        lists = (self.micro.trainable, self.micro.state, self.micro.loss_scale, self.micro.metrics)
        return Values(*([tf.identity(v.value) for v in variables] for variables in lists))

    def _train_step(self, parts: list[Parts], rows: tf.Tensor) -> dict[str, Any]:
        gradients = [
            self._gradient([part.gradients[i] for part in parts], variable)
            for i, variable in enumerate(self.micro.trainable)
        ]
        moved = self._merged(parts)
        # All micro-batches are done before anything is assigned: one for which memory is wanting changes nothing.
        made = [self._require_finite(parts, gradients, moved), *(g for g in gradients if g is not None)]
        with tf.control_dependencies(made):
            begun = self._updates_begun.assign_add(1, read_value=False)
        with tf.control_dependencies([begun]):
            self._assign_moved(moved)
            with tf.compat.v1.device(follow_largest_input):
                if self.micro.trainable:
                    with sums_already_made(self.model.optimizer):
                        self.model.optimizer.apply(gradients, self.micro.trainable)
            return self._logs(parts, rows)

    def _require_finite(self, parts: list[Parts], gradients: list[Any], moved: list[tf.Tensor]) -> tf.Operation:
        """Return an operation that fails before anything is assigned if the step met a number that is not finite.

        Gradients that are not finite are LossScaleOptimizer's own business: it leaves the update out.
        """
        names = {id(item.variable): item.name for item in model_variables(self.model)}
        scaled = isinstance(self.model.optimizer, keras.optimizers.LossScaleOptimizer)
        checked = () if scaled else zip(self.micro.trainable, gradients, strict=True)
        watched = {f"the gradient of {names[id(v)]}": gradient for v, gradient in checked if gradient is not None}
        for (variable, _), value in zip(self.micro.moved, moved, strict=True):
            if value.dtype.is_floating:
                watched[f"the new value of {names[id(variable)]}"] = value
        if self._check is None or self._check.names != tuple(watched):
            self._check = FiniteCheck(self.plan.virtual_replicas, list(watched))
        return self._check.require([part.loss for part in parts], list(watched.values()))

    def _test_step(self, parts: list[Parts], rows: tf.Tensor) -> dict[str, Any]:
        self._assign_moved(self._merged(parts))
        return self._logs(parts, rows)

    def _merged(self, parts: Sequence[Any]) -> list[tf.Tensor]:
        """Return what the model's assignments come to over all virtual replicas, in the order of `micro.moved`."""
        return [
            self._merge([part.moved[i] for part in parts], variable, rule)
            for i, (variable, rule) in enumerate(self.micro.moved)
        ]

    def _assign_moved(self, merged: Sequence[tf.Tensor]) -> None:
        """Assign what the model assigned, before the optimizer: it may be a weight (SpectralNormalization)."""
        with tf.compat.v1.device(follow_largest_input):
            for (variable, rule), value in zip(self.micro.moved, merged, strict=True):
                variable.value.assign_add(value) if rule == "sum" else variable.value.assign(value)

    def _logs(self, parts: list[Parts], rows: tf.Tensor) -> dict[str, Any]:
        """Add what the micro-batches gained to loss tracker and metrics; return their results."""
        loss = self._sum([part.loss for part in parts], _HOST)
        losses = [self._sum([p.losses[i] for p in parts], _HOST) for i in range(len(self.micro.loss_trackers))]
        gains = [self._sum([p.metrics[i] for p in parts], owner(v)) for i, v in enumerate(self.micro.metrics)]
        with tf.compat.v1.device(follow_largest_input):
            if self.model._loss_tracker is not None:
                self.model._loss_tracker.update_state(loss, sample_weight=rows)
            for tracker, value in zip(self.micro.loss_trackers, losses, strict=True):
                tracker.update_state(value)
            for variable, gain in zip(self.micro.metrics, gains, strict=True):
                divided = self.plan.virtual_replicas > 1
                variable.value.assign_add(gain) if divided else variable.value.assign(gain)
            return self.model.get_metrics_result()

    def _predict_step(self, parts: list[Predicted], rows: tf.Tensor) -> Any:
        del rows
        self._assign_moved(self._merged(parts))
        with tf.device(_HOST):
            return keras.tree.map_structure(lambda *outputs: tf.concat(outputs, axis=0), *[p.outputs for p in parts])

    def _gradient(self, parts: list[Any], variable: keras.Variable) -> Any:
        """Return the step's gradient on the variable's owner, in the variable's dtype; None where there is none."""
        if parts[0] is None:
            return None
        home = owner(variable)
        if isinstance(parts[0], tf.IndexedSlices):
            with tf.device(home):
                return _join_rows(parts)
        dtype = parts[0].dtype
        wide = [tf.cast(part, tf.float32) if dtype in (tf.float16, tf.bfloat16) else part for part in parts]
        total = self._sum_slices(wide, home) if id(variable) in self._sliced else self._sum(wide, home)
        with tf.device(home):
            return tf.cast(total, dtype)

    def _merge(self, parts: list[tf.Tensor], variable: keras.Variable, rule: str) -> tf.Tensor:
        if rule != "first":
            return self._sum(parts, owner(variable))
        with tf.device(owner(variable)):
            message = f"{variable.path}: virtual replicas moved this state differently, but its merge rule is 'first'"
            checks = [tf.debugging.assert_equal(parts[0], part, message=message) for part in parts[1:]]
            with tf.control_dependencies(checks):
                return tf.identity(parts[0])

    def _sum(self, parts: list[tf.Tensor], home: str) -> tf.Tensor:
        """Return the tree sum over all virtual replicas; an empty one adds zeros. It is finished on device `home`."""
        empty = self.plan.virtual_replicas - len(parts)
        parts = parts + [tf.zeros_like(parts[0])] * empty

        def join(left: tf.Tensor, right: tf.Tensor, span: range) -> tf.Tensor:
            same = self.device_of[span[0]] == self.device_of[span[-1]]
            with tf.device(self.device_of[span[0]] if same else home):
                return _barrier(left + right)

        return reduce_tree(parts, join)

    def _sum_slices(self, parts: list[tf.Tensor], home: str) -> tf.Tensor:
        """Return the same sum, each device having finished one slice of it, so that no device gets all the traffic."""
        bounds = np.linspace(0, int(parts[0].shape[0]), len(self.plan.devices) + 1).astype(int)
        finished = []
        for device, start, stop in zip(self.plan.devices, bounds[:-1], bounds[1:], strict=True):
            slices = []
            for v, part in enumerate(parts):
                with tf.device(self.device_of[v]):
                    slices.append(part[start:stop])
            finished.append(self._sum(slices, device))
        with tf.device(home):
            return tf.concat(finished, axis=0)


def _any_rows(leaf: Any, sizes: tuple[int | None, ...]) -> tf.TensorSpec:
    """Return the specification of `leaf` for any number of rows, with those of `sizes` open that are None."""
    known = sizes if len(sizes) == len(leaf.shape) else leaf.shape
    shape = (None if size is None else found for size, found in zip(known[1:], leaf.shape[1:], strict=True))
    return tf.TensorSpec((None, *shape), tf.as_dtype(leaf.dtype))


def _pack(shape: Any, leaves: Sequence[tf.Tensor]) -> Any:
    """Return the batch that `shape` describes: a leaf where it says True, None where it says False."""
    remaining: Iterator[tf.Tensor] = iter(leaves)
    return keras.tree.map_structure(lambda present: next(remaining) if present else None, shape)


def _barrier(tensor: Any) -> Any:
    """Return the tensor behind an operation that grappler does not rewrite additions across."""
    if tensor is None or isinstance(tensor, tf.IndexedSlices):
        return tensor
    return tf.ensure_shape(tensor, tensor.shape)


def _join_rows(parts: Sequence[tf.IndexedSlices]) -> tf.IndexedSlices:
    """Return sparse gradients as one, rows in the order of the virtual replicas: as Keras gets them of a whole batch.

    A row that comes twice stays twice, since Keras's optimizers square each by itself.
    """
    values = tf.concat([part.values for part in parts], axis=0)
    return tf.IndexedSlices(values, tf.concat([part.indices for part in parts], axis=0), parts[0].dense_shape)


def _variables_to_slice(variables: Sequence[keras.Variable], devices: int) -> set[int]:
    """Return the ids of variables so large that one owner summing them alone would be a bottleneck."""
    sizes = {id(v): int(np.prod(v.shape)) for v in variables}
    limit = sum(sizes.values()) / (2 * devices)
    return {id(v) for v in variables if devices > 1 and sizes[id(v)] > limit and len(v.shape) and v.shape[0] >= devices}
