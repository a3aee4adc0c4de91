"""Rows to compare two models with: the caller's, else random ones for what the model says of its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from anyrig.state.tree import walk_layers

ROWS = 4
_SEED = 20_240_229
# What is tried in turn for axes of any size (text lengths, image sides) until the model accepts it.
_SIZES = (16, 64, 224)
_UNBOUNDED = 2**31


def sample_for(model: keras.Model, sample: Any = None) -> tuple[Any | None, str]:
    """Return rows that `model` predicts, and words for them; None if none were given and none could be made.

    `sample` is returned as it is: an array of shape (rows, ...), or a list or dict of such, as the model takes them.
    Rows that are made have floats of a standard normal distribution, and integers below the rows of the smallest
    embedding.
    """
    if sample is not None:
        return sample, "the given sample"
    inputs = _inputs(model)
    if inputs is None:
        return None, ""
    for rows in _tries(model, inputs):
        try:
            model.predict(rows, verbose=0)
        except Exception:  # noqa: BLE001, S112  (a size that does not suit this model; the next one may)
            continue
        return rows, f"{ROWS} random rows"
    return None, ""


def _inputs(model: keras.Model) -> Any:
    """Return what a model says of its inputs in the structure that it takes, or None."""
    if isinstance(model, keras.Sequential):
        return model.inputs[0] if model.inputs else None
    if (inputs := getattr(model, "_inputs_struct", None)) is not None:
        return inputs
    shapes = list((getattr(model, "_build_shapes_dict", None) or {}).values())
    return keras.KerasTensor((None, *shapes[0][1:])) if len(shapes) == 1 and isinstance(shapes[0], tuple) else None


def _tries(model: keras.Model, inputs: Any) -> Iterator[Any]:
    bound = _smallest_vocabulary(model)
    for size in _SIZES:
        rng = np.random.default_rng(_SEED)
        yield keras.tree.map_structure(lambda leaf, size=size, rng=rng: _rows(leaf, size, bound, rng), inputs)
        if all(axis is not None for leaf in keras.tree.flatten(inputs) for axis in leaf.shape[1:]):
            return


def _rows(leaf: Any, size: int, bound: int, rng: np.random.Generator) -> Any:
    first = leaf.shape[0] or ROWS
    shape = (first, *(size if axis is None else axis for axis in leaf.shape[1:]))
    dtype = keras.backend.standardize_dtype(leaf.dtype)
    if dtype == "string":
        import tensorflow as tf

        return tf.constant(rng.choice(["a", "some words", "of a text"], shape))
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "int" in dtype or bound < _UNBOUNDED:  # embeddings take floats too, and look them up as integers
        return rng.integers(0, min(bound, 100), shape).astype(dtype)
    return keras.ops.convert_to_numpy(keras.ops.cast(rng.standard_normal(shape), dtype))


def _smallest_vocabulary(model: keras.Model) -> int:
    sizes = [item.layer.input_dim for item in walk_layers(model) if isinstance(item.layer, keras.layers.Embedding)]
    return min((int(size) for size in sizes), default=_UNBOUNDED)
