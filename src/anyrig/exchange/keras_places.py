"""Pairs Keras 3's weights with a model by the places at which Keras itself would store the model's variables.

A place is made of classes and of the order in which layers were made, so it says nothing where somebody made the same
layers in another order: the names of layers that people chose, which the file keeps, must agree as well.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

import keras
from keras.src.saving import saving_lib

from anyrig.formats.contents import FileTensor
from anyrig.mapping.result import Pair
from anyrig.mapping.sides import stored_side
from anyrig.state.automatic import is_automatic
from anyrig.state.wanted import Wanted

_VARIABLES = "vars"


def pairs_by_places(
    model: keras.Model, tensors: Iterable[FileTensor], wanted: Mapping[int, Wanted], *, same_code: bool = False
) -> list[Pair]:
    """Return a pair for each variable, if all have a tensor of their shape at their place, in layers of their names.

    Without that, none. `wanted` has the facts of each variable by `id`. `same_code`: places alone are enough.
    """
    places = _Places()
    without = {id(model.optimizer)} if getattr(model, "optimizer", None) is not None else set()
    saving_lib._save_state(model, places, None, "", without)
    stored = {item.name: item for item in stored_side(tensors)}
    counted = {each.name for each in model._flatten_layers() if is_automatic(each.name, type(each).__name__)}
    pairs = []
    for number, want in wanted.items():
        place = places.of.get(number, "")
        item = stored.get(place)
        if item is None or item.shape != want.shape:
            return []
        if not same_code and not _named_alike(place, item.aliases, places.names, counted):
            return []
        pairs.append(
            Pair(item, want, "place", "Keras stores this variable at this place, in a layer of this name", 1.0)
        )
    return pairs


def keys_unsaid(model: keras.Model) -> list[str]:
    """Return a sentence for each dict of a model whose layers only the order of its keys can tell apart.

    Keras stores the layers of a dict in that order, under the names of their classes, and no key.
    """
    said = []
    for layer in model._flatten_layers():
        for attribute, value in saving_lib._walk_saveable(layer):
            if not isinstance(value, dict):
                continue
            alike: dict[Any, list[str]] = {}
            for key, each in value.items():
                if isinstance(each, keras.layers.Layer) and is_automatic(each.name, type(each).__name__):
                    shapes = tuple(tuple(variable.shape) for variable in each.variables)
                    alike.setdefault((type(each), shapes), []).append(str(key))
            said += [
                f"{layer.name}.{attribute}: the file has no keys, so its layers {', '.join(keys)}, which have the same "
                "shapes, were filled in this order; if the sender's dict had another order, they are swapped"
                for (_, shapes), keys in alike.items()
                if shapes and len(keys) > 1
            ]
    return said


def _named_alike(place: str, aliases: Iterable[str], names: Mapping[str, str], counted: Container[str]) -> bool:
    """Tell whether the file calls the layers on the way to a variable as the model does, apart from numbers.

    `counted` are names that Keras gave by counting layers of a kind: `dense_2`, which the file may have as `dense_7`.
    """
    *groups, _, variable = place.split("/")
    steps = ["/".join(groups[: end + 1]) for end in range(len(groups))]
    ours = [names[step] for step in steps if step in names]
    for alias in aliases:
        *theirs, last = alias.split("/")
        if last == variable and len(theirs) == len(ours):
            return all(
                one == other or (one in counted and _uncounted(one) == _uncounted(other))
                for one, other in zip(ours, theirs, strict=True)
            )
    return False


def _uncounted(name: str) -> str:
    return re.sub(r"_\d+$", "", name)


class _Places(saving_lib.H5IOStore):
    """What Keras takes for a file to write: `of` has the place of each variable by `id`, `names` the layers' names."""

    def __init__(self) -> None:
        self.of: dict[int, str] = {}
        self.names: dict[str, str] = {}

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: Mapping[str, str] | None = None) -> _Place:
        """Return what a layer puts its variables into."""
        if metadata:
            self.names[path] = metadata["name"]
        return _Place(f"{path}/{_VARIABLES}" if path else _VARIABLES, self.of)


class _Place:
    """Notes variables instead of writing them."""

    def __init__(self, path: str, of: dict[int, str]) -> None:
        self._path, self._of = path, of

    def __setitem__(self, key: str, value: Any) -> None:
        self._of[id(value)] = f"{self._path}/{key}"
