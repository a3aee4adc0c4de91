"""Recurrent layers that names paired tensor by tensor, and that are a CuDNN layer on one side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anyrig.mapping.canonical import Parts
from anyrig.mapping.fit import cudnn_steps
from anyrig.mapping.result import Misfit, Pair
from anyrig.state.wanted import Wanted


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
