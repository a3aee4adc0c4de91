"""What of a model's state a format cannot hold, found by looking at the model before anything is written.

A loss that changes what the file is for (a vocabulary, the optimizer) is refused unless the caller gives it up; what a
kind of file never has (weights files: the architecture) is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import keras

from anyrig import names
from anyrig.state.layer_state import own_ways, writes_arrays, writes_files
from anyrig.state.optimizers import held_optimizers
from anyrig.state.seeds import seed_generators
from anyrig.state.tree import PlacedLayer, walk_layers
from anyrig.state.untracked import untracked
from anyrig.state.values import to_array
from anyrig.state.walk import model_variables

_HDF5_TYPES = frozenset(
    ["bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
)


@dataclass(frozen=True, slots=True)
class Lost:
    """Something that is not in the file; `refused` unless the caller gives it up."""

    what: str
    refused: bool


def lost_in(form: str, model: keras.Model) -> list[Lost]:
    """Return what `model` has and a file of `form` (a key of `LOSES`) does not hold."""
    layers = walk_layers(model)
    return [loss for look in LOSES[form] for loss in look(model, layers)]


def _vocabularies(model: keras.Model, layers: Sequence[PlacedLayer]) -> Iterator[Lost]:
    for placed in own_ways(layers):
        if writes_files(placed.layer):
            yield Lost(f"the vocabulary or files of the layer {names.join(*placed.path)!r}", refused=True)


def _own_arrays(model: keras.Model, layers: Sequence[PlacedLayer]) -> Iterator[Lost]:
    for placed in own_ways(layers):
        if writes_arrays(placed.layer) and not writes_files(placed.layer):
            yield Lost(f"what the layer {names.join(*placed.path)!r} saves in its own way", refused=True)


def _optimizers(model: keras.Model, layers: Sequence[PlacedLayer]) -> Iterator[Lost]:
    for key, optimizer in held_optimizers(model, layers).items():
        updates = int(to_array(optimizer.iterations)) if optimizer.built else 0
        if updates:
            name = "the optimizer" if key == "main" else f"the optimizer {key!r}"
            yield Lost(f"{name} ({type(optimizer).__name__}, {updates:,} updates)", refused=True)


def _optimizers_left(model: keras.Model, layers: Sequence[PlacedLayer]) -> Iterator[Lost]:
    yield from (Lost(loss.what, refused=False) for loss in _optimizers(model, layers))


def _other_optimizers(model: keras.Model, layers: Sequence[PlacedLayer]) -> Iterator[Lost]:
    others = held_optimizers(model, layers)
    others.pop("main", None)
    for key in others:
        yield Lost(f"the optimizer {key!r}", refused=True)


def _types(model: keras.Model, layers: Sequence[PlacedLayer]) -> Iterator[Lost]:
    odd = {str(item.variable.dtype) for item in model_variables(model, layers)} - _HDF5_TYPES
    if odd:
        yield Lost(f"arrays of the types {', '.join(sorted(odd))}", refused=True)


def _seeds(model: keras.Model, layers: Sequence[PlacedLayer]) -> Iterator[Lost]:
    if seed_generators(model):
        yield Lost("the seeds of its random layers: training goes on with other masks", refused=False)


def _architecture(model: keras.Model, layers: Sequence[PlacedLayer]) -> Iterator[Lost]:
    yield Lost("the architecture: whoever loads it builds the model first", refused=False)


def _byte_code(model: keras.Model, layers: Sequence[PlacedLayer]) -> Iterator[Lost]:
    """A function without a name goes into the file as byte code: of this Python, and run by whoever opens it."""
    for placed in layers:
        function = getattr(placed.layer, "function", None)
        if isinstance(placed.layer, keras.layers.Lambda) and getattr(function, "__name__", "") == "<lambda>":
            name = names.join(*placed.path)
            yield Lost(
                f"the function of the Lambda layer {name!r} by name (it has none), only its byte code", refused=True
            )


def _untracked(model: keras.Model, layers: Sequence[PlacedLayer]) -> Iterator[Lost]:
    for what in untracked(layers):
        yield Lost(f"the {what}, which Keras does not know of", refused=True)


def _ragged(model: keras.Model, layers: Sequence[PlacedLayer]) -> Iterator[Lost]:
    for each in keras.tree.flatten(getattr(model, "_inputs_struct", None)):
        if getattr(each, "ragged", False):
            yield Lost(f"ragged rows for the input {each.name!r}: its program takes rows of one length", refused=False)


def _training(model: keras.Model, layers: Sequence[PlacedLayer]) -> Iterator[Lost]:
    yield Lost("the layers: it predicts, and cannot be trained or made a Keras model again", refused=False)


_Look = Callable[[keras.Model, Sequence[PlacedLayer]], Iterator[Lost]]
LOSES: Mapping[str, tuple[_Look, ...]] = {
    "keras": (_untracked, _byte_code, _other_optimizers, _seeds),
    "keras-h5": (_untracked, _byte_code, _vocabularies, _own_arrays, _types, _other_optimizers, _seeds),
    "keras-h5-weights": (_untracked, _vocabularies, _own_arrays, _types, _optimizers_left, _seeds, _architecture),
    "keras-weights": (_untracked, _vocabularies, _other_optimizers, _seeds, _architecture),
    "safetensors": (_untracked, _vocabularies, _architecture),
    "tensorflow-checkpoint": (_vocabularies, _own_arrays, _other_optimizers, _seeds, _architecture),
    "savedmodel": (_ragged,),
    "onnx": (_optimizers, _seeds, _ragged, _training),
    "tflite": (_optimizers, _seeds, _ragged, _training),
}
