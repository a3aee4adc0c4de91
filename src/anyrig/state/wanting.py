"""What a Keras model wants to be filled with: `wanted_by(model)`, the model's side of a name mapping.

It reads names, shapes and the graph, and never a value. The optimizer is built if it is not yet, as for a save.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras.src.models.functional import Functional

from anyrig import names
from anyrig.state.automatic import is_automatic, number_of
from anyrig.state.capture import require_built
from anyrig.state.optimizers import optimizers
from anyrig.state.own import own_variables
from anyrig.state.tree import PlacedLayer, walk_layers
from anyrig.state.values import shape_of
from anyrig.state.walk import NamedVariable, model_variables, optimizer_variables
from anyrig.state.wanted import Wanted
from anyrig.store.dtypes import spelling_of


def wanted_by(model: keras.Model, *, weights_only: bool = False) -> list[Wanted]:
    """Return every variable of a built model, and of its optimizers unless `weights_only`.

    Seeds are left out: only this project's files hold any. Raises ANY-STATE-001 for a model that is not built.
    """
    require_built(model)
    layers = walk_layers(model)
    named = model_variables(model, layers)
    units = {names.join("model", *placed.path): unit for placed, unit in _units(layers)}
    counted = {names.join("model", *path) for path in told_by_counting(layers)}
    wanted = [_weight(item, units, counted) for item in named if not _is_seed(item)]
    if not weights_only:
        for key, optimizer in optimizers(model, layers).items():
            wanted += [_slot(item, named) for item in optimizer_variables(optimizer, named, key)]
    return wanted


def told_by_counting(layers: Sequence[PlacedLayer]) -> list[tuple[str, ...]]:
    """Return the paths of layers that Keras's own path tells from others by a number only.

    A layer without a graph holds two of one kind and shapes under names that Keras chose. Such names follow the order
    in which attributes were set or keys of a dict given, here and where a file was written. Items of one list that were
    made in its order are told apart by it.
    """
    found = []
    for parent in layers:
        if isinstance(parent.layer, keras.Sequential | Functional) or type(parent.layer).__module__.startswith(
            "keras."
        ):
            continue
        alike: dict[Any, list[PlacedLayer]] = {}
        held = {id(child) for child in parent.layer._layers}
        for child in layers:
            kind = type(child.layer)
            if id(child.layer) in held and child.layer.weights and is_automatic(child.layer.name, kind.__name__):
                shapes = tuple(tuple(variable.shape) for variable in child.layer.weights)
                alike.setdefault((kind, shapes), []).append(child)
        found += [child.path for several in alike.values() if not _in_one_list(several) for child in several]
    return found


def _in_one_list(layers: Sequence[PlacedLayer]) -> bool:
    """Tell whether layers (also: one alone) are items of one list, whose names count as their places do."""
    if len(layers) == 1:
        return True
    lists = {layer.path[:-1] for layer in layers}
    if len(lists) > 1 or not all(layer.path[-1].isdigit() for layer in layers):
        return False
    numbers = [number_of(layer.layer.name) for layer in sorted(layers, key=lambda layer: int(layer.path[-1]))]
    return numbers == sorted(numbers)


@dataclass(frozen=True, slots=True)
class _Unit:
    """A layer that a name or a position stands for: its path, class, place in the order of the graph."""

    path: str
    class_name: str
    automatic: bool
    rank: int
    before: frozenset[int]
    layer: keras.Layer


def _units(layers: Sequence[PlacedLayer]) -> Iterator[tuple[PlacedLayer, _Unit]]:
    """Yield each layer with the unit that it belongs to: the lowest one above it, or itself, with an automatic name."""
    by_path = {placed.path: placed for placed in layers}
    rank = {placed.path: index for index, placed in enumerate(layers)}
    before = _before(layers)
    for placed in layers:
        ends = [end for end in range(1, len(placed.path) + 1) if _automatic(by_path.get(placed.path[:end]))]
        top = by_path[placed.path[: ends[-1]]] if ends else placed
        yield (
            placed,
            _Unit(
                names.join(*top.path),
                type(top.layer).__name__,
                bool(ends),
                rank[top.path],
                frozenset(rank[path] for path in before[top.path]),
                placed.layer,
            ),
        )


def _automatic(placed: PlacedLayer | None) -> bool:
    return (
        placed is not None and is_automatic(placed.layer.name, type(placed.layer).__name__) and ("." in placed.path[-1])
    )


def _before(layers: Sequence[PlacedLayer]) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Return for each layer the paths of those that come before it in whatever order the layers were made.

    That are the layers above it in a Sequential's stack or a Functional's graph, what is inside those, what comes
    before the models that it is inside, and earlier items of one list.
    """
    known: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    below = {placed.path: [p.path for p in layers if p.path[: len(placed.path)] == placed.path] for placed in layers}
    own = {placed.path: {p.path: p for p in layers if p.path[:-1] == placed.path} for placed in layers}
    for placed in layers:
        earlier = known.setdefault(placed.path, set())
        for path, direct in _earlier_siblings(placed, own[placed.path]).items():
            known[path] = earlier | {inner for sibling in direct for inner in below[sibling]}
        for path in below[placed.path]:
            known.setdefault(path, set(earlier))
    return known


