"""Looks into one step before it is done: what every layer is given and gives back, the loss and the gradients.

The micro-batches are run once more, one operation at a time and all on the first device, with the keys that the step
will have. So whatever differs between two device counts here is the model's own doing, and the first thing that
differs is where it began. Nothing of the model is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from anyrig.data.source import Batch
from anyrig.state.tree import PlacedLayer, walk_layers
from anyrig.state.walk import model_variables
from anyrig.store.digest import hash_bytes, tensor_hash
from anyrig.topology.plan import split_rows
from anyrig.train.step import seeds
from anyrig.train.step.owner import OwnerEngine

Facts = dict[str, Any]


@contextmanager
def looking_into(step: int) -> Iterator[Facts]:
    """Yield the facts, which are filled in when step number `step` (from 0) is about to be done.

    All engines of this process are watched: it is a child that does nothing else.
    """
    facts: Facts = {}
    train = OwnerEngine.train

    def watched(engine: OwnerEngine, batch: Batch, number: int) -> dict[str, Any]:
        if number == step:
            try:
                facts.update(_facts(engine, batch, number))
            except Exception as error:  # noqa: BLE001  (a model that only runs as a graph, in whatever way)
                facts["failed"] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        return train(engine, batch, number)

    OwnerEngine.train = watched  # type: ignore[method-assign,assignment]
    try:
        yield facts
    finally:
        OwnerEngine.train = train  # type: ignore[method-assign]


def _facts(engine: OwnerEngine, batch: Batch, step: int) -> Facts:
    model = engine.model
    facts: Facts = {"batch": _hash(batch), "calls": [], "loss": [], "moved": {}, "gradients": {}}
    names = {id(item.variable): item.name for item in model_variables(model)}
    keys = seeds.keys(engine.seed, engine.own_seeds, step, engine.plan.virtual_replicas)
    with tf.device(engine.plan.devices[0]), _calls_noted(model, facts["calls"]):
        for v, rows in enumerate(_shares(batch, engine.plan.virtual_replicas)):
            mapping = [(state, keys[v][i]) for i, state in enumerate(engine.micro.seed_states)]
            _micro_batch(model, rows, mapping, facts, names)
    return facts


def _micro_batch(model: keras.Model, rows: Batch, mapping: Any, facts: Facts, names: dict[int, str]) -> None:
    x, y, weight = rows
    with tf.GradientTape() as tape, keras.StatelessScope(mapping, collect_losses=True) as scope:
        y_pred = model(x, training=True) if model._call_has_training_arg else model(x)
        loss = model._compute_loss(x, y, y_pred, weight, training=True)
    facts["loss"].append(_hash(loss))
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        facts["gradients"].setdefault(names[id(variable)], []).append(_hash(gradient))
    for variable in model.non_trainable_variables:
        if id(variable) in names:
            facts["moved"].setdefault(names[id(variable)], []).append(_hash(scope.get_current_value(variable)))


def _shares(batch: Batch, virtual_replicas: int) -> Iterator[Batch]:
    """Yield the rows of each virtual replica that has any."""
    first = keras.tree.flatten(batch[0])[0]
    start = 0
    for size in split_rows(int(first.shape[0]), virtual_replicas):
        stop = start + size
        if size:
            yield keras.tree.map_structure(lambda leaf, a=start, b=stop: None if leaf is None else leaf[a:b], batch)
        start = stop


@contextmanager
def _calls_noted(model: keras.Model, calls: list[Any]) -> Iterator[None]:
    """Note in `calls`, for each call of a layer: "in" or "out", the layer, the layer that called it, a hash."""
    inside: list[str] = []
    with ExitStack() as stack:
        for placed in walk_layers(model):
            call = placed.layer.call
            object.__setattr__(placed.layer, "call", _noting(call, _label(placed), inside, calls))
            stack.callback(object.__delattr__, placed.layer, "call")
        yield


def _noting(call: Callable[..., Any], label: str, inside: list[str], calls: list[Any]) -> Callable[..., Any]:
    def noting(*args: Any, **kwargs: Any) -> Any:
        calls.append(["in", label, inside[-1] if inside else None, _hash((args, kwargs))])
        inside.append(label)
        try:
            outputs = call(*args, **kwargs)
        finally:
            inside.pop()
        calls.append(["out", label, inside[-1] if inside else None, _hash(outputs)])
        return outputs

    return noting


def _label(placed: PlacedLayer) -> str:
    kind = type(placed.layer)
    own = "" if kind.__module__.startswith("keras.") else ", your own class"
    return f"{'/'.join(placed.path) or 'the model'} ({kind.__name__}{own})"


def _hash(value: Any) -> str:
    """Return a hash of all arrays in a structure."""
    return hash_bytes("".join(map(_leaf_hash, keras.tree.flatten(value))).encode())


def _leaf_hash(leaf: Any) -> str:
    if isinstance(leaf, tf.IndexedSlices):
        return _leaf_hash(leaf.values) + _leaf_hash(leaf.indices)
    if isinstance(leaf, np.ndarray) or (hasattr(leaf, "numpy") and tf.executing_eagerly()):
        array = np.asarray(leaf)
        return tensor_hash(array) if array.dtype.kind != "O" else hash_bytes(repr(array.tolist()).encode())
    return str(leaf) if isinstance(leaf, bool | int | float | str) else type(leaf).__name__
