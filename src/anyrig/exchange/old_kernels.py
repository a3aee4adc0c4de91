"""How kernels of convolutions lie in files of Keras 1, and in those of any Keras that computed with Theano.

Shapes show it in part only: a kernel of as many filters as channels fits turned and as it is, and predicts nonsense.
The rules are those by which Keras 2 read such files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import layers

from anyrig.errors import UsageError
from anyrig.formats.contents import Contents
from anyrig.mapping.fit import cause_of_misfit
from anyrig.mapping.layout import CONV_FROM_CHANNELS_FIRST, Step, applied
from anyrig.mapping.result import Mapping as Names
from anyrig.mapping.result import Misfit, Pair, Stored
from anyrig.state.wanted import Wanted

_FLIPPED = (layers.Conv1D, layers.Conv2D, layers.Conv3D, layers.Conv2DTranspose, type(layers.ConvLSTM2D(1, 1).cell))
_BY_CHANNEL = (layers.SeparableConv1D, layers.SeparableConv2D, layers.DepthwiseConv1D, layers.DepthwiseConv2D)
_KERNELS = (*_FLIPPED, *_BY_CHANNEL, layers.Conv3DTranspose)
_OLD_NAME = re.compile(r".+_(W|U|(depth|point)wise_kernel)(_\d+)?|param_\d+")
_FIRST, _LAST = "channels_first", "channels_last"
_ORDERS = {"th": _FIRST, "tf": _LAST, _FIRST: _FIRST, _LAST: _LAST}

Ways = tuple[tuple[Step, ...], ...]


def may_be_keras_1(contents: Contents) -> bool:
    """Tell whether Keras 1 or one of before wrote the file, which in most cases does not say so."""
    return contents.written_by.get("keras", "1")[:1] in "01"


class OldKernels:
    """Says for each kernel that fills a variable of `model` how it is laid out, where the file is one of those."""

    def __init__(self, model: keras.Model, contents: Contents, wanted: Mapping[int, Wanted]) -> None:
        self._contents = contents
        self._theano = _backend(contents) == "theano"
        self._layers = list(model._flatten_layers())
        self._owners = {
            wanted[id(variable)].name: layer
            for layer in self._layers
            if isinstance(layer, _KERNELS)
            for variable in layer._trainable_variables + layer._non_trainable_variables
            if id(variable) in wanted
        }
        self._order = _order_said(contents) or _order_shown(contents, self._layers)

    def ways(self, item: Stored, want: Wanted) -> Ways | None:
        """Return the one way in which the kernel fits, none if it does not; None where nothing is particular.

        Raises ANY-OPEN-024 where no rule is known, or where the model computes in another order of axes.
        """
        layer = self._owners.get(want.name)
        old = is_of_keras_1(self._contents, item.name)
        if layer is None or len(want.shape) < 3 or not (old or self._theano):
            return None
        window = math.prod(layer.kernel_size) > 1
        flipped = self._theano and window
        if isinstance(layer, layers.Conv3DTranspose) or (flipped and not isinstance(layer, _FLIPPED)):
            raise self._refused(item, f"no rule is known for the kernels of {type(layer).__name__} in such files")
        steps = (*(self._turned(layer, item) if old else ()), *([Step("flip_window")] if flipped else []))
        return (steps,) if _shape_after(item.shape, steps) == want.shape else ()

    def _turned(self, layer: Any, item: Stored) -> tuple[Step, ...]:
        if isinstance(layer, layers.Conv1D):
            return _one_dimension(layer, item.shape)
        order = self._order or layer.data_format
        if order != layer.data_format and any(
            isinstance(each, layers.Flatten | layers.Reshape) for each in self._layers
        ):
            raise self._refused(
                item, f"the file is of {order}, the model of {layer.data_format}: Flatten gives another order"
            )
        if isinstance(layer, layers.Conv2DTranspose):
            return (Step("transpose", (2, 3, 0, 1) if order == _FIRST else (0, 1, 3, 2)),)
        if order == _LAST:
            return ()
        if not isinstance(layer, (*_FLIPPED[:3], *_BY_CHANNEL)):
            raise self._refused(item, f"no rule is known for {type(layer).__name__} in Theano's order of axes")
        return (Step("transpose", CONV_FROM_CHANNELS_FIRST.get(len(item.shape), ())),)

    def settled(self, mapping: Names) -> Names:
        """Return a mapping by names and shapes with the layouts that such files have, unless a user's rule says one."""
        given: list[Pair | Misfit] = [*mapping.pairs, *mapping.misfits]
        found = [self._settled(each) for each in given]
        pairs = tuple(each for each in found if isinstance(each, Pair))
        return replace(mapping, pairs=pairs, misfits=tuple(each for each in found if isinstance(each, Misfit)))

    def _settled(self, each: Pair | Misfit) -> Pair | Misfit:
        item, want = each.stored, each.wanted
        ways = None if isinstance(each, Pair) and each.rule == "layout by rule" else self.ways(item, want)
        if ways is None:
            return each
        why = f"{each.why}; the layout of then" if isinstance(each, Pair) else "the same layer, in the layout of then"
        return (
            Pair(item, want, "old layout", why, 0.9, *ways)
            if ways
            else Misfit(item, want, *cause_of_misfit(item, want))
        )

    def _refused(self, item: Stored, why: str) -> UsageError:
        return UsageError(
            "ANY-OPEN-024",
            f"{self._contents.path} is of Keras 1 or of Theano, and {item.name} {list(item.shape)} cannot be laid out "
            f"beyond doubt: {why}; nothing was changed",
            hint="save it once with Keras 2, or build the model with the data_format of the file if only that differs",
        )


