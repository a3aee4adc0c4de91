"""Changes of layout between what is stored and what is wanted: pure numpy functions, each exact, each with its inverse.

No function here guesses: what to do is said by a `Step`, which is plain data that a rules file can hold. Only folding
a BatchNorm computes new numbers (in float64, rounded once); everything else moves elements and keeps their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

Axes = tuple[int, ...]
CONV_FROM_CHANNELS_FIRST: dict[int, Axes] = {3: (2, 1, 0), 4: (2, 3, 1, 0), 5: (2, 3, 4, 1, 0)}
"""From (out, in, *window) to Keras's (*window, in, out), by the number of axes."""
GATES = {"lstm": ("ifco", 4), "gru": ("zrh", 3)}
"""Keras's order of gates along the last axis: LSTM input, forget, cell, output; GRU update, reset, candidate."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change of layout: `name` is a key of `STEPS`, `value` its argument where it takes one."""

    name: str
    value: Any = None

    def __str__(self) -> str:
        return self.name if self.value is None else f"{self.name} {self.value}"


def transposed(array: Array, axes: Sequence[int] | None = None) -> Array:
    """Return the array with its axes reversed, or in the order `axes`."""
    return array.transpose(axes)


def conv_from_channels_first(array: Array, _: None = None) -> Array:
    """Return a convolution's kernel (out, in, *window) as (*window, in, out)."""
    return array.transpose(CONV_FROM_CHANNELS_FIRST[array.ndim])


def conv_to_channels_first(array: Array, _: None = None) -> Array:
    """Return a convolution's kernel (*window, in, out) as (out, in, *window)."""
    return array.transpose((array.ndim - 1, array.ndim - 2, *range(array.ndim - 2)))


def window_flipped(array: Array, _: None = None) -> Array:
    """Return a convolution's kernel (*window, ...) with its window turned by half: Theano's convolutions do that."""
    return array[(slice(None, None, -1),) * (array.ndim - 2)]


def reshaped(array: Array, shape: Sequence[int]) -> Array:
    """Return the same elements in C order under another shape of as many elements (scalar and [1], flat biases)."""
    return array.reshape(tuple(shape))


def block(array: Array, value: tuple[int, int, int]) -> Array:
    """Return block `value[1]` of `value[2]` equal blocks along axis `value[0]` (one of fused q, k, v)."""
    import numpy as np

    axis, index, count = value
    return np.split(array, count, axis)[index]


def blocks_reordered(array: Array, value: tuple[int, Sequence[int]]) -> Array:
    """Return the array with its equal blocks along axis `value[0]` in the order `value[1]`."""
    import numpy as np

    axis, order = value
    parts = np.split(array, len(order), axis)
    return np.concatenate([parts[index] for index in order], axis)


def gates_reordered(array: Array, value: tuple[str, str]) -> Array:
    """Return the blocks of the last axis, one per gate, stored in the order `value[0]`, in the order `value[1]`."""
    stored, wanted = value
    return blocks_reordered(array, (array.ndim - 1, [stored.index(gate) for gate in wanted]))


def joined(arrays: Sequence[Array], axis: int) -> Array:
    """Return partitions, or separate q, k and v, as one array."""
    import numpy as np

    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis)


def cudnn_input_kernel(array: Array, gates: int) -> Array:
    """Return the input kernel (features, gates * units) that Keras wrote for CuDNNGRU/CuDNNLSTM as GRU/LSTM has it.

    Keras keeps the buffer of such a layer as cuDNN has it, (units, features) per gate, under the shape of a kernel.
    """
    import numpy as np

    return np.concatenate([part.T.reshape(part.shape, order="F") for part in np.split(array, gates, 1)], 1)


def cudnn_recurrent_kernel(array: Array, gates: int) -> Array:
    """Return the recurrent kernel (units, gates * units) with the square of each gate transposed."""
    import numpy as np

    return np.concatenate([part.T for part in np.split(array, gates, 1)], 1)


def halves_added(array: Array, _: None = None) -> Array:
    """Return a CuDNNLSTM's two biases as the one of an LSTM, which adds them anyway."""
    import numpy as np

    first, second = np.split(array, 2)
    added: Array = first + second
    return added


def rows_taken(array: Array, value: tuple[int, Sequence[int]]) -> Array:
    """Return rows `value[1]` along axis `value[0]`: classes of a head, words of an embedding."""
    axis, rows = value
    return array.take(list(rows), axis)


def rows_by_word(stored: Sequence[str], wanted: Sequence[str]) -> list[int | None]:
    """Return for each wanted word its row in the stored vocabulary, None for a word that is new."""
    rows = {word: row for row, word in enumerate(stored)}
    return [rows.get(word) for word in wanted]


def batchnorm_folded(
    kernel: Array, bias: Array | None, gamma: Array, beta: Array, mean: Array, variance: Array, epsilon: float
) -> tuple[Array, Array]:
    """Return kernel (*window, in, out) and bias of one layer that does what the layer and its BatchNorm do."""
    import numpy as np

    scale = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    shift = beta.astype(np.float64) + ((0.0 if bias is None else bias.astype(np.float64)) - mean) * scale
    return (kernel * scale).astype(kernel.dtype), shift.astype(kernel.dtype)


def batchnorm_of_nothing(size: int, epsilon: float) -> dict[str, Array]:
    """Return the variables of a BatchNorm that changes nothing, for a model that has one where the file folded it."""
    import numpy as np

    one, zero = np.ones(size, np.float32), np.zeros(size, np.float32)
    return {"gamma": one, "beta": zero, "moving_mean": zero, "moving_variance": (one - epsilon).astype(np.float32)}


STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "transpose": transposed,
    "conv_from_channels_first": conv_from_channels_first,
    "conv_to_channels_first": conv_to_channels_first,
    "flip_window": window_flipped,
    "reshape": reshaped,
    "block": block,
    "blocks": blocks_reordered,
    "gates": gates_reordered,
    "cudnn_input_kernel": cudnn_input_kernel,
    "cudnn_recurrent_kernel": cudnn_recurrent_kernel,
    "add_halves": halves_added,
    "rows": rows_taken,
}


def applied(array: Array, steps: Sequence[Step]) -> Array:
    """Return the array after all `steps`, in order."""
    for step in steps:
        array = STEPS[step.name](array, step.value)
    return array
