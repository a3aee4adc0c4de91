"""How state that a micro-batch moves (moving averages, counters) becomes the state after the step.

Each virtual replica starts from the same state and moves it by its own rows; a rule says what the step keeps:
`mean` (weighted by rows), `sum` (of the changes), or `first` (virtual replica 0's, which all must have moved alike).
State with no known rule is refused by name, never averaged or dropped in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from anyrig.errors import UsageError

Rule = Literal["mean", "sum", "first"]

_declared: WeakKeyDictionary[keras.layers.Layer, dict[str, Rule]] = WeakKeyDictionary()
_MEAN_LAYERS = (keras.layers.BatchNormalization,)


def merge_rule(layer: keras.layers.Layer, variable: str, rule: Rule) -> None:
    """Declare how `layer`'s non-trainable variable of this name is merged over virtual replicas.

    `mean`: the average of the new values, weighted by rows. `sum`: the old value plus all changes. `first`: the new
    value of virtual replica 0; the step fails if another replica's differs.
    """
    if rule not in ("mean", "sum", "first"):
        raise UsageError("ANY-TRAIN-004", f"merge_rule: unknown rule {rule!r}", hint='use "mean", "sum" or "first"')
    _declared.setdefault(layer, {})[variable] = rule


def rule_for(model: keras.Model, variable: keras.Variable, virtual_replicas: int, *, from_data: bool) -> Rule:
    """Return the rule for a variable that the micro-batch assigned; an error if there is none and V > 1.

    `from_data`: its new value depends on rows or random numbers, so that virtual replica 0 alone does not know it.
    """
    layer = _layer_of(model, variable)
    if layer is not None and variable.name in _declared.get(layer, {}):
        return _declared[layer][variable.name]
    if isinstance(layer, _MEAN_LAYERS) and keras.backend.is_float_dtype(variable.dtype):
        return "mean"
    if virtual_replicas == 1 or not from_data:
        return "first"
    owner = f"{type(layer).__name__} {layer.name!r}" if layer is not None else "the model"
    raise UsageError(
        "ANY-TRAIN-005",
        f"{owner} changes its variable {variable.name!r} by its rows, and how to merge it over "
        "virtual replicas is not known",
        hint=f"declare it: anyrig.merge_rule(layer, {variable.name!r}, 'mean'), 'sum' or 'first'; or use "
        "virtual_replicas=1",
    )


def depends_on(tensor: tf.Tensor, sources: Sequence[Any]) -> bool:
    """Tell whether a tensor of the graph being traced is computed from any of `sources`."""
    if not hasattr(tensor, "graph"):
        return False
    wanted = {id(source.op) for source in sources if hasattr(source, "graph")}
    pending, seen = [tensor.op], set()
    while pending:
        operation = pending.pop()
        if id(operation) in wanted:
            return True
        if id(operation) not in seen:
            seen.add(id(operation))
            pending += [given.op for given in operation.inputs]
    return False


def refuse_write(variable: keras.Variable) -> UsageError:
    """Return the error for a variable that the model assigns, but that no layer of it holds."""
    return UsageError(
        "ANY-TRAIN-014",
        f"the model assigns {variable.path!r} while it runs, but no layer of it holds this variable, and its value "
        "would be lost",
        hint="make it (or its SeedGenerator) an attribute of a layer, in __init__ or build",
    )


def contribution(rule: Rule, old: tf.Tensor, new: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Return what one micro-batch, holding the part `rows` of all rows, hands in for a variable it moved."""
    if rule == "mean":
        return new * tf.cast(rows, new.dtype)
    return new - old if rule == "sum" else tf.identity(new)


def _layer_of(model: keras.Model, variable: keras.Variable) -> keras.layers.Layer | None:
    for layer in model._flatten_layers():
        if any(own is variable for own in layer._trainable_variables + layer._non_trainable_variables):
            return layer
    return None
