"""The two sides of a mapping, made from what readers and models say; partitions are joined here.

Nothing is matched here, and no value is read but to know a copy.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from anyrig.formats.contents import Contents, FileTensor
from anyrig.mapping.canonical import parts_of
from anyrig.mapping.result import Stored
from anyrig.mapping.slots import slot_of
from anyrig.state.wanted import Wanted

_PART = re.compile(r"(.+)/part_(\d+)(/.+)?")
_COUNTED = re.compile(r"(?!(tower|replica)_\d+$).*[a-z0-9][._-]\d+|vars")  # a tower's number says which one it is


def stored_side(tensors: Iterable[FileTensor]) -> list[Stored]:
    """Return the tensors as they can be mapped: `w/part_0`, `w/part_1`, ... as one `w`, if the parts are all there."""
    alone: list[Stored] = []
    parts: dict[str, dict[int, FileTensor]] = defaultdict(dict)
    for tensor in tensors:
        if match := _PART.fullmatch(tensor.name):
            parts[match[1] + (match[3] or "")][int(match[2])] = tensor
        else:
            alone.append(_single(tensor))
    for name, numbered in parts.items():
        whole = _whole(name, [numbered[index] for index in sorted(numbered)])
        complete = sorted(numbered) == list(range(len(numbered)))
        alone += [whole] if whole and complete else [_single(tensor) for tensor in numbered.values()]
    return alone


def joined_as(name: str, parts: Sequence[FileTensor], axis: int) -> Stored | None:
    """Return parts as one tensor joined along `axis`; None if they do not fit together so."""
    shapes = {(*part.shape[:axis], 0, *part.shape[axis + 1 :]) for part in parts if len(part.shape) > axis}
    if len(shapes) != 1 or len({part.dtype for part in parts}) != 1 or any(len(p.shape) <= axis for p in parts):
        return None
    size = sum(part.shape[axis] for part in parts)
    shape = (*parts[0].shape[:axis], size, *parts[0].shape[axis + 1 :])
    return Stored(name=name, shape=shape, dtype=parts[0].dtype, tensors=tuple(parts), axis=axis)


def _whole(name: str, parts: Sequence[FileTensor]) -> Stored | None:
    """Join along the axis in which the parts differ; equal ones along the first, TensorFlow's own choice."""
    axes = range(len(parts[0].shape))
    differing = [axis for axis in axes if len({part.shape[axis : axis + 1] for part in parts}) > 1]
    return joined_as(name, parts, *(differing or [0])) if len(differing) <= 1 else None


def _single(tensor: FileTensor) -> Stored:
    return Stored(
        name=tensor.name,
        shape=tensor.shape,
        dtype=tensor.dtype,
        tensors=(tensor,),
        aliases=tensor.aliases,
        place=tensor.place,
    )


def wanted_side(contents: Contents) -> list[Wanted]:
    """Return what another file holds as what is wanted, so that two files can be mapped onto each other.

    A name with a counter (`dense_7`) counts as a position; nothing is known of the graph.
    """
    names = {tensor.name for tensor in contents.tensors}
    wanted = [_wanted(tensor, slot_of(tensor.name, names)) for tensor in contents.tensors]
    layers: dict[str, set[str]] = defaultdict(set)
    for want in wanted:
        if want.role == "weight":
            layers[want.layer].add(want.leaf)
    return [replace(want, index=_index(want.leaf, layers[want.layer])) for want in wanted]


# The order in which Keras's layers make their variables, of whatever layers have them.
_IN_ORDER = (
    *("gamma", "beta", "moving_mean", "moving_variance", "mean", "variance", "count"),
    *("embeddings", "depthwise_kernel", "pointwise_kernel", "kernel", "recurrent_kernel", "bias"),
)


def _index(leaf: str, leaves: set[str]) -> int:
    """Return the place of a variable in its layer's list, where all of the layer have names that Keras gives."""
    known = [name for name in _IN_ORDER if name in leaves]
    return known.index(leaf) if len(known) == len(leaves) and leaf in known else 0


def _wanted(tensor: FileTensor, slot: tuple[str, str] | None) -> Wanted:
    parts = parts_of(tensor.name)
    return Wanted(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        aliases=tensor.aliases,
        place=tensor.place,
        role="optimizer" if slot and tensor.role == "weight" else tensor.role,
        layer="/".join(parts[:-1]),
        leaf=parts[-1],
        automatic=any(_COUNTED.fullmatch(part) for part in parts[:-1]),
        of=tensor.of or (slot[0] if slot else None),
        slot=tensor.slot or (slot[1] if slot else None),
    )


def with_shape(stored: Stored, shape: tuple[int, ...]) -> Stored:
    """Return a partitioned variable joined along the one axis that gives `shape`, if there is one; else as it was."""
    if len(stored.tensors) == 1 or stored.shape == shape:
        return stored
    tries = (joined_as(stored.name, stored.tensors, axis) for axis in range(len(stored.shape)))
    fitting = [found for found in tries if found is not None and found.shape == shape]
    return replace(fitting[0], aliases=stored.aliases) if len(fitting) == 1 else stored


def without_copies(tensors: Sequence[FileTensor], *, compare: bool = True) -> list[FileTensor]:
    """Leave out the copies that Keras's export has of each variable (`_all_variables/3` beside `variables/1`).

    `compare`: read both, and keep a copy that differs.
    """
    named = {alias: tensor for tensor in tensors if not _is_copy(tensor) for alias in tensor.aliases}
    twins = {
        tensor.name: [named[alias] for alias in tensor.aliases if alias in named]
        for tensor in tensors
        if _is_copy(tensor)
    }
    return [
        tensor for tensor in tensors if not any(_same(twin, tensor, compare) for twin in twins.get(tensor.name, []))
    ]


def _is_copy(tensor: FileTensor) -> bool:
    return tensor.name.startswith("_all_variables/")


def _same(one: FileTensor, other: FileTensor, compare: bool) -> bool:
    alike = (one.shape, one.dtype) == (other.shape, other.dtype)
    return alike and (not compare or one.array().tobytes() == other.array().tobytes())
