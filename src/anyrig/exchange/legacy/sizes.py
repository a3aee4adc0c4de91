"""Sizes that Keras 1 had to be told, and that today's Keras computes: they must be the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anyrig.exchange.legacy.translate import no_equal


def told_size(name: str, config: Mapping[str, Any]) -> Sequence[int | None] | None:
    """Return the shape that a transposed convolution was told to make, the batch first; None if it was not told."""
    told = config.get("output_shape") if name.startswith(("Deconvolution", "Conv")) else None
    return told if isinstance(told, list | tuple) and all(isinstance(size, int | None) for size in told) else None


def compare_sizes(told: Sequence[tuple[Any, str, Sequence[int | None]]]) -> None:
    """Raise ANY-OPEN-021 if a layer of a model that is now whole makes another shape than it was told to."""
    for layer, where, wanted in told:
        for node in layer._inbound_nodes:
            made = tuple(node.outputs[0].shape)
            pairs = list(zip(made[1:], wanted[1:], strict=False))
            if len(made) != len(wanted) or any(one != two for one, two in pairs if None not in (one, two)):
                raise no_equal(where, f"output_shape={list(wanted)}, where Keras 3 makes {list(made)}")
