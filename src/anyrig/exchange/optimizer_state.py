"""Which tensor of an older file fills which slot of the compiled optimizer of the model that the file describes."""

from __future__ import annotations

from collections.abc import Sequence

from anyrig.formats.contents import Contents
from anyrig.mapping.result import Pair, Stored
from anyrig.mapping.sides import stored_side
from anyrig.mapping.slots import slot_pairs
from anyrig.state.wanted import Wanted

_COUNTS = ("iterations", "iteration", "iter")
_RATES = ("learning_rate", "lr", "current_learning_rate")


def optimizer_pairs(contents: Contents, wanted: Sequence[Wanted], weights: Sequence[Pair]) -> list[Pair]:
    """Return the pairs of slots, of the count of updates and of the learning rate; `weights` are those of the weights.

    Slots go by the weight that the file says they belong to; where it says nothing (Keras before 2.3) by their order,
    all slots of one kind after another, if number and shapes agree with that.
    """
    stored = stored_side(tensor for tensor in contents.tensors if tensor.role == "optimizer")
    found = slot_pairs(stored, wanted, weights) or _in_order(stored, wanted, weights)
    return found + _scalars(stored, wanted)


def _scalars(stored: Sequence[Stored], wanted: Sequence[Wanted]) -> list[Pair]:
    pairs = []
    for ending, words in (("iterations", _COUNTS), ("learning_rate", _RATES)):
        wants = [want for want in wanted if want.name.rpartition("/")[2] == ending]
        have = [item for item in stored if item.shape == () and item.name.rpartition("/")[2] in words]
        unnamed = [item for item in stored if item.shape == () and item.tensors[0].of is None]
        if ending == "iterations" and not have and len(unnamed) == 1:
            have = unnamed
        if len(wants) == len(have) == 1:
            pairs.append(Pair(have[0], wants[0], "slot", f"the {ending} of the optimizer", 0.9))
    return pairs


def _in_order(stored: Sequence[Stored], wanted: Sequence[Wanted], weights: Sequence[Pair]) -> list[Pair]:
    order = {pair.wanted.name: index for index, pair in enumerate(weights)}
    slots = list(dict.fromkeys(want.slot for want in wanted if want.of in order))
    wants = [
        want
        for slot in slots
        for want in sorted((w for w in wanted if w.slot == slot and w.of in order), key=lambda w: order[w.of or ""])
    ]
    have = [item for item in stored if item.tensors[0].of is None and item.shape != ()]
    if [item.shape for item in have] != [want.shape for want in wants]:
        return []
    why = "the file lists slots without names, in the order of the weights, and all shapes agree"
    return [Pair(item, want, "slot order", why, 0.8) for item, want in zip(have, wants, strict=True)]