def is_of_keras_1(contents: Contents, name: str) -> bool:
    """Tell whether an array is laid out as Keras 1 did: the file says so, or nothing and the name is one of then."""
    if not may_be_keras_1(contents):
        return False
    return "keras" in contents.written_by or bool(_OLD_NAME.fullmatch(name.rpartition("/")[2]))


def notes_on_kernels(model: keras.Model, contents: Contents) -> list[str]:
    """Return a note if the file holds kernels of Keras 1 and does not say what computed with them."""
    old = [t.name for t in contents.tensors if t.role == "weight" and is_of_keras_1(contents, t.name)]
    windows = [
        each for each in model._flatten_layers() if isinstance(each, _FLIPPED) and math.prod(each.kernel_size) > 1
    ]
    if not old or not windows or _backend(contents) is not None:
        return []
    return [
        "the file does not say whether Theano computed with it, which turns the windows of kernels as those of "
        f'{windows[0].name}: they were taken as is. If it was Theano, set the attribute backend="theano" of the file'
    ]


def _backend(contents: Contents) -> object:
    return contents.metadata.get("backend")


def _one_dimension(layer: layers.Conv1D, shape: tuple[int, ...]) -> tuple[Step, ...]:
    """Keras 1.2 wrote (length, 1, channels, filters), before it was (filters, channels, length, 1)."""
    if len(shape) != 4:
        return ()
    if shape[:2] == (*layer.kernel_size, 1) and shape[3] == layer.filters:
        return (Step("reshape", (shape[0], *shape[2:])),)
    return Step("transpose", (2, 3, 1, 0)), Step("reshape", (shape[2], shape[1], shape[0]))


def _shape_after(shape: tuple[int, ...], steps: tuple[Step, ...]) -> tuple[int, ...] | None:
    try:
        return tuple(applied(np.broadcast_to(np.float32(0), shape), steps).shape)
    except ValueError:
        return None


def _order_said(contents: Contents) -> str | None:
    """Return the order of axes of all layers that the file describes, if it is one."""
    found = {_ORDERS[order] for order in _said(contents.config) if order in _ORDERS}
    return next(iter(found)) if len(found) == 1 else None


def _said(config: Any) -> Iterator[str]:
    for key, value in config.items() if isinstance(config, Mapping) else ():
        if key in ("dim_ordering", "data_format") and isinstance(value, str):
            yield value
        yield from _said(value)
    for item in config if isinstance(config, list) else ():
        yield from _said(item)


def _order_shown(contents: Contents, model_layers: list[Any]) -> str | None:
    """Return the order of axes that the kernels show which have a window of the model at one end only."""
    windows = {tuple(e.kernel_size) for e in model_layers if isinstance(e, layers.Conv2D | layers.Conv2DTranspose)}
    shown = set()
    for shape in (t.shape for t in contents.tensors if len(t.shape) == 4 and is_of_keras_1(contents, t.name)):
        if (shape[:2] in windows) != (shape[2:] in windows):
            shown.add(_LAST if shape[:2] in windows else _FIRST)
    return next(iter(shown)) if len(shown) == 1 else None
