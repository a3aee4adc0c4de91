"""Every variable of a model, once, with the name it has in a checkpoint.

The rules for paths are in `tree`; for optimizers in `slots`; for metrics in `measures`. A layer's own variables are
called by `variable.name`; if that is automatic (`variable_3`) or not unique in the layer, by the attribute that holds
the variable; failing that `<name>.<i>` in the layer's order. A seed generator's state is `<attribute>/state`.
This module never reads or changes a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import keras

from anyrig import names
from anyrig.errors import AnyrigError
from anyrig.state.measures import named_metrics
from anyrig.state.own import own_variables
from anyrig.state.seeds import own_seed_generators
from anyrig.state.slots import named_slots, with_keras_paths
from anyrig.state.tree import Held, Path, PlacedLayer, distinct, walk_layers


@dataclass(frozen=True, slots=True)
class NamedVariable:
    """A variable and its name for ever; `aliases` are other names of it; `place` see `anyrig.state.places`."""

    name: str
    variable: keras.Variable
    aliases: tuple[str, ...] = ()
    place: str | None = None


@dataclass(slots=True)
class _Entry:
    path: Path
    variable: keras.Variable
    place: str | None
    aliases: list[str]


def model_variables(model: keras.Model, layers: Sequence[PlacedLayer] | None = None) -> list[NamedVariable]:
    """Return `model/<path>` for every variable of `model.variables` and every seed generator's state, each once.

    `layers` is the result of `walk_layers(model)` if it is at hand. Raises ANY-STATE-002 naming a variable that
    `model.variables` lists and no layer holds.
    """
    layers = walk_layers(model) if layers is None else layers
    entries: dict[int, _Entry] = {}
    renamed = {placed.path: placed.aliases for placed in layers if placed.aliases}
    for placed in layers:
        others = _other_paths(placed.path, renamed)
        for held in _own(placed.layer):
            _enter(entries, placed, held, others)
    _add_keras_paths(entries.values())
    _check_complete(model, entries)
    return _frozen(entries.values())


def optimizer_variables(
    optimizer: keras.optimizers.Optimizer, model_named: Sequence[NamedVariable], key: str = "main"
) -> list[NamedVariable]:
    """Return every variable of a built `optimizer`; `model_named` comes from `model_variables` of its model."""
    paths = {id(item.variable): item.name.removeprefix("model/") for item in model_named}
    named = [NamedVariable(name, variable) for name, variable in named_slots(optimizer, paths, key)]
    return with_keras_paths(named)


def metric_variables(model: keras.Model, layers: Sequence[PlacedLayer] | None = None) -> list[NamedVariable]:
    """Return every variable of the metrics of a compiled `model` that exists now (`metrics/loss/total`, ...)."""
    return [
        NamedVariable(name, variable)
        for name, variable in named_metrics(model, walk_layers(model) if layers is None else layers)
    ]


def _own(layer: keras.Layer) -> list[Held]:
    seeds = [Held((*held.path, "state"), held.value.state) for held in own_seed_generators(layer)]
    return distinct(own_variables(layer) + seeds)


def _enter(entries: dict[int, _Entry], placed: PlacedLayer, held: Held, others: list[Path]) -> None:
    if id(held.value) not in entries:
        entries[id(held.value)] = _Entry(placed.path + held.path, held.value, placed.place, [])
    aliases = entries[id(held.value)].aliases
    aliases.extend(names.join("model", *path, *held.path) for path in [placed.path, *others])


def _other_paths(path: Path, renamed: Mapping[Path, list[Path]]) -> list[Path]:
    """Return the further paths of a layer: its own and those through further paths of the layers above it."""
    depths = range(len(path) + 1)
    return [other + path[depth:] for depth in depths for other in renamed.get(path[:depth], ())]


def _add_keras_paths(entries: Iterable[_Entry]) -> None:
    counts = Counter(entry.variable.path for entry in entries)
    for entry in entries:
        if counts[entry.variable.path] == 1:
            entry.aliases.append(entry.variable.path)


def _check_complete(model: keras.Model, entries: dict[int, _Entry]) -> None:
    missed = [variable.path for variable in model.variables if id(variable) not in entries]
    counts = Counter(names.join(*entry.path) for entry in entries.values())
    doubled = [name for name, count in counts.items() if count > 1]
    if missed or doubled:
        raise AnyrigError(
            "ANY-STATE-002",
            f"the model has variables that no layer path names: {missed or doubled}",
            hint="hold each variable in an attribute of the layer that uses it (self.x = self.add_weight(...))",
        )


def _frozen(entries: Iterable[_Entry]) -> list[NamedVariable]:
    canonical = {names.join("model", *entry.path) for entry in entries}
    return [
        NamedVariable(
            name=names.join("model", *entry.path),
            variable=entry.variable,
            aliases=tuple(alias for alias in dict.fromkeys(entry.aliases) if alias not in canonical),
            place=entry.place,
        )
        for entry in entries
    ]
