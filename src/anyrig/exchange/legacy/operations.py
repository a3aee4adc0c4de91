"""TensorFlow functions in the graph of a Keras 2 model (`TFOpLambda`, `SlicingOpLambda`), as operations of Keras.

`FUNCTIONS` gives for the name that the file has a function with TensorFlow's arguments. What is not here is refused by
name; nothing is looked up in TensorFlow by a name from a file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

Function = Callable[..., Any]


def _plain(operation: Function) -> Function:
    """Take one input, whatever TensorFlow calls it."""

    def call(*inputs: Any, name: Any = None, **arguments: Any) -> Any:
        return operation(*inputs, *arguments.values())

    return call


def alike(operation: Function) -> Function:
    """Take two inputs, of which one may be a list of numbers, which has the type of the other."""

    def call(x: Any, y: Any, name: Any = None) -> Any:
        return operation(_like(x, y), _like(y, x))

    return call


def _like(value: Any, other: Any) -> Any:
    return np.asarray(value, dtype=other.dtype) if isinstance(value, list) else value


def _reducing(operation: Function) -> Function:
    def call(inputs: Any, axis: Any = None, keepdims: Any = False, name: Any = None, **old: Any) -> Any:
        axis = old.get("reduction_indices", axis)
        axes = tuple(axis) if isinstance(axis, list) else axis
        return operation(inputs, axis=axes, keepdims=bool(keepdims or old.get("keep_dims")))

    return call


def _argument(operation: Function) -> Function:
    def call(inputs: Any, axis: Any = None, output_type: Any = "int64", name: Any = None, dimension: Any = None) -> Any:
        first = 0 if axis is None and dimension is None else axis if dimension is None else dimension
        return ops.cast(operation(inputs, axis=first), output_type)

    return call


def _cast(x: Any, dtype: Any, name: Any = None) -> Any:
    return ops.cast(x, dtype)


def _getitem(x: Any, slice_spec: Sequence[Any], **_: Any) -> Any:
    return x[tuple(_index(item) for item in slice_spec)]


def _index(item: Any) -> Any:
    if isinstance(item, Mapping) and "start" in item:
        return slice(*(item[key] for key in ("start", "stop", "step")))
    return Ellipsis if isinstance(item, Mapping) else item


def _transpose(a: Any, perm: Any = None, conjugate: Any = False, name: Any = None) -> Any:
    return ops.transpose(a, perm)


def _concat(values: Any, axis: Any, name: Any = None) -> Any:
    return ops.concatenate(values, axis=axis)


def _matmul(a: Any, b: Any, transpose_a: Any = False, transpose_b: Any = False, name: Any = None, **_: Any) -> Any:
    a, b = _like(a, b), _like(b, a)
    left = ops.swapaxes(a, -1, -2) if transpose_a else a
    return ops.matmul(left, ops.swapaxes(b, -1, -2) if transpose_b else b)


def _split(value: Any, num_or_size_splits: Any, axis: Any = 0, num: Any = None, name: Any = None) -> Any:
    if isinstance(num_or_size_splits, int):
        return ops.split(value, num_or_size_splits, axis=axis)
    sizes = list(num_or_size_splits)
    return ops.split(value, [sum(sizes[: n + 1]) for n in range(len(sizes) - 1)], axis=axis)


def _normalized(x: Any, axis: Any = None, epsilon: Any = 1e-12, name: Any = None, dim: Any = None) -> Any:
    axes = axis if dim is None else dim
    squares = ops.sum(ops.square(x), axis=tuple(axes) if isinstance(axes, list) else axes, keepdims=True)
    return x * ops.rsqrt(ops.maximum(squares, epsilon))


def _padded(tensor: Any, paddings: Any, mode: Any = "CONSTANT", name: Any = None, constant_values: Any = 0) -> Any:
    kind = mode.lower()
    pairs = tuple(tuple(pair) for pair in paddings)
    return ops.pad(tensor, pairs, mode=kind, constant_values=constant_values if kind == "constant" else None)


def _clipped(t: Any, clip_value_min: Any, clip_value_max: Any, name: Any = None) -> Any:
    return ops.clip(t, clip_value_min, clip_value_max)


def _gathered(params: Any, indices: Any, axis: Any = None, name: Any = None, **_: Any) -> Any:
    return ops.take(params, indices, axis=axis or 0)


def _softmax(logits: Any, axis: Any = -1, name: Any = None) -> Any:
    return ops.softmax(logits, axis=-1 if axis is None else axis)


def _resized(images: Any, size: Any, method: Any = "bilinear", name: Any = None, **options: Any) -> Any:
    if any(options.values()):
        raise NotImplementedError(f"image.resize with {options}")
    return ops.image.resize(images, tuple(size), interpolation=method, data_format="channels_last")


def _where(condition: Any, x: Any = None, y: Any = None, name: Any = None) -> Any:
    return ops.where(condition, x, y)


def _gelu(features: Any, approximate: Any = False, name: Any = None) -> Any:
    return ops.gelu(features, approximate=bool(approximate))


def _leaky(features: Any, alpha: Any = 0.2, name: Any = None) -> Any:
    return ops.leaky_relu(features, negative_slope=alpha)


def _one_hot(
    indices: Any, depth: Any, on_value: Any = None, off_value: Any = None, axis: Any = None, dtype: Any = None,
    name: Any = None,
) -> Any:  # fmt: skip
    hot = ops.one_hot(indices, depth, axis=-1 if axis is None else axis, dtype=dtype or "float32")
    on, off = 1 if on_value is None else on_value, off_value or 0
    return hot if (on, off) == (1, 0) else hot * (on - off) + off


def _cumulated(x: Any, axis: Any = 0, exclusive: Any = False, reverse: Any = False, name: Any = None) -> Any:
    if exclusive or reverse:
        raise NotImplementedError("math.cumsum that is exclusive or in reverse")
    return ops.cumsum(x, axis=axis)


def _stacked(values: Any, axis: Any = 0, name: Any = None) -> Any:
    return ops.stack(values, axis=axis)


def _expanded(input: Any, axis: Any = None, name: Any = None, dim: Any = None) -> Any:  # noqa: A002
    return ops.expand_dims(input, axis if dim is None else dim)


def _squeezed(input: Any, axis: Any = None, name: Any = None, squeeze_dims: Any = None) -> Any:  # noqa: A002
    axes = axis if squeeze_dims is None else squeeze_dims
    return ops.squeeze(input, axis=tuple(axes) if isinstance(axes, list) else axes)


def _reshaped(tensor: Any, shape: Any, name: Any = None) -> Any:
    return ops.reshape(tensor, tuple(shape) if isinstance(shape, list) else shape)


def _summed(inputs: Sequence[Any], name: Any = None) -> Any:
    total = inputs[0]
    for item in inputs[1:]:
        total = total + item
    return total


def _bounded(x: Any) -> Any:
    return keras.activations.relu(x, max_value=6.0)


_BINARY: Mapping[str, Function] = {
    **dict.fromkeys(("add", "__operators__.add", "math.add"), ops.add),
    **dict.fromkeys(("subtract", "math.subtract"), ops.subtract),
    **dict.fromkeys(("multiply", "math.multiply"), ops.multiply),
    **dict.fromkeys(("divide", "math.divide", "math.truediv", "realdiv", "compat.v1.div"), ops.true_divide),
    **dict.fromkeys(("math.floordiv", "compat.v1.floor_div"), ops.floor_divide),
    **dict.fromkeys(("math.mod", "math.floormod"), ops.mod),
    **dict.fromkeys(("pow", "math.pow"), ops.power),
    **dict.fromkeys(("maximum", "math.maximum"), ops.maximum),
    **dict.fromkeys(("minimum", "math.minimum"), ops.minimum),
    "math.squared_difference": lambda x, y: ops.square(x - y),
    **dict.fromkeys(("equal", "math.equal", "__operators__.eq"), ops.equal),
    **dict.fromkeys(("not_equal", "math.not_equal", "__operators__.ne"), ops.not_equal),
    **dict.fromkeys(("greater", "math.greater"), ops.greater),
    **dict.fromkeys(("greater_equal", "math.greater_equal"), ops.greater_equal),
    **dict.fromkeys(("less", "math.less"), ops.less),
    **dict.fromkeys(("less_equal", "math.less_equal"), ops.less_equal),
    "math.logical_and": ops.logical_and,
    "math.logical_or": ops.logical_or,
}
_PLAIN: Mapping[str, Function] = {
    "math.logical_not": ops.logical_not,
    **{name: getattr(ops, name) for name in ("exp", "sqrt", "square", "abs", "sign", "floor", "round", "sin", "cos")},
    **{f"math.{name}": getattr(ops, name) for name in ("exp", "sqrt", "square", "abs", "sign", "floor", "round")},
    **{f"math.{name}": getattr(ops, name) for name in ("sin", "cos", "tan", "log", "log1p", "expm1", "rsqrt", "erf")},
    **{
        f"math.{name}": getattr(ops, name) for name in ("ceil", "reciprocal", "sigmoid", "tanh", "softplus", "softsign")
    },
    **{f"nn.{name}": getattr(ops, name) for name in ("relu", "elu", "selu", "silu", "softplus", "softsign", "sigmoid")},
    **dict.fromkeys(("negative", "math.negative"), ops.negative),
    **dict.fromkeys(("tanh", "nn.tanh"), ops.tanh),
    **dict.fromkeys(("sigmoid", "nn.sigmoid"), ops.sigmoid),
    "nn.swish": ops.silu,
    "nn.relu6": _bounded,
    **dict.fromkeys(("math.is_nan",), ops.isnan),
    **dict.fromkeys(("zeros_like", "compat.v1.zeros_like"), ops.zeros_like),
    **dict.fromkeys(("ones_like", "compat.v1.ones_like"), ops.ones_like),
    **dict.fromkeys(("identity", "stop_gradient"), lambda x: x),
    **dict.fromkeys(("tile",), lambda x, times: ops.tile(x, tuple(times))),
    "broadcast_to": lambda x, shape: ops.broadcast_to(x, tuple(shape)),
    "compat.v1.shape": lambda x, *_: ops.convert_to_tensor(ops.shape(x)),
    "math.cos": ops.cos,
}
_REDUCING = {"mean": ops.mean, "sum": ops.sum, "max": ops.max, "min": ops.min, "prod": ops.prod, "std": ops.std} | {
    "variance": ops.var,
    "any": ops.any,
    "all": ops.all,
    "logsumexp": ops.logsumexp,
}
FUNCTIONS: Mapping[str, Function] = {
    **{name: _plain(operation) for name, operation in _PLAIN.items()},
    **{name: alike(operation) for name, operation in _BINARY.items()},
    **{f"math.reduce_{name}": _reducing(operation) for name, operation in _REDUCING.items()},
    **{
        f"reduce_{name}": _reducing(operation)
        for name, operation in _REDUCING.items()
        if name not in ("std", "variance")
    },
    **dict.fromkeys(("math.argmax", "compat.v1.argmax", "argmax"), _argument(ops.argmax)),
    **dict.fromkeys(("math.argmin", "compat.v1.argmin", "argmin"), _argument(ops.argmin)),
    **dict.fromkeys(("cast", "compat.v1.cast"), _cast),
    "__operators__.getitem": _getitem,
    **dict.fromkeys(("transpose", "compat.v1.transpose"), _transpose),
    "concat": _concat,
    **dict.fromkeys(("matmul", "linalg.matmul"), _matmul),
    "split": _split,
    **dict.fromkeys(("math.l2_normalize", "nn.l2_normalize", "linalg.l2_normalize"), _normalized),
    **dict.fromkeys(("pad", "compat.v1.pad"), _padded),
    "clip_by_value": _clipped,
    **dict.fromkeys(("gather", "compat.v1.gather"), _gathered),
    **dict.fromkeys(("nn.softmax", "compat.v1.nn.softmax"), _softmax),
    **dict.fromkeys(("image.resize",), _resized),
    **dict.fromkeys(("where", "compat.v1.where"), _where),
    "nn.gelu": _gelu,
    **dict.fromkeys(("nn.leaky_relu", "compat.v1.nn.leaky_relu"), _leaky),
    "one_hot": _one_hot,
    **dict.fromkeys(("math.cumsum", "cumsum"), _cumulated),
    "stack": _stacked,
    **dict.fromkeys(("expand_dims", "compat.v1.expand_dims"), _expanded),
    **dict.fromkeys(("squeeze", "compat.v1.squeeze"), _squeezed),
    "reshape": _reshaped,
    "math.add_n": _summed,
}
