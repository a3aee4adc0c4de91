"""Where variables live, and where the operations that update them run.

Every variable has one owner device, the one with the fewest bytes so far; optimizer slots follow their variable by
themselves, since Keras creates them colocated. While the apply stage is traced, `follow_largest_input` puts each
operation on the device of its largest input, so an unmodified Keras optimizer does its work on the owners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

_RESOURCE_SIZE = 1 << 62


@contextmanager
def variables_on(devices: Sequence[str]) -> Iterator[None]:
    """Give each variable created inside to the device with the fewest bytes, unless it is placed already."""
    with tf.variable_creator_scope(_balanced_creator(devices)):
        yield


def owner(variable: keras.Variable) -> str:
    """Return the full name of the device on which `variable` lives."""
    return str(variable.value.device)


def _balanced_creator(devices: Sequence[str]) -> Callable[..., Any]:
    held = dict.fromkeys(devices, 0)

    def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        if context.context().device_name:
            return next_creator(**kwargs)
        initial = kwargs["initial_value"]
        value = initial() if callable(initial) else tf.convert_to_tensor(initial, dtype=kwargs.get("dtype"))
        device = min(held, key=held.__getitem__)
        held[device] += int(np.prod(value.shape)) * value.dtype.size
        with tf.device(device):
            return next_creator(**{**kwargs, "initial_value": value})

    return create


@contextmanager
def sums_already_made(optimizer: Any) -> Iterator[None]:
    """Let `optimizer.apply` take its gradients as summed.

    Keras asks tf.distribute to sum them, which without a strategy changes nothing but passes all gradients through one
    operation, and so through one device.
    """
    parts = [optimizer, *([optimizer.inner_optimizer] if hasattr(optimizer, "inner_optimizer") else [])]
    for part in parts:
        vars(part)["_all_reduce_sum_gradients"] = lambda pairs: pairs
    try:
        yield
    finally:
        for part in parts:
            del vars(part)["_all_reduce_sum_gradients"]


def follow_largest_input(operation: Any) -> str:
    """Return the device of the operation's largest input; a variable's handle outweighs any tensor."""
    best, largest = "", -1
    for tensor in operation.inputs:
        device, size = home(tensor), _elements(tensor)
        if device and size > largest:
            best, largest = device, size
    return best


def _elements(tensor: Any) -> int:
    if tensor.dtype == tf.resource:
        return _RESOURCE_SIZE
    return int(tensor.shape.num_elements() or 0)


def home(tensor: Any) -> str:
    """Return the device that holds a graph tensor: its operation's, or that of the variable it was read from."""
    while True:
        operation = tensor.op
        if operation.device:
            return str(operation.device)
        if operation.type in ("ReadVariableOp", "Identity"):
            tensor = operation.inputs[0]
            continue
        captured = _captured(tensor) if operation.type == "Placeholder" else None
        if captured is None:
            return ""
        if not hasattr(captured, "op") or isinstance(captured, tf.__internal__.EagerTensor):
            return str(captured.device)
        tensor = captured


def _captured(placeholder: Any) -> Any:
    """Return the outer tensor that a function's placeholder stands for, None for an argument."""
    for outer, inner in placeholder.graph.captures:
        if inner is placeholder:
            return outer
    return None
