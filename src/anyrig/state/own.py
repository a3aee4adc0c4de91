"""The variables that one layer or metric itself holds, named within it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import keras

from anyrig.state.automatic import is_automatic
from anyrig.state.tree import Held, held_objects


def own_variables(layer: keras.Layer) -> list[Held]:
    """Return the variables that `layer` itself holds, without those of children and seed generators."""
    return named_variables(layer, layer._trainable_variables + layer._non_trainable_variables)


def named_variables(owner: Any, variables: Iterable[keras.Variable]) -> list[Held]:
    """Name `variables` of `owner`: by name, else by attribute, else `<name>.<i>` (rules in `anyrig.state.walk`)."""
    stored = {id(variable): variable for variable in variables}
    bases = {key: _base(variable) for key, variable in stored.items()}
    counts = Counter(bases.values())
    named = {key: counts[base] == 1 and base != "variable" for key, base in bases.items()}
    found = [] if all(named.values()) else held_objects(owner)
    attributes = {id(item.value): item.path for item in reversed(found)}
    positions: Counter[str] = Counter()
    held = []
    for key, variable in stored.items():
        base = bases[key]
        if named[key]:
            held.append(Held((base,), variable))
        else:
            held.append(Held(attributes.get(key, (f"{base}.{positions[base]}",)), variable))
        positions[base] += 1
    return held


def _base(variable: keras.Variable) -> str:
    return "variable" if is_automatic(variable.name, "Variable") else str(variable.name)
