"""Recurrent layers that are a CuDNN layer on one side, and those of Keras 1, which has an array for each gate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from anyrig.mapping.canonical import Parts
from anyrig.mapping.fit import cudnn_steps
from anyrig.mapping.layout import GATES
from anyrig.mapping.result import Misfit, Pair, Stored
from anyrig.mapping.sides import joined_as
from anyrig.state.wanted import Wanted

_GATE = re.compile(r"(.+_[WUb])_([ifcozrh])(_\d+)?")


def gates_joined(stored: Sequence[Stored]) -> list[Stored]:
    """Return what a file of Keras 1 holds with the gates of a layer (`lstm_1_W_i`, `lstm_1_W_c`, ...) as one array.

    They are joined in Keras's order of today, and stand where the first of them stood.
    """
    gates: dict[str, dict[str, Stored]] = {}
    for item in stored:
        if match := _GATE.fullmatch(item.name):
            gates.setdefault(match[1] + (match[3] or ""), {})[match[2]] = item
    whole: dict[str, Stored] = {}
    for name, parts in gates.items():
        if (joined := _in_one(name, parts)) is not None:
            whole |= dict.fromkeys((part.name for part in parts.values()), joined)
    return list({(found := whole.get(item.name, item)).name: found for item in stored}.values())


def _in_one(name: str, parts: dict[str, Stored]) -> Stored | None:
    order = next((order for order, _ in GATES.values() if set(order) == parts.keys()), None)
    if order is None:
        return None
    tensors = [tensor for gate in order for tensor in parts[gate].tensors]
    return joined_as(name, tensors, max(0, len(tensors[0].shape) - 1))


def as_cudnn(pairs: Sequence[Pair], misfits: Sequence[Misfit]) -> tuple[list[Pair], list[Misfit]]:
    """Return pairs and misfits, those of layers whose bias shows that they were CuDNN's as pairs with their layout.

    Their kernels have the shapes that are wanted and another layout, so that only the bias does not fit by itself.
    """
    found, left = list(pairs), []
    for misfit in misfits:
        layer = [Pair(misfit.stored, misfit.wanted, "name", "", 0.9)] + [
            pair for pair in found if _holder(pair.wanted) == _holder(misfit.wanted) and not pair.steps
        ]
        steps = cudnn_steps({_leaf(p.wanted): p.stored for p in layer}, {_leaf(p.wanted): p.wanted for p in layer})
        if steps is None:
            left.append(misfit)
            continue
        names = {pair.wanted.name for pair in layer}
        found = [pair for pair in found if pair.wanted.name not in names]
        found += [replace(p, steps=steps[_leaf(p.wanted)], why=_WHY, confidence=0.9) for p in layer]
    return found, left


_WHY = "the same name; its bias shows that it was a CuDNN layer, whose kernels are laid out otherwise"


def _leaf(want: Wanted) -> Parts:
    return tuple(want.leaf.split("/"))


def _holder(want: Wanted) -> tuple[str, Parts]:
    return want.layer, _leaf(want)[:-1]