def _earlier_siblings(
    parent: PlacedLayer, children: dict[tuple[str, ...], PlacedLayer]
) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
    paths = {id(child.layer): path for path, child in children.items()}
    if isinstance(parent.layer, keras.Sequential):
        stack = [paths[id(layer)] for layer in parent.layer._layers if id(layer) in paths]
        return {path: stack[:index] for index, path in enumerate(stack)}
    if isinstance(parent.layer, Functional):
        upstream = _upstream(parent.layer)
        return {path: [paths[i] for i in upstream.get(layer, ()) if i in paths] for layer, path in paths.items()}
    return {path: [] for path in children}


def _upstream(model: Any) -> dict[int, set[int]]:
    """Return the ids of the operations upstream of each operation of a Functional model."""
    found: dict[int, set[int]] = {}
    by_depth = model._nodes_by_depth
    for depth in sorted(by_depth, reverse=True):
        for node in by_depth[depth]:
            mine = found.setdefault(id(node.operation), set())
            for parent in node.parent_nodes:
                mine |= {id(parent.operation)} | found.get(id(parent.operation), set())
    return found


def _weight(item: NamedVariable, units: dict[str, _Unit], counted: Iterable[str]) -> Wanted:
    holder = max((path for path in units if item.name.startswith(f"{path}/")), key=len)
    unit = units[holder]
    layer = f"model/{unit.path}" if unit.path else "model"
    own = [held.value for held in own_variables(unit.layer)]
    index = next((index for index, variable in enumerate(own) if variable is item.variable), 0)
    told = not any(item.name.startswith(f"{path}/") for path in counted)
    aliases = [alias for alias in item.aliases if told or alias != item.variable.path]
    numbered = () if unit.automatic or not unit.path else (f"{unit.path}/{index}",)  # as Keras 3's files name it
    return Wanted(
        name=item.name,
        dtype=_spelling(item.variable),
        shape=shape_of(item.variable),
        aliases=(*aliases, *numbered),
        trainable=bool(item.variable.trainable),
        layer=unit.path or "model",
        layer_class=unit.class_name,
        leaf=item.name.removeprefix(f"{layer}/"),
        index=index,
        automatic=unit.automatic,
        rank=unit.rank,
        before=unit.before,
        place=item.place,
    )


def _slot(item: NamedVariable, named: Sequence[NamedVariable]) -> Wanted:
    of, _, slot = item.name.partition("/")[2].partition("/")[2].rpartition("/")
    known = {weight.name for weight in named}
    if item.name.startswith("ema/"):
        of, slot = item.name.removeprefix("ema/"), "average"
    belongs = f"model/{of}" in known
    return Wanted(
        name=item.name,
        dtype=_spelling(item.variable),
        shape=shape_of(item.variable),
        aliases=item.aliases,
        trainable=False,
        role="optimizer",
        leaf=item.name.rpartition("/")[2],
        of=f"model/{of}" if belongs else None,
        slot=slot if belongs else None,
    )


def _is_seed(item: NamedVariable) -> bool:
    return (
        item.name.endswith("/state") and item.variable.dtype in ("uint32", "int64") and shape_of(item.variable) == (2,)
    )


def _spelling(variable: Any) -> str:
    import ml_dtypes  # noqa: F401  (makes bfloat16 known to numpy)

    return spelling_of(np.dtype(str(variable.dtype))) or str(variable.dtype)
