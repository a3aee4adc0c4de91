"""Which tensor of a Keras 1 or 2 HDF5 file fills which variable of the model that the same file describes.

The file lists layers by name and the weights of each in Keras's order. Layers are found by their names; inside a layer
the weights go by name where names tell, else in the file's order, and each must have the shape of its variable, in a
layout that is known, and no name that contradicts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras

from anyrig.exchange.legacy.tables import classes_then
from anyrig.exchange.old_kernels import OldKernels, may_be_keras_1
from anyrig.formats.contents import Contents, FileTensor
from anyrig.mapping.canonical import in_common_words
from anyrig.mapping.fit import cudnn_steps, fitted
from anyrig.mapping.recurrent import gates_joined
from anyrig.mapping.result import Pair, Stored
from anyrig.mapping.sides import stored_side
from anyrig.state.automatic import is_automatic
from anyrig.state.wanted import Wanted
from anyrig.store.dtypes import ITEM_BYTES, numpy_dtype

_TOP_LEVEL = "top_level_model_weights"
_WITHOUT_TYPE = frozenset(["BF16", "F8_E4M3", "F8_E5M2"])
_RULE, _WHY = "same file", "the file describes this layer, and lists its weights in this order"
_KNOWN_LEAVES = {
    *("kernel", "bias", "recurrent_kernel", "depthwise_kernel", "pointwise_kernel", "moving_mean", "moving_variance"),
}
_KERAS_1 = {"W": "kernel", "U": "recurrent_kernel", "b": "bias", "gamma": "kernel", "beta": "bias"}

Wanteds = Mapping[int, Wanted]


def pairs_of(
    model: keras.Model, contents: Contents, wanted: Wanteds, renamed: Mapping[str, str], *, same_code: bool = False
) -> tuple[list[Pair], list[str]]:
    """Return the pairs, and a line for everything that does not fit.

    `wanted` has the facts of each variable by `id`; `renamed` the model's names of layers by those of the file.
    `same_code`: inside a layer the order decides, and no names.
    """
    stored = h5_side(contents, [tensor for tensor in contents.tensors if tensor.role == "weight"])
    old_names = {new: old for old, new in renamed.items()}
    groups, left = _by_layer(stored, [layer.name for layer in model.layers], old_names)
    kernels = OldKernels(model, contents, wanted)
    pairs: list[Pair] = []
    wrong = [f"  stored  {item.name} {list(item.shape)}: the model has no such layer" for item in left]
    for layer in model.layers:
        found, problems = _layer_pairs(layer, groups.get(layer.name, []), wanted, kernels, same_code)
        pairs += found
        wrong += problems
    top = [v for v in model._trainable_variables + model._non_trainable_variables if id(v) in wanted]
    found, problems = _in_order(model.name, groups.get(_TOP_LEVEL, []), [wanted[id(v)] for v in top], kernels)
    return pairs + found, wrong + problems


def h5_side(contents: Contents, tensors: Sequence[FileTensor]) -> list[Stored]:
    """Return tensors of the file as they can be mapped, the gates of Keras 1 joined."""
    stored = stored_side(tensors)
    return gates_joined(stored) if may_be_keras_1(contents) else stored


def with_types(pairs: Sequence[Pair]) -> list[Pair]:
    """Return pairs with the types that HDF5 lacks (Keras writes bytes) as the file's own configuration has them."""
    return [_typed(pair) for pair in pairs]


def _typed(pair: Pair) -> Pair:
    (tensor, *others), dtype = pair.stored.tensors, pair.wanted.dtype
    if others or dtype not in _WITHOUT_TYPE or tensor.dtype != f"V{ITEM_BYTES[dtype]}":
        return pair
    typed = replace(tensor, dtype=dtype, read=lambda: (part.view(numpy_dtype(dtype)) for part in tensor.read()))
    return replace(pair, stored=replace(pair.stored, dtype=dtype, tensors=(typed,)))


