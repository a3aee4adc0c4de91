"""Take the state of a model as named tensors, files and one document. Nothing is copied on CPU and nothing changed.

One exception: a compiled optimizer that has no slots yet is built, so that a state taken before the first step has the
same names as one taken after it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras

from anyrig.errors import UsageError
from anyrig.state.layer_state import LayerState, layer_states, writes_arrays
from anyrig.state.optimizers import optimizers
from anyrig.state.tree import walk_layers
from anyrig.state.values import to_array
from anyrig.state.walk import NamedVariable, metric_variables, model_variables, optimizer_variables
from anyrig.store.tensors import StoredTensor

MODEL_DOCUMENT = "model.json"


@dataclass(frozen=True, slots=True)
class Captured:
    """A model's state: what a checkpoint stores. The arrays share the variables' buffers and are read-only."""

    tensors: list[StoredTensor]
    documents: dict[str, bytes]
    assets: dict[str, bytes]


def capture(model: keras.Model, *, optimizer: bool = True, metrics: bool = True) -> Captured:
    """Return the present state of a built `model`; of a compiled one with its optimizer and metrics if asked.

    Metrics that have not seen a batch have no variables yet and are not there.
    """
    require_built(model)
    layers = walk_layers(model)
    named = model_variables(model, layers)
    states = layer_states(layers)
    tensors = [_stored(item) for item in plain_variables(named, states)] + _own_tensors(states)
    if optimizer:
        for key, used in optimizers(model, layers).items():
            tensors += [_stored(item) for item in optimizer_variables(used, named, key)]
    if metrics:
        tensors += [_stored(item) for item in metric_variables(model, layers)]
    assets = {state.asset_path(file): content for state in states for file, content in state.files.items()}
    return Captured(tensors, {MODEL_DOCUMENT: model_document(model)}, assets)


def require_built(model: keras.Model) -> None:
    """Raise ANY-STATE-001 with the call that builds `model` if its variables do not exist yet."""
    if not model.built:
        raise UsageError(
            "ANY-STATE-001",
            f"the model {model.name!r} ({type(model).__name__}) is not built: its variables do not exist yet",
            hint="call it once on a batch of data, model(x), or model.build(input_shape) if it builds from a shape",
        )


def plain_variables(named: Sequence[NamedVariable], states: Sequence[LayerState]) -> list[NamedVariable]:
    """Return the variables that are stored as they are: not those of layers that write arrays in their own way."""
    replaced = {
        id(variable)
        for state in states
        if writes_arrays(state.placed.layer)
        for variable in state.placed.layer._trainable_variables + state.placed.layer._non_trainable_variables
    }
    return [item for item in named if id(item.variable) not in replaced]


def model_document(model: keras.Model) -> bytes:
    """Return the model's Keras config as JSON (data, not weights, not the compile arguments)."""
    try:
        text = json.dumps(_without_compile(keras.saving.serialize_keras_object(model)))
    except Exception as error:  # noqa: BLE001  the user's get_config may fail in any way; the state is saved all the same
        name = f"{type(model).__module__}.{type(model).__qualname__}"
        text = json.dumps({"class": name, "config": None, "reason": f"{type(error).__name__}: {error}"})
    return text.encode() + b"\n"


def _without_compile(config: Any) -> Any:
    if isinstance(config, dict):
        return {key: _without_compile(value) for key, value in config.items() if key != "compile_config"}
    return [_without_compile(value) for value in config] if isinstance(config, (list, tuple)) else config


def _stored(item: NamedVariable) -> StoredTensor:
    return StoredTensor(name=item.name, array=to_array(item.variable), aliases=item.aliases, place=item.place)


def _own_tensors(states: Sequence[LayerState]) -> list[StoredTensor]:
    return [
        StoredTensor(name=state.tensor_name(key), array=array, place=state.placed.place)
        for state in states
        for key, array in state.arrays.items()
    ]
