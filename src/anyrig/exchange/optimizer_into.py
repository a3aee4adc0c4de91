"""The optimizer of a file of weights, for the compiled optimizer of the user's own model: all of it, or nothing.

A slot goes by its name, or by the place at which Keras stores it, and never by shape or order alone. Slots of two
classes of optimizers may have the same names and mean different things, so the file must say the class as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import keras
from keras.src.models.functional import Functional

from anyrig.exchange.optimizer_state import scalar_pairs
from anyrig.formats.contents import Contents
from anyrig.formats.safetensors import OPTIMIZER
from anyrig.mapping.result import Pair, Stored
from anyrig.mapping.sides import stored_side
from anyrig.mapping.slots import slot_pairs
from anyrig.state.optimizers import held_optimizers
from anyrig.state.walk import model_variables, optimizer_variables
from anyrig.state.wanted import Wanted
from anyrig.state.wanting import wanted_by

_TREES = ("keras", "keras-weights")
_KNOWN = {name.lower() for name, kind in vars(keras.optimizers).items() if isinstance(kind, type)} - {"optimizer"}


def optimizer_into(model: keras.Model, contents: Contents, weights: Sequence[Pair]) -> tuple[list[Pair], str | None]:
    """Return the pairs that fill the whole optimizer of `model`, or none and why; `weights` are its weights'."""
    stored = stored_side(tensor for tensor in contents.tensors if tensor.role == "optimizer")
    if not stored:
        return [], None
    if not model.compiled:
        return [], "the file's optimizer was left: the model is not compiled"
    theirs, ours = _classes(contents, stored), _class_words(type(each).__name__ for each in _optimizers(model))
    if not ours or theirs != ours:
        said = f"is {_listed(theirs)}" if theirs else "has no name in it"
        return [], f"the file's optimizer was left: it {said}, the model's is {_listed(ours)}"
    wanted = [want for want in wanted_by(model) if want.role == "optimizer"]
    pairs = _pairs(model, contents, stored, wanted, weights)
    filled = {pair.wanted.name for pair in pairs}
    used = {pair.stored.name for pair in pairs}
    missing = [want.name for want in wanted if want.name not in filled]
    whole = contents.format in _TREES  # where a wrapper's slots stand twice
    unused = [item.name for item in stored if item.name not in used and item.shape != () and not whole]
    if missing or unused:
        first = f"nothing is known to fill {missing[0]}" if missing else f"{unused[0]} has no place in the model's"
        return [], f"the file's optimizer was left: {first}"
    return pairs, None


def _pairs(
    model: keras.Model, contents: Contents, stored: Sequence[Stored], wanted: Sequence[Wanted], weights: Sequence[Pair]
) -> list[Pair]:
    if contents.format in _TREES:
        return _by_places(model, stored, wanted) if all(pair.rule == "place" for pair in weights) else []
    if contents.format in ("safetensors", "checkpoint"):
        return _by_own_names(stored, wanted, weights)
    return slot_pairs(stored, wanted, weights) + scalar_pairs(stored, wanted)


def _by_own_names(stored: Sequence[Stored], wanted: Sequence[Wanted], weights: Sequence[Pair]) -> list[Pair]:
    """Pair what this project wrote: `optimizer/main/hidden/kernel/momentum` is a slot of `model/hidden/kernel`."""
    by_name = {item.name: item for item in stored}
    names = {pair.wanted.name: pair.stored.name for pair in weights if not pair.steps}
    pairs = []
    for want in wanted:
        key = "/".join(want.name.split("/")[:2])
        weight = names.get(want.of or "", "")
        name = want.name if want.of is None else f"{key}/{weight.removeprefix('model/')}/{want.name.rpartition('/')[2]}"
        if (item := by_name.get(name)) is not None and item.shape == want.shape:
            pairs.append(Pair(item, want, "slot", "the same slot of the same weight", 1.0))
    return pairs


def _by_places(model: keras.Model, stored: Sequence[Stored], wanted: Sequence[Wanted]) -> list[Pair]:
    """Pair what Keras numbers in the order in which it trains the weights, where that cannot be another one here."""
    if not all(_in_one_order(layer) for layer in model._flatten_layers()):
        return []
    outer = model.optimizer
    at = {"optimizer": outer, "optimizer/inner_optimizer": getattr(outer, "inner_optimizer", None)}
    places = {f"{place}/vars/{n}": v for place, each in at.items() if each for n, v in enumerate(each.variables)}
    by_name = {item.name: item for item in stored}
    if by_name.keys() != places.keys():
        return []
    place_of = {id(variable): place for place, variable in places.items()}
    named = optimizer_variables(outer, model_variables(model))
    item_of = {each.name: by_name[place_of[id(each.variable)]] for each in named if id(each.variable) in place_of}
    found = [(item_of[want.name], want) for want in wanted if want.name in item_of]
    why = "Keras stores this variable at this place of the optimizer"
    return [Pair(item, want, "place", why, 1.0) for item, want in found if item.shape == want.shape]


def _in_one_order(layer: keras.Layer) -> bool:
    """Tell whether a layer trains all of its weights, in an order that follows from classes and the graph alone.

    Layers of one class side by side are told apart by their places, those of different ones by nothing.
    """
    if not layer.trainable or not type(layer).__module__.startswith("keras."):
        return False
    beside = layer._operations_by_depth.values() if isinstance(layer, Functional) else ()
    return all(len({type(each) for each in depth if getattr(each, "trainable_weights", ())}) <= 1 for depth in beside)


def _optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers that `model` holds, and those inside of them."""
    found = list(held_optimizers(model).values())
    return [*found, *(each.inner_optimizer for each in found if hasattr(each, "inner_optimizer"))]


def _classes(contents: Contents, stored: Iterable[Stored]) -> set[str]:
    """Return the classes of optimizers that the names in a file tell: `adam/iteration`, `training/Adam_1/iter`."""
    if isinstance(said := contents.metadata.get(OPTIMIZER), str):
        return _class_words(said.split(","))
    names = (name for item in stored for name in (item.name, *item.aliases))
    return _class_words(part for name in names for part in name.split("/")[:-1])


def _class_words(names: Iterable[str]) -> set[str]:
    return {re.sub(r"_\d+$", "", name).replace("_", "").lower() for name in names} & _KNOWN


def _listed(classes: Iterable[str]) -> str:
    return ", ".join(sorted(classes)) or "of a class that Keras does not have"