def same_sequence(model: keras.Model, tensors: Sequence[FileTensor]) -> bool:
    """Tell whether the file lists the layers that the model has, by name, in the order of its graph.

    Names that Keras chose count the layers as they were made. Where the order of the graph agrees with them as well,
    they mean the same layers; names alone would exchange two that were made in another order.
    """
    names = [layer.name for layer in model.layers]
    groups, left = _by_layer(stored_side(tensors), names, {})
    return not left and list(groups) == [name for name in names if name in groups]


def same_order_inside(model: keras.Model, pairs: Sequence[Pair], wanted: Wanteds) -> bool:
    """Tell whether the layers inside each layer come in the file as they do in the model, where Keras named them.

    The file lists them in the order of its own graph; `pairs` are in the file's order. See `same_sequence`.
    """
    stored = [pair.wanted for pair in pairs if pair.wanted.automatic]
    for layer in model.layers:
        variables = layer.trainable_weights + layer.non_trainable_weights
        here = [wanted[id(v)] for v in variables if id(v) in wanted and wanted[id(v)].automatic]
        names = {want.name for want in here}
        if _layers_of(here) != _layers_of(want for want in stored if want.name in names):
            return False
    return True


def _layers_of(wants: Iterable[Wanted]) -> list[str]:
    return list(dict.fromkeys(want.layer for want in wants))


def same_chain(model: keras.Model, tensors: Sequence[FileTensor], *, same_code: bool = False) -> dict[str, str]:
    """Return the model's names of layers by those of the file, if both are one chain of layers of the same kinds.

    Names that Keras chose say a kind and count from wherever the process was. In a chain the order is the meaning, and
    in any model that the same code made.
    """
    if not same_code and not isinstance(model, keras.Sequential):
        return {}
    written = list(dict.fromkeys(tensor.name.partition("/")[0] for tensor in tensors))
    here = [layer for layer in model.layers if any("seed_generator" not in v.path for v in layer.weights)]
    if len(written) != len(here) or not all(_may_be(name, layer) for name, layer in zip(written, here, strict=True)):
        return {}
    return {name: layer.name for name, layer in zip(written, here, strict=True)}


def _may_be(name: str, layer: Any) -> bool:
    """Tell whether a layer of the file may be this one: the same name, or one that Keras chose on both sides."""
    kind = type(layer).__name__
    chosen_then = is_automatic(name, kind) or _counted_by_keras_1(name, kind)
    return name == layer.name or (chosen_then and is_automatic(layer.name, kind))


def _counted_by_keras_1(name: str, kind: str) -> bool:
    """Tell whether Keras 1 chose the name: the class of then in small letters, and a number (`simplernn_1`)."""
    word, _, number = name.rpartition("_")
    return number.isdecimal() and word in {then.lower() for then in (kind, *classes_then(kind))}


def _by_layer(
    stored: Sequence[Stored], names: Sequence[str], old_names: Mapping[str, str]
) -> tuple[dict[str, list[Stored]], list[Stored]]:
    """Group tensors by the longest name of a layer that their names begin with."""
    groups: dict[str, list[Stored]] = {}
    left = []
    by_length = sorted([*names, _TOP_LEVEL], key=lambda name: -len(old_names.get(name, name)))
    for item in stored:
        holder = next((name for name in by_length if item.name.startswith(f"{old_names.get(name, name)}/")), None)
        if holder is None:
            left.append(item)
        else:
            groups.setdefault(holder, []).append(item)
    return groups, left


def _layer_pairs(
    layer: Any, stored: list[Stored], wanted: Wanteds, kernels: OldKernels, same_code: bool
) -> tuple[list[Pair], list[str]]:
    variables = [v for v in layer.trainable_weights + layer.non_trainable_weights if id(v) in wanted]
    wants = [wanted[id(variable)] for variable in variables]
    if len(stored) != len(wants):
        return [], list(_differences(layer.name, stored, wants))
    by_name = None if same_code else _inner_names(layer, stored, wanted)
    if by_name is not None:
        return _fitted(layer.name, by_name, kernels)
    return _in_order(layer.name, stored, wants, kernels)


