"""Nodes of TensorFlow graphs in Keras 2 models of TensorFlow 2.0 to 2.3 (`TensorFlowOpLayer`), as operations of Keras.

A node has the name of a kernel (`AddV2`), attributes, and constants by the number of the input that they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras import ops

from anyrig.exchange.legacy.operations import alike

_TYPES = {"DT_FLOAT": "float32", "DT_DOUBLE": "float64", "DT_HALF": "float16", "DT_INT32": "int32"} | {
    "DT_INT64": "int64",
    "DT_BOOL": "bool",
    "DT_UINT8": "uint8",
}
Attributes = Mapping[str, Mapping[str, Any]]


def _reduced(operation: Callable[..., Any]) -> Callable[..., Any]:
    def call(attributes: Attributes, x: Any, axis: Any) -> Any:
        axes = tuple(axis) if isinstance(axis, list) else axis
        return operation(x, axis=axes, keepdims=bool(attributes.get("keep_dims", {}).get("b", False)))

    return call


def _plain(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda attributes, *inputs: operation(*inputs)


def _cast(attributes: Attributes, x: Any) -> Any:
    return ops.cast(x, _TYPES[str(attributes["DstT"]["type"])])


def _squeezed(attributes: Attributes, x: Any) -> Any:
    return ops.squeeze(x, axis=tuple(_integers(attributes.get("squeeze_dims", {}))) or None)


def _sliced(attributes: Attributes, x: Any, begin: Sequence[int], end: Sequence[int], steps: Sequence[int]) -> Any:
    masks = {
        name: int(attributes.get(f"{name}_mask", {}).get("i", 0))
        for name in ("begin", "end", "shrink_axis", "new_axis", "ellipsis")
    }

    def index(n: int) -> Any:
        bit = 1 << n
        if masks["ellipsis"] & bit:
            return Ellipsis
        if masks["new_axis"] & bit:
            return None
        if masks["shrink_axis"] & bit:
            return begin[n]
        return slice(None if masks["begin"] & bit else begin[n], None if masks["end"] & bit else end[n], steps[n])

    return x[tuple(index(n) for n in range(len(begin)))]


def _product(attributes: Attributes, left: Any, right: Any) -> Any:
    for names, first in ((("transpose_a", "adj_x"), True), (("transpose_b", "adj_y"), False)):
        if any(attributes.get(name, {}).get("b") for name in names):
            left, right = (ops.swapaxes(left, -1, -2), right) if first else (left, ops.swapaxes(right, -1, -2))
    return ops.matmul(left, right)


def _stacked(attributes: Attributes, *inputs: Any) -> Any:
    return ops.stack(inputs, axis=int(attributes.get("axis", {}).get("i", 0)))


_TWO = {
    "Add": ops.add,
    "AddV2": ops.add,
    "Sub": ops.subtract,
    "Mul": ops.multiply,
    "RealDiv": ops.true_divide,
    "Pow": ops.power,
    "Maximum": ops.maximum,
    "Minimum": ops.minimum,
    "FloorDiv": ops.floor_divide,
    "FloorMod": ops.mod,
    "Greater": ops.greater,
    "Less": ops.less,
    "Equal": ops.equal,
    "NotEqual": ops.not_equal,
    "GreaterEqual": ops.greater_equal,
    "LessEqual": ops.less_equal,
    "SquaredDifference": lambda x, y: ops.square(x - y),
}
_PLAIN = {
    **{name: alike(operation) for name, operation in _TWO.items()},
    "Neg": ops.negative,
    "Abs": ops.abs,
    "Floor": ops.floor,
    "Sign": ops.sign,
    "Round": ops.round,
    "Relu": ops.relu,
    "Relu6": ops.relu6,
    "Elu": ops.elu,
    "Selu": ops.selu,
    "Sigmoid": ops.sigmoid,
    "Tanh": ops.tanh,
    "Exp": ops.exp,
    "Log": ops.log,
    "Sqrt": ops.sqrt,
    "Rsqrt": ops.rsqrt,
    "Square": ops.square,
    "Softmax": ops.softmax,
    "Softplus": ops.softplus,
    "SelectV2": ops.where,
    "ExpandDims": ops.expand_dims,
    "Identity": lambda x: x,
    "StopGradient": lambda x: x,
    "Reshape": lambda x, shape: ops.reshape(x, tuple(shape)),
    "Transpose": lambda x, axes: ops.transpose(x, tuple(axes)),
    "Tile": lambda x, times: ops.tile(x, tuple(times)),
    "ConcatV2": lambda *inputs: ops.concatenate(list(inputs[:-1]), axis=inputs[-1]),
    "Pad": lambda x, pairs: ops.pad(x, tuple(tuple(pair) for pair in pairs)),
    "GatherV2": lambda x, indices, axis: ops.take(x, indices, axis=axis),
    "AddN": lambda *inputs: sum(inputs[1:], inputs[0]),
}
NODES: Mapping[str, Callable[..., Any]] = {
    **{name: _plain(operation) for name, operation in _PLAIN.items()},
    **{name: _reduced(getattr(ops, name.lower())) for name in ("Mean", "Sum", "Max", "Min", "Prod", "All", "Any")},
    "Cast": _cast,
    "Squeeze": _squeezed,
    "StridedSlice": _sliced,
    "Pack": _stacked,
    "MatMul": _product,
    "BatchMatMul": _product,
    "BatchMatMulV2": _product,
}


def node_of(config: Mapping[str, Any]) -> tuple[str, Attributes]:
    """Return the kernel and the attributes of a node, which is JSON in text or not."""
    node = config["node_def"]
    node = json.loads(node) if isinstance(node, str) else node
    return str(node["op"]), node.get("attr") or {}


def with_constants(inputs: Sequence[Any], constants: Mapping[str, Any] | None) -> list[Any]:
    """Return all inputs of a node: the constants at their numbers, the tensors at the others, in order."""
    placed = {int(number): value for number, value in (constants or {}).items()}
    rest = iter(inputs)
    return [placed[n] if n in placed else next(rest) for n in range(len(inputs) + len(placed))]


def _integers(attribute: Mapping[str, Any]) -> list[int]:
    return [int(item) for item in (attribute.get("list") or {}).get("i", [])]
