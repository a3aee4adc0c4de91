"""Bytes in and out of Keras variables, wherever they live: one device, another logical device, or mirrored.

`to_array` takes no copy on CPU: the array shares the buffer the variable has now, and the variable's next assignment
writes elsewhere because that buffer is still referenced. The array is read-only so that nobody writes through it.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


def to_array(variable: keras.Variable) -> np.ndarray[Any, Any]:
    """Return the present value of `variable`, read-only; a scalar is an array of shape `()`.

    Of a mirrored variable it is the value that `tf.distribute` reads outside a replica: one copy, or the aggregate.
    """
    value = variable.value
    read = getattr(value, "read_value", None)
    tensor = read() if read is not None else value
    without_copy = getattr(tensor, "_numpy", None)
    array = np.asarray(without_copy() if without_copy is not None else keras.ops.convert_to_numpy(tensor))
    view = array.view()
    view.flags.writeable = False
    return view


def assign(variable: keras.Variable, array: np.ndarray[Any, Any]) -> None:
    """Copy `array` into `variable`, which stays on its device; every copy of a mirrored variable is set.

    Of copies that are summed when they are read (metrics), the first gets all: no bit is lost in dividing.
    """
    if summed := summed_copies(variable):
        summed[0].assign(array)
        for copy in summed[1:]:
            copy.assign(np.zeros_like(array))
    else:
        variable.assign(array)


def summed_copies(variable: keras.Variable) -> tuple[Any, ...]:
    """Return the copies of a variable that `tf.distribute` sums when it is read; none for any other variable."""
    value = variable.value
    return tuple(value.values) if type(value).__name__ == "SyncOnReadVariable" else ()


def shape_of(variable: keras.Variable) -> tuple[int, ...]:
    """Return the shape as plain integers."""
    return tuple(int(size) for size in variable.shape)
