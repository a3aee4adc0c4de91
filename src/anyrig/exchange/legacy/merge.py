"""`Merge` of Keras 1, which was told its way by a word, as a layer of today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from anyrig.exchange.legacy.translate import no_equal

_BY_MODE = {
    "sum": keras.layers.Add,
    "mul": keras.layers.Multiply,
    "ave": keras.layers.Average,
    "max": keras.layers.Maximum,
}


def merged(config: Mapping[str, Any], where: str) -> Any:
    """Return the layer of a `Merge`; one by a function (ANY-OPEN-021) has no equal."""
    mode = config.get("mode", "sum")
    name = config.get("name")
    if mode in _BY_MODE:
        return _BY_MODE[mode](name=name)
    if mode == "concat":
        return keras.layers.Concatenate(axis=config.get("concat_axis", -1), name=name)
    if mode in ("dot", "cos"):
        axes = config.get("dot_axes", -1)
        axes = tuple(item[0] if isinstance(item, list) else item for item in axes) if isinstance(axes, list) else axes
        return keras.layers.Dot(axes=axes, normalize=mode == "cos", name=name)
    raise no_equal(where, f"a Merge of the mode {mode!r}, which Keras 3 has no layer for")
