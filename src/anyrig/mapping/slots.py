"""Which tensors are no weights but the state of an optimizer, and to which weight and slot of Keras 3 each belongs.

A table of names, and nothing else: slots are matched after the weights that they belong to, never by shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from anyrig.mapping.result import Pair, Stored
from anyrig.state.wanted import Wanted

# What TensorFlow 1 and Keras 2 append to a weight's name (lower case): the slots of Keras 3 that may be meant.
SLOTS: dict[str, tuple[str, ...]] = {
    "momentum": ("momentum", "velocity"),
    "adam": ("momentum",),
    "adam_1": ("velocity",),
    "m": ("momentum",),
    "v": ("velocity",),
    "u": ("norm",),
    "vhat": ("velocity_hat",),
    "velocity": ("velocity",),
    "velocity_hat": ("velocity_hat",),
    "rmsprop": ("velocity",),
    "rmsprop_1": ("momentum",),
    "rms": ("velocity",),
    "adagrad": ("accumulator",),
    "accumulator": ("accumulator",),
    "accum_grad": ("accumulated_gradient", "accumulated_grad"),
    "accum_var": ("accumulated_delta_var",),
    "ftrl": ("accumulator",),
    "ftrl_1": ("linear",),
    "exponentialmovingaverage": ("average",),
    "ema": ("average",),
}
_SCALARS = {"beta1_power", "beta2_power", "global_step", "iterations", "learning_rate", "iter", "decay", "lr",
            "current_learning_rate", "save_counter", "beta_1", "beta_2"}  # fmt: skip


def slot_of(name: str, names: AbstractSet[str]) -> tuple[str, str] | None:
    """Return the weight and the slot that a name such as `w/Adam_1` stands for, if there is a weight `w`."""
    of, _, slot = name.rpartition("/")
    return (of, slot) if slot.lower() in SLOTS and of in names else None


def is_training_state(stored: Stored, names: AbstractSet[str]) -> bool:
    """Tell whether a tensor belongs to training: said so by its reader, a slot of a stored weight, a known scalar."""
    scalar = stored.shape in ((), (1,)) and stored.name.rpartition("/")[2].lower() in _SCALARS
    return stored.tensors[0].role != "weight" or scalar or slot_of(stored.name, names) is not None


def slot_pairs(stored: Sequence[Stored], wanted: Sequence[Wanted], weights: Sequence[Pair]) -> list[Pair]:
    """Return the pairs of slots whose weights are paired, and not laid out anew: nothing says how their slots are."""
    weight_of = {pair.wanted.name: pair.stored.name for pair in weights if not pair.steps}
    known: dict[tuple[str, str], Stored] = {}
    for item in stored:
        of, _, slot = item.name.rpartition("/")
        tensor = item.tensors[0]
        known.setdefault((tensor.of or of, (tensor.slot or slot).lower()), item)
    pairs = []
    for want in wanted:
        if want.of is None or want.slot is None or want.of not in weight_of:
            continue
        own = (weight_of[want.of], want.slot.lower()) in known  # the very word, whatever else it may stand for
        words = [want.slot.lower()] if own else [word for word, meant in SLOTS.items() if want.slot in meant]
        found = {word: known[key] for word in words if (key := (weight_of[want.of], word)) in known}
        fitting = {item.name: item for item in found.values() if item.shape == want.shape}
        if len(fitting) == 1:
            (item,) = fitting.values()
            why = f"the slot {item.name.rpartition('/')[2]} of {weight_of[want.of]}, which Keras 3 calls {want.slot}"
            pairs.append(Pair(item, want, "slot", why, 0.9))
    return pairs