def _inner_names(layer: Any, stored: Sequence[Stored], wanted: Wanteds) -> list[tuple[Stored, Wanted]] | None:
    """Pair by the names of inner layers, if every tensor names one of its own and they are all different."""
    inner: dict[tuple[str, str], list[Wanted]] = {}
    for below in layer._flatten_layers(include_self=False):
        for variable in below._trainable_variables + below._non_trainable_variables:
            if id(variable) in wanted:
                inner.setdefault((below.name, _leaf(variable.name)), []).append(wanted[id(variable)])
    if not inner or any(len(many) > 1 for many in inner.values()):
        return None
    found = []
    for item in stored:
        parts = item.name.split("/")
        many = {id(w): w for part in parts[:-1] for w in inner.get((part, _leaf(parts[-1])), [])}
        if len(many) != 1:
            return None
        found.append((item, next(iter(many.values()))))
    return found if len({id(want) for _, want in found}) == len(found) else None


def _in_order(
    name: str, stored: Sequence[Stored], wants: Sequence[Wanted], kernels: OldKernels
) -> tuple[list[Pair], list[str]]:
    if len(stored) != len(wants):
        return [], list(_differences(name, stored, wants))
    by_leaf, wanted = {_leaf(item.name): item for item in stored}, {_leaf(want.leaf): want for want in wants}
    if by_leaf.keys() == wanted.keys() and len(by_leaf) == len(wants):
        return _fitted(name, [(by_leaf[leaf], want) for leaf, want in wanted.items()], kernels)
    contradicting = [
        (item, want)
        for item, want in zip(stored, wants, strict=True)
        if {_leaf(item.name), _leaf(want.leaf)} <= _KNOWN_LEAVES
        and _leaf(item.name) != _leaf(want.leaf)
        and (_leaf(item.name), _leaf(want.leaf)) != ("depthwise_kernel", "kernel")  # DepthwiseConv2D of Keras 2
    ]
    if contradicting:
        return [], [f"  stored  {item.name}, in the place of {want.name}" for item, want in contradicting]
    return _fitted(name, list(zip(stored, wants, strict=True)), kernels)


def _fitted(name: str, pairs: Sequence[tuple[Stored, Wanted]], kernels: OldKernels) -> tuple[list[Pair], list[str]]:
    leaves = {(want.leaf,): (item, want) for item, want in pairs}
    cudnn = cudnn_steps({k: item for k, (item, _) in leaves.items()}, {k: want for k, (_, want) in leaves.items()})
    found, wrong = [], []
    for item, want in pairs:
        if cudnn is not None:
            found.append(Pair(item, want, _RULE, _WHY, 1.0, cudnn[want.leaf,]))
            continue
        ways = kernels.ways(item, want)
        if ways is None:
            ways = ((),) if item.shape == want.shape else fitted(item, want).ways
        if len(ways) == 1:
            found.append(Pair(item, want, _RULE, _WHY, 1.0, ways[0]))
        else:
            wrong.append(f"  {name}: stored {item.name} {list(item.shape)}, wanted {want.name} {list(want.shape)}")
    return found, wrong


def _differences(name: str, stored: Sequence[Stored], wants: Sequence[Wanted]) -> Iterator[str]:
    yield f"  {name}: {len(stored)} arrays are stored, {len(wants)} are wanted"
    yield from (f"    stored  {item.name} {list(item.shape)}" for item in stored)
    yield from (f"    wanted  {want.name} {list(want.shape)}" for want in wants)


def _leaf(name: str) -> str:
    """Return what a variable is called in its layer, in one word for all versions: `kernel` for `dense_1_W`."""
    last = re.sub(r"(:\d+|_\d+)$", "", name.rpartition("/")[2])
    short = re.fullmatch(r".+_(W|U|b|gamma|beta)", last)
    return _KERAS_1[short[1]] if short else in_common_words((last,))[0]
