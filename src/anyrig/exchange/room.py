"""Bounds what the making of a model may take: a configuration is short, and the arrays that it asks for need not be.

A file that describes a model holds its weights too. So no more room is made than for the stored ones and some.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from anyrig.errors import AnyrigError
from anyrig.formats.contents import Contents

_SPARE = 2**24  # what a file may leave out: states, seeds, tables of positions
_WITHOUT_WEIGHTS = 2**28  # a file of an architecture alone
_LOCK = threading.Lock()


def elements_for(contents: Contents) -> int:
    """Return how many elements the variables of the model in a file may have."""
    stored = sum(tensor.elements for tensor in contents.tensors)
    return 2 * stored + _SPARE if stored else _WITHOUT_WEIGHTS


@contextmanager
def room(contents: Contents) -> Iterator[None]:
    """Within, this thread's layers make no variables beyond `elements_for(contents)` (ANY-OPEN-005)."""
    left, thread = elements_for(contents), threading.get_ident()
    with _LOCK:
        original = keras.layers.Layer.add_weight

        def add_weight(layer: Any, shape: Any = None, *args: Any, **options: Any) -> Any:
            nonlocal left
            if threading.get_ident() == thread:
                left -= math.prod(shape) if isinstance(shape, tuple | list) else int(shape or 1)
                if left < 0:
                    raise _too_large(contents, layer, shape)
            return original(layer, shape, *args, **options)

        keras.layers.Layer.add_weight = add_weight
        try:
            yield
        finally:
            keras.layers.Layer.add_weight = original


def _too_large(contents: Contents, layer: Any, shape: Any) -> AnyrigError:
    return AnyrigError(
        "ANY-OPEN-005",
        f"{contents.path} asks for {list(shape)} numbers in the layer {layer.name!r}, far more than it holds",
        hint="a sound file does not ask for that; get it from a source that you trust",
    )


def our_error(error: BaseException | None) -> AnyrigError | None:
    """Return the error of this project that Keras wrapped in others, if it is one."""
    while error is not None and not isinstance(error, AnyrigError):
        error = error.__cause__ or error.__context__
    return error
