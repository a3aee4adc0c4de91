"""Which tensor of an older file fills which slot of the compiled optimizer of the model that the file describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from anyrig.formats.contents import Contents, FileTensor
from anyrig.mapping.result import Pair, Stored
from anyrig.mapping.sides import stored_side
from anyrig.mapping.slots import slot_pairs
from anyrig.state.wanted import Wanted

_COUNTS = ("iterations", "iteration", "iter", "_iterations")
_RATES = ("learning_rate", "lr", "current_learning_rate", "_learning_rate")
_KERAS_2_ORDER: dict[str, tuple[tuple[str, ...], ...]] = {
    "Adam": (("_momentums", "_velocities"), ("_velocity_hats",)),
    "AdamW": (("_momentums", "_velocities"), ("_velocity_hats",)),
    "Adamax": (("_m", "_u"),),
    "Nadam": (("_momentums", "_velocities"),),
    "RMSprop": (("_velocities",), ("_momentums",), ("_average_gradients",)),
    "SGD": (("momentums",),),
    "Adagrad": (("_accumulators",),),
    "Adadelta": (("_accumulated_grads", "_accumulated_delta_vars"),),
    "Ftrl": (("_accumulators", "_linears"),),
    "Lion": (("_momentums",),),
}
"""Lists of slots in the order in which Keras 2.11 to 2.15 numbers its variables; those in one group take turns."""


def optimizer_pairs(contents: Contents, wanted: Sequence[Wanted], weights: Sequence[Pair]) -> list[Pair]:
    """Return the pairs of slots, of the count of updates and of the learning rate; `weights` are those of the weights.

    Slots go by the weight that the file says they belong to; where it says nothing (Keras before 2.3) by their order,
    all slots of one kind after another, if number and shapes agree with that.
    """
    stored = stored_side(tensor for tensor in contents.tensors if tensor.role == "optimizer")
    found = slot_pairs(stored, wanted, weights) or _in_order(stored, wanted, weights)
    return found + scalar_pairs(stored, wanted)


def scalar_pairs(stored: Sequence[Stored], wanted: Sequence[Wanted]) -> list[Pair]:
    """Return the pairs of the count of updates and of the learning rate."""
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
    """Pair slots that have no names: of the orders that Keras 1 and 2 had, the one that fits, if only one does.

    Slots of weights that are laid out anew are in the old layout too, which shapes do not always show: none is taken.
    """
    if any(pair.steps or len(pair.stored.tensors) > 1 for pair in weights):
        return []
    have = [item for item in stored if item.tensors[0].of is None and item.shape != ()]
    have = _without_placeholders(have, len({want.of for want in wanted}))
    orders = ([pair.wanted.name for pair in weights], [pair.wanted.name for pair in sorted(weights, key=_own_name)])
    fitting = {}
    for order in orders:
        wants = _listed(wanted, {name: index for index, name in enumerate(order)})
        if [item.shape for item in have] == [want.shape for want in wants]:
            fitting[tuple(want.name for want in wants)] = wants
    if len(fitting) != 1:
        return []
    why = "the file lists slots without names, in the order of the weights, and all shapes agree"
    (wants,) = fitting.values()
    return [Pair(item, want, "slot order", why, 0.8) for item, want in zip(have, wants, strict=True)]


def _listed(wanted: Sequence[Wanted], order: Mapping[str, int]) -> list[Wanted]:
    """Return the slots, all of one kind after another, each kind in the order of the weights."""
    known = [want for want in wanted if want.of in order]
    kinds = list(dict.fromkeys(want.slot for want in known))
    return [w for kind in kinds for w in sorted((w for w in known if w.slot == kind), key=lambda w: order[w.of or ""])]


def _own_name(pair: Pair) -> str:
    """Return the whole name of the variable, by which Keras before 2.3 sorted what it trained."""
    tensor = pair.stored.tensors[0]
    return tensor.aliases[0] if tensor.aliases else tensor.name


def _without_placeholders(have: list[Stored], weights: int) -> list[Stored]:
    """Leave out what Keras 2.1 to 2.2 wrote for `amsgrad` where it was off: an array of one number for each weight."""
    last = have[-weights:] if weights else []
    return have[:-weights] if len(have) == 3 * weights and all(item.shape == (1,) for item in last) else have


def numbered_slots(
    optimizer: Any, tensors: Mapping[int, FileTensor], variables: Sequence[Any]
) -> list[tuple[FileTensor, Any]]:
    """Pair the numbered variables of an optimizer of Keras 2 with those of today's, or return nothing.

    `tensors` are the stored ones by number, of which 0 counts the updates; `variables` are the trainable ones in the
    order of the file. Kinds of slots that today's optimizer does not keep (SGD without momentum) are left.
    """
    wanted = [optimizer.iterations, *_slots_in_order(optimizer, variables)]
    left = len(tensors) - len(wanted)
    if left not in (0, len(variables)) or (left and type(optimizer).__name__ != "SGD"):
        return []
    pairs = [(tensors[number], variable) for number, variable in enumerate(wanted) if number in tensors]
    fits = len(pairs) == len(wanted) and all(tensor.shape == tuple(v.shape) for tensor, v in pairs)
    return pairs if fits else []


def _slots_in_order(optimizer: Any, variables: Sequence[Any]) -> Iterator[Any]:
    for group in _KERAS_2_ORDER.get(type(optimizer).__name__, ()):
        lists = [slots for name in group if (slots := getattr(optimizer, name, None))]
        for variable in variables:
            index = optimizer._get_variable_index(variable)
            yield from (slots[index] for slots in lists)


def derive(optimizer: Any) -> list[Any]:
    """Set what follows from the count of updates and is in no file of Keras 2; return these variables."""
    if not isinstance(optimizer, keras.optimizers.Nadam):
        return []
    steps = np.arange(1, int(optimizer.iterations) + 1)
    factors = optimizer.beta_1 * (1.0 - 0.5 * 0.96**steps)
    optimizer._u_product.assign(np.prod(factors))
    return [optimizer._u_product]
