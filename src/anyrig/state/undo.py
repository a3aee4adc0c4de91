"""Undo what layers' own loading has done, when one of them fails: attributes, what they hold, and variables.

A plain list, dictionary, set or array that an attribute holds gets its content back; what is deeper inside it, or in
objects of the user's own, is left as the layer's method has left it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras.src.utils.tracking import TrackedDict, TrackedList, TrackedSet

from anyrig.state.values import assign, to_array


@contextmanager
def undone_on_failure(layers: Iterable[keras.Layer]) -> Iterator[None]:
    """If the block fails, give these layers, and those inside them, the attributes and values that they had before."""
    inside = {id(inner): inner for layer in layers for inner in layer._flatten_layers()}
    undo = [step for layer in inside.values() for step in _before(layer)]
    try:
        yield
    except BaseException:
        for step in undo:
            step()
        raise


def _before(layer: keras.Layer) -> Iterator[Callable[[], None]]:
    attributes = dict(vars(layer))

    def put_back() -> None:
        vars(layer).clear()  # not attribute by attribute: that would track variables and layers anew
        vars(layer).update(attributes)

    yield put_back
    for value in attributes.values():
        if content := _content_of(value):
            yield content
    for variable in layer._trainable_variables + layer._non_trainable_variables:
        yield _assigning(variable)


def _assigning(variable: keras.Variable) -> Callable[[], None]:
    array = to_array(variable)
    return lambda: assign(variable, array)


def _content_of(value: Any) -> Callable[[], None] | None:
    """Return what puts the content of a mutable value back; None for any other value."""
    if type(value) in (list, TrackedList):
        items = list(value)
        return lambda: list.__setitem__(value, slice(None), items)
    if type(value) in (dict, TrackedDict, set, TrackedSet):
        kind: Any = dict if isinstance(value, dict) else set
        content = kind(value)
        return lambda: (kind.clear(value), kind.update(value, content))[0]
    if type(value) is np.ndarray and value.flags.writeable:
        array = value.copy()
        return lambda: np.copyto(value, array)
    return None
