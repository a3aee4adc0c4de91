"""Every variable of an optimizer, once, named by the model variable it belongs to.

    optimizer/<key>/iterations, .../learning_rate          scalars
    optimizer/<key>/<variable path>/<slot>                 momentum, velocity, ... in the optimizer's own words
    optimizer/<key>/accumulator/<variable path>            accumulated gradients
    optimizer/<key>/loss_scale/...                         LossScaleOptimizer; its inner optimizer takes the plain names
    optimizer/<key>/optimizers/<pattern or i>/...          the optimizers of a MultiOptimizer
    ema/<variable path>                                    moving averages of the weights

A slot is matched to its variable by its position in a list aligned with the variables that the optimizer was built on;
only a slot kept in no such list is matched by the name Keras gave it, and only if one variable fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import keras

from anyrig import names
from anyrig.errors import AnyrigError
from anyrig.state.automatic import is_automatic

if TYPE_CHECKING:
    from anyrig.state.walk import NamedVariable

_BOOKKEEPING = {"_variables", "_trainable_variables"}
_SCALARS = {"_iterations": "iterations", "_learning_rate": "learning_rate"}


def named_slots(optimizer: keras.optimizers.Optimizer, paths: Mapping[int, str], key: str) -> list[tuple[str, Any]]:
    """Return (name, variable) for every variable of `optimizer`; `paths` gives the path of a model variable by `id`.

    Raises ANY-STATE-004 if a variable is left over or two get one name.
    """
    named = _named(optimizer, names.join("optimizer", key), paths)
    counts = Counter(name for name, _ in named)
    doubled = [name for name, count in counts.items() if count > 1]
    reached = {id(variable) for _, variable in named}
    missed = [variable.path for variable in optimizer.variables if id(variable) not in reached]
    if missed or doubled:
        raise AnyrigError(
            "ANY-STATE-004",
            f"{type(optimizer).__name__} has variables without a name of their own: {missed or doubled}",
            hint="hold each slot in a list aligned with the variables given to build(), as Keras's optimizers do",
        )
    return named


def _named(optimizer: Any, prefix: str, paths: Mapping[int, str]) -> list[tuple[str, Any]]:
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return _own(optimizer, f"{prefix}/loss_scale", paths) + _named(optimizer.inner_optimizer, prefix, paths)
    named = _own(optimizer, prefix, paths)
    if isinstance(optimizer, keras.optimizers.MultiOptimizer):
        for name, inner in _parts(optimizer):
            named += _named(inner, f"{prefix}/optimizers/{names.escape(name)}", paths)
    return named


def _parts(optimizer: Any) -> list[tuple[str, Any]]:
    """Return the optimizers of a MultiOptimizer under the user's patterns, or by position where a function chooses."""
    chooser = optimizer._optimizer_map
    known: dict[int, str] = {}
    if isinstance(chooser, keras.optimizers.OptimizerMap):
        known = {id(inner): pattern for pattern, inner in sorted(chooser._optimizer_map.items(), reverse=True)}
        known.setdefault(id(chooser.default_optimizer), "default")
    return [(known.get(id(inner), str(index)), inner) for index, inner in enumerate(optimizer._inner_optimizers)]


def _own(optimizer: Any, prefix: str, paths: Mapping[int, str]) -> list[tuple[str, Any]]:
    built_on = [
        _Reference(paths.get(id(v)) or f"other/{names.escape(v.path)}", v) for v in optimizer._trainable_variables
    ]
    found: dict[int, str] = {}
    for attribute, value in sorted(vars(optimizer).items()):
        if attribute not in _BOOKKEEPING and isinstance(value, (list, tuple)) and len(value) == len(built_on):
            for reference, slot in zip(built_on, value, strict=True):
                if isinstance(slot, keras.Variable):
                    found.setdefault(id(slot), _slot_name(prefix, reference, reference.slot_word(slot, attribute)))
    own = list({id(variable): variable for variable in optimizer._variables}.values())
    for variable in own:
        if id(variable) not in found:
            found[id(variable)] = (
                _by_keras_name(prefix, variable, built_on) or f"{prefix}/{_plain(optimizer, variable)}"
            )
    return [(found[id(variable)], variable) for variable in own]


class _Reference:
    """A model variable with its path, and what its slots are called by Keras."""

    def __init__(self, path: str, variable: Any) -> None:
        self.path = path
        self.keras_prefix = variable.path.replace("/", "_") + "_"

    def slot_word(self, slot: Any, attribute: str) -> str:
        if slot.name.startswith(self.keras_prefix):
            return str(slot.name.removeprefix(self.keras_prefix))
        return attribute.strip("_")


def _slot_name(prefix: str, reference: _Reference, slot: str) -> str:
    if slot == "average":
        return f"ema/{reference.path}"
    if slot == "gradient_accumulator":
        return f"{prefix}/accumulator/{reference.path}"
    return f"{prefix}/{reference.path}/{names.escape(slot)}"


def _by_keras_name(prefix: str, slot: Any, built_on: Sequence[_Reference]) -> str | None:
    fitting = [reference for reference in built_on if slot.name.startswith(reference.keras_prefix)]
    longest = max((len(reference.keras_prefix) for reference in fitting), default=0)
    best = [reference for reference in fitting if len(reference.keras_prefix) == longest]
    return _slot_name(prefix, best[0], best[0].slot_word(slot, "")) if len(best) == 1 else None


def _plain(optimizer: Any, variable: Any) -> str:
    for attribute, value in sorted(vars(optimizer).items()):
        if value is variable:
            return _SCALARS.get(attribute) or names.escape(attribute.strip("_"))
    if is_automatic(variable.name, "Variable"):
        same = [other for other in optimizer._variables if is_automatic(other.name, "Variable")]
        return f"variable.{[id(other) for other in same].index(id(variable))}"
    return names.escape(variable.name)


def with_keras_paths(named: list[NamedVariable]) -> list[NamedVariable]:
    """Return `named` with Keras's own path as an alias wherever it is unique."""
    counts = Counter(item.variable.path for item in named)
    return [replace(item, aliases=(item.variable.path,)) if counts[item.variable.path] == 1 else item for item in named]
