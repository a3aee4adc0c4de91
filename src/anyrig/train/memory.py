"""What each device has to hold during a training step, estimated before anything is trained.

Parameters, optimizer and the sums of gradients are counted from the variables on each device and from its block of
virtual replicas. Activations are those of one micro-batch: the operations of the traced forward and backward pass are
gone through in order, and each result is held until its last use. TensorFlow may write a result over an input (less),
work in scratch memory (more), and run independent operations in another order; what a loop (an RNN) holds inside is
not seen. On CPU the resident set grew around a step, differently from step to step, by 336 to 503 MiB for a small CNN
(estimated with gradients: 384 MiB) and by 232 to 254 MiB for an MLP (estimated: 277 MiB). Not tried on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from anyrig.topology.plan import short_name, split_rows
from anyrig.train.step.losses import CountsNeeded, share_of
from anyrig.train.step.owner import OwnerEngine
from anyrig.train.step.placement import owner

_SAME_BUFFER = frozenset(
    {"Identity", "Reshape", "EnsureShape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Bytes that one device holds at the peak of a step. `available` is the device's memory, None where not known."""

    device: str
    parameters: int
    optimizer: int
    gradients: int
    activations: int
    available: int | None = None

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return self.parameters + self.optimizer + self.gradients + self.activations


def gradients_held(block: int) -> int:
    """Return how many gradients of all weights a device holds that sums a block of so many virtual replicas.

    One that is just made, and a sum of each size that waits for its other half.
    """
    return 0 if block == 0 else 1 + (block - 1).bit_length()


def live_peak(operations: Sequence[tuple[Sequence[str], Sequence[str]]], sizes: Mapping[str, int]) -> int:
    """Return the most bytes that are held at once; each operation is (buffers made, buffers used), in order."""
    last = {buffer: index for index, (made, used) in enumerate(operations) for buffer in (*made, *used)}
    live = peak = 0
    for index, (made, used) in enumerate(operations):
        live += sum(sizes[buffer] for buffer in made)
        peak = max(peak, live)
        live -= sum(sizes[buffer] for buffer in {*made, *used} if last[buffer] == index)
    return peak


def estimate(engine: OwnerEngine, sample: Any, global_size: int) -> list[DeviceMemory]:
    """Return what each device of the engine's plan holds; `sample` is a batch (x, y, sample_weight) or its specs."""
    plan = engine.plan
    weights, slots = _by_device(engine.model.weights), _by_device(_optimizer_variables(engine.model))
    gradient = sum(map(_bytes, engine.micro.trainable))
    activations = activation_bytes(engine, sample, split_rows(global_size, plan.virtual_replicas)[0])
    return [
        DeviceMemory(
            device=device,
            # A busy device reads those of the others for the step.
            parameters=sum(weights.values()) if block else _held(weights, device),
            optimizer=_held(slots, device),
            gradients=gradients_held(len(block)) * gradient,
            activations=activations if block else 0,
            available=available(device),
        )
        for device, block in zip(plan.devices, plan.blocks, strict=True)
    ]


def activation_bytes(engine: OwnerEngine, sample: Any, rows: int) -> int:
    """Return the most bytes that both passes of a micro-batch of `rows` rows hold at once, gradients left out."""
    micro, plan = engine.micro, engine.plan
    lists = (micro.trainable, micro.state, micro.loss_scale, micro.metrics)
    values = [[tf.TensorSpec(v.shape, v.dtype) for v in variables] for variables in lists]
    leaves = keras.tree.map_structure(lambda leaf: leaf if leaf is None else _with_rows(leaf, rows), sample)
    keys = tf.TensorSpec((len(micro.seed_states), 2), tf.int64)

    @tf.function(autograph=False)
    def one(values: Any, keys: Any, batch: Any) -> Any:
        given = type(engine._read_variables())(*values)
        counts = micro.count(given, keys, batch, training=True) if micro.counts_first else []
        return micro.train(given, keys, batch, share_of(rows, rows * plan.virtual_replicas, counts, counts))

    try:
        graph = one.get_concrete_function(values, keys, leaves).graph
    except CountsNeeded:
        micro.counts_first = True
        return activation_bytes(engine, sample, rows)
    return _graph_peak(graph)


def _graph_peak(graph: Any) -> int:
    buffer: dict[str, str] = {}
    sizes: dict[str, int] = {}
    operations = []
    for operation in graph.get_operations():
        used = [buffer[tensor.name] for tensor in operation.inputs]
        for tensor in operation.outputs:
            buffer[tensor.name] = used[0] if operation.type in _SAME_BUFFER else tensor.name
            sizes.setdefault(buffer[tensor.name], _tensor_bytes(tensor))
        operations.append(([t.name for t in operation.outputs if buffer[t.name] == t.name], used))
    for tensor in (*graph.inputs, *graph.outputs):  # weights and gradients are counted elsewhere
        sizes[buffer[tensor.name]] = 0
    return live_peak(operations, sizes)


def available(device: str) -> int | None:
    """Return the bytes of a GPU's memory as TensorFlow tells them; None for CPUs and where it does not."""
    if "GPU" not in device:
        return None
    physical = tf.config.list_physical_devices("GPU")[int(device.rpartition(":")[2])]
    limits = [found.memory_limit for found in tf.config.get_logical_device_configuration(physical) or ()]
    return None if not limits or limits[0] is None else int(limits[0]) * 2**20


def _optimizer_variables(model: keras.Model) -> list[Any]:
    return [] if model.optimizer is None else list(model.optimizer.variables)


def _by_device(variables: Sequence[Any]) -> dict[str, int]:
    held: dict[str, int] = {}
    for variable in variables:
        name = short_name(owner(variable))
        held[name] = held.get(name, 0) + _bytes(variable)
    return held


def _held(by_device: Mapping[str, int], device: str) -> int:
    return by_device.get(short_name(device), 0)


def _bytes(variable: Any) -> int:
    return int(tf.TensorShape(variable.shape).num_elements() or 0) * tf.as_dtype(variable.dtype).size


def _tensor_bytes(tensor: Any) -> int:
    return int(tensor.shape.num_elements() or 0) * tensor.dtype.size if tensor.shape.rank is not None else 0


def _with_rows(leaf: Any, rows: int) -> tf.TensorSpec:
    return tf.TensorSpec((rows, *leaf.shape[1:]), tf.as_dtype(leaf.dtype))
