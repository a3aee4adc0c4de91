"""Take the state of a model as named tensors, files and one document. Nothing is copied on CPU and nothing changed.

One exception: a compiled optimizer that has no slots yet is built, so that a state taken before the first step has the
same names as one taken after it.

What takes long is to find the names: `plan_capture` does it once, and `take` as often as wanted, at the cost of one
reference per variable. A reference keeps the bytes of its moment: the step that next changes the variable writes
elsewhere. So as long as a state is held, memory for a second one is taken, tensor by tensor as they change.
"""

from __future__ import annotations

import json
import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from anyrig.errors import UsageError
from anyrig.state.layer_state import LayerState, layer_states, own_ways, writes_arrays
from anyrig.state.optimizers import optimizers
from anyrig.state.tree import PlacedLayer, walk_layers
from anyrig.state.untracked import untracked
from anyrig.state.values import hold, to_array
from anyrig.state.walk import NamedVariable, metric_variables, model_variables, optimizer_variables
from anyrig.store.tensors import StoredTensor

MODEL_DOCUMENT = "model.json"
_LARGE = 2**20  # characters; a thousand layers have half of it
_LARGE_CONFIG = (
    "the configuration of {!r} has {:.0f} MiB: a layer keeps an array in it (an initializer such as Constant(array)), "
    "which is written beside the weights each time; make the layer without it and assign the weights"
)
_NOT_SAVED = (
    "not saved: {}: Keras does not know of it, and a load will not bring it back; make it a variable of the layer, "
    "self.add_weight(...), or write it in the layer's save_assets"
)


@dataclass(frozen=True, slots=True)
class Captured:
    """A model's state: what a checkpoint stores. The arrays share the variables' buffers and are read-only.

    Those of an accelerator's variables are `OnAccelerator` where `hold` has read them.
    """

    tensors: list[StoredTensor]
    documents: dict[str, bytes]
    assets: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """What a model's state is made of, under which names: `before` and `after` what its layers write themselves.

    The document is of the moment of the plan.
    """

    before: list[NamedVariable]
    own: list[PlacedLayer]
    after: list[NamedVariable]
    documents: dict[str, bytes]
    optimizers: list[keras.optimizers.Optimizer]
    seen: list[keras.Variable]

    def still_holds(self, model: keras.Model) -> bool:
        """Tell whether the model and its optimizers have the variables that they had, and no others."""
        present = _all_variables(model, self.optimizers)
        return len(present) == len(self.seen) and all(map(operator.is_, present, self.seen))


def capture(
    model: keras.Model,
    *,
    optimizer: bool = True,
    metrics: bool = True,
    layers: Sequence[PlacedLayer] | None = None,
) -> Captured:
    """Return the present state of a built `model`; of a compiled one with its optimizer and metrics if asked.

    Metrics that have not seen a batch have no variables yet and are not there. `layers` is `walk_layers(model)` if it
    is at hand.
    """
    return take(plan_capture(model, optimizer=optimizer, metrics=metrics, layers=layers), to_array)


def plan_capture(
    model: keras.Model,
    *,
    optimizer: bool = True,
    metrics: bool = True,
    layers: Sequence[PlacedLayer] | None = None,
) -> CapturePlan:
    """Return what `take` needs to take the state of `model`, with the parts that `capture` says."""
    require_built(model)
    layers = walk_layers(model) if layers is None else layers
    if aside := untracked(layers):
        warnings.warn(_NOT_SAVED.format(", ".join(aside)), stacklevel=3)
    named, own = model_variables(model, layers), own_ways(layers)
    used = optimizers(model, layers) if optimizer else {}
    after = [item for key, each in used.items() for item in optimizer_variables(each, named, key)]
    after += metric_variables(model, layers) if metrics else []
    documents = {MODEL_DOCUMENT: model_document(model)}
    kept = list(used.values())
    return CapturePlan(plain_variables(named, own), own, after, documents, kept, _all_variables(model, kept))


def take(plan: CapturePlan, read: Callable[[keras.Variable], Any] = hold) -> Captured:
    """Return the state of the planned model as it is now; `read` gives what stands for a variable's value."""
    states = layer_states(plan.own)
    tensors = [_stored(item, read) for item in plan.before] + _own_tensors(states)
    tensors += [_stored(item, read) for item in plan.after]
    assets = {state.asset_path(file): content for state in states for file, content in state.files.items()}
    return Captured(tensors, plan.documents, assets)


def _all_variables(model: keras.Model, used: Sequence[keras.optimizers.Optimizer]) -> list[keras.Variable]:
    return [*model.variables, *(v for each in used for v in each.variables), *model.metrics_variables]


def require_built(model: keras.Model) -> None:
    """Raise ANY-STATE-001 with the call that builds `model` if its variables do not exist yet."""
    if not model.built:
        raise UsageError(
            "ANY-STATE-001",
            f"the model {model.name!r} ({type(model).__name__}) is not built: its variables do not exist yet",
            hint="call it once on a batch of data, model(x), or model.build(input_shape) if it builds from a shape",
        )


def plain_variables(named: Sequence[NamedVariable], own: Sequence[PlacedLayer]) -> list[NamedVariable]:
    """Return the variables that are stored as they are: not those of layers, of `own`, that write arrays themselves."""
    replaced = {
        id(variable)
        for placed in own
        if writes_arrays(placed.layer)
        for variable in placed.layer._trainable_variables + placed.layer._non_trainable_variables
    }
    return [item for item in named if id(item.variable) not in replaced]


def model_document(model: keras.Model) -> bytes:
    """Return the model's Keras config as JSON (data, not weights, not the compile arguments)."""
    try:
        text = json.dumps(_without_compile(keras.saving.serialize_keras_object(model)))
    except Exception as error:  # noqa: BLE001  the user's get_config may fail in any way; the state is saved all the same
        name = f"{type(model).__module__}.{type(model).__qualname__}"
        text = json.dumps({"class": name, "config": None, "reason": f"{type(error).__name__}: {error}"})
    if len(text) > _LARGE:
        warnings.warn(_LARGE_CONFIG.format(model.name, len(text) / 2**20), stacklevel=3)
    return text.encode() + b"\n"


def _without_compile(config: Any) -> Any:
    if isinstance(config, dict):
        return {key: _without_compile(value) for key, value in config.items() if key != "compile_config"}
    return [_without_compile(value) for value in config] if isinstance(config, (list, tuple)) else config


def _stored(item: NamedVariable, read: Callable[[keras.Variable], Any]) -> StoredTensor:
    return StoredTensor(name=item.name, array=read(item.variable), aliases=item.aliases, place=item.place)


def _own_tensors(states: Sequence[LayerState]) -> list[StoredTensor]:
    return [
        StoredTensor(name=state.tensor_name(key), array=array, place=state.placed.place)
        for state in states
        for key, array in state.arrays.items()
    ]
