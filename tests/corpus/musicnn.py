"""The two architectures of musicnn (Pons and Serra, 2019), which tags music, as its authors describe them, for Keras 3.

Inputs are log-mel spectrograms, float32 [batch, 187, 96]; outputs a probability for each tag, float32 [batch, 50].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
from keras import layers, ops

FRAMES, BANDS, TAGS = 187, 96, 50

RULES = Path(__file__).parent / "musicnn.yaml"
"""Say that the names are the same on purpose: they only count layers, and many of these have the same shapes."""

Named = Callable[[str], str]


def built(name: str) -> keras.Model:
    """Return the model of a published folder, with new weights."""
    if name.endswith("_vgg"):
        return _vgg(_names(), _POOLS[name])
    return _musicnn(_names())


def _names() -> Named:
    """Return what names layers as TensorFlow 1 did: `conv2d`, `conv2d_1`, ... in the order in which they are made."""
    counts: Counter[str] = Counter()

    def name(kind: str) -> str:
        counts[kind] += 1
        return kind if counts[kind] == 1 else f"{kind}_{counts[kind] - 1}"

    return name


def _normalized(x: Any, name: Named) -> Any:
    return layers.BatchNormalization(name=name("batch_normalization"))(x)


def _convolved(x: Any, name: Named, filters: int, window: tuple[int, int], padding: str = "valid") -> Any:
    x = layers.Conv2D(filters, window, padding=padding, activation="relu", name=name("conv2d"))(x)
    return _normalized(x, name)


def _padded(x: Any) -> Any:
    return layers.ZeroPadding2D(((3, 3), (0, 0)))(x)


def _musicnn(name: Named) -> keras.Model:
    inputs = keras.Input([FRAMES, BANDS])
    x = _normalized(ops.expand_dims(inputs, 3), name)
    timbres = [_convolved(_padded(x), name, 204, (7, int(share * BANDS))) for share in (0.4, 0.7)]
    tempos = [_convolved(x, name, 51, (length, 1), "same") for length in (128, 64, 32)]
    seen = ops.concatenate([ops.max(each, axis=2) for each in (*timbres, *tempos)], axis=2)
    stages = [ops.expand_dims(seen, 3)]
    for number in range(3):
        found = _convolved(_padded(stages[-1]), name, 64, (7, stages[-1].shape[2]))
        found = ops.transpose(found, [0, 1, 3, 2])
        stages.append(found if number == 0 else found + stages[-1])
    features = ops.concatenate(stages, axis=2)
    pooled = ops.concatenate([ops.max(features, axis=1), ops.mean(features, axis=1)], axis=2)
    x = _normalized(layers.Flatten()(pooled), name)
    x = _normalized(layers.Dense(200, "relu", name=name("dense"))(layers.Dropout(0.5)(x)), name)
    return keras.Model(inputs, layers.Dense(TAGS, "sigmoid", name=name("dense"))(layers.Dropout(0.5)(x)))


_POOLS = {
    "MTT_vgg": (((4, 1), (2, 2)), ((2, 2), (2, 2))),
    "MSD_vgg": (((4, 1), (4, 1)), ((1, 4), (1, 4))),
}
"""Sizes and strides of the first two pools in the graph beside the checkpoint; the package's code has those of MTT."""


def _vgg(name: Named, first: tuple[Any, ...]) -> keras.Model:
    inputs = keras.Input([FRAMES, BANDS])
    x = _normalized(ops.expand_dims(inputs, 3), name)
    pools = (*first, *((size, size) for size in (2, 2, 4)))
    for number, (size, strides) in enumerate(pools, start=1):
        x = layers.Conv2D(128, 3, padding="same", activation="relu", name=name(f"{number}CNN"))(x)
        x = layers.MaxPooling2D(size, strides)(_normalized(x, name))
    return keras.Model(inputs, layers.Dense(TAGS, "sigmoid", name=name("dense"))(layers.Flatten()(x)))
