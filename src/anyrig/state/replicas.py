"""What a model under `tf.distribute` holds several times, as the one value that describes all replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np

from anyrig.state.values import summed_copies
from anyrig.state.walk import model_variables
from anyrig.store.tensors import StoredTensor


def with_means(model: keras.Model, tensors: Sequence[StoredTensor]) -> list[StoredTensor]:
    """Return `tensors` with the mean over the replicas for weights of which each replica has moved its own copy.

    These are moving statistics, as of BatchNormalization: Keras saves those of the first replica alone.
    """
    means = {item.name: mean for item in model_variables(model) if (mean := mean_of_copies(item.variable)) is not None}
    return [replace(tensor, array=means[tensor.name]) if tensor.name in means else tensor for tensor in tensors]


def mean_of_copies(variable: keras.Variable) -> np.ndarray[Any, Any] | None:
    """Return the mean of a float variable's unequal copies, in its type; None if there is but one value."""
    copies = getattr(variable.value, "values", ())
    if len(copies) < 2 or summed_copies(variable) or not keras.backend.is_float_dtype(variable.dtype):
        return None
    arrays = [np.asarray(copy.numpy()) for copy in copies]
    if all(array.tobytes() == arrays[0].tobytes() for array in arrays[1:]):
        return None
    mean: np.ndarray[Any, Any] = np.mean([array.astype(np.float64) for array in arrays], axis=0)
    return np.asarray(mean.astype(arrays[0].dtype))
