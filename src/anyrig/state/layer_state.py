"""State that layers keep in their own way: vocabularies, bin boundaries, and whatever `save_own_variables` writes.

    user's save_own_variables/load_own_variables   tensors `model/<layer path>/<key>` in place of the layer's variables
    user's save_assets/load_assets                 files `<layer path>/<file>`
    StringLookup, IntegerLookup, TextVectorization the file `vocabulary.txt`; `idf_weights` where there are any
    Discretization                                 the tensor `bin_boundaries`

Keras's own overrides in Dense and its like are passed over: they merge LoRA weights into the kernel, which is not the
state. A layer that overrides only `load_own_variables` is stored by its variables and loaded through its method.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np

from anyrig import names
from anyrig.errors import AnyrigError
from anyrig.state.tree import PlacedLayer
from anyrig.state.values import to_array
from anyrig.store.layout import portable

Array = np.ndarray[Any, Any]
VOCABULARY = "vocabulary.txt"
_LOOKUPS = (keras.layers.StringLookup, keras.layers.IntegerLookup, keras.layers.TextVectorization)


@dataclass(frozen=True, slots=True)
class LayerState:
    """What one layer keeps in its own way: arrays by key, files by name."""

    placed: PlacedLayer
    arrays: dict[str, Array] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def tensor_name(self, key: str) -> str:
        """Return the name of an array in a checkpoint."""
        return names.join("model", *self.placed.path, key)

    def asset_path(self, file: str) -> str:
        """Return the path of a file below the checkpoint's assets."""
        return "/".join((self.folder, *(portable(part) for part in file.split("/"))))

    @property
    def folder(self) -> str:
        """The folder of the layer's files."""
        return "/".join(portable(part) for part in self.placed.path) or portable(type(self.placed.layer).__name__)


def layer_states(layers: Sequence[PlacedLayer]) -> list[LayerState]:
    """Return the state of every layer that keeps some in its own way, as it is now."""
    return [_state(placed) for placed in own_ways(layers)]


def own_ways(layers: Sequence[PlacedLayer]) -> list[PlacedLayer]:
    """Return the layers that are saved in their own way; the lookup inside a TextVectorization belongs to it."""
    inside = {id(p.layer._lookup_layer) for p in layers if isinstance(p.layer, keras.layers.TextVectorization)}
    return [p for p in layers if id(p.layer) not in inside and (writes_arrays(p.layer) or writes_files(p.layer))]


def writes_arrays(layer: keras.Layer) -> bool:
    """Say whether arrays of the layer's own stand in place of its variables."""
    return isinstance(layer, (*_LOOKUPS, keras.layers.Discretization)) or _overrides(layer, "save_own_variables")


def writes_files(layer: keras.Layer) -> bool:
    """Say whether the layer has files."""
    return isinstance(layer, _LOOKUPS) or _overrides(layer, "save_assets")


def keys_written(layer: keras.Layer) -> list[str]:
    """Return the keys that the layer would write now; none if it has nothing yet or cannot say."""
    try:
        return list(_arrays(layer))
    except AnyrigError:
        return []


def plain_of(layer: keras.Layer) -> list[keras.Variable]:
    """Return the variables that the layer itself holds, in Keras's order."""
    return list(layer._trainable_variables + layer._non_trainable_variables)


def loads_variables(layer: keras.Layer) -> bool:
    """Say whether the layer's plain variables must be loaded by its own method (it derives something from them)."""
    only_load = _overrides(layer, "load_own_variables") and not writes_arrays(layer)
    return only_load or isinstance(layer, keras.layers.Normalization)


def load_variables(layer: keras.Layer, arrays: Iterable[Array]) -> None:
    """Give `arrays`, in the order of the layer's variables, to its `load_own_variables`."""
    with _Explained(layer, "load_own_variables"):
        layer.load_own_variables({str(index): array.copy() for index, array in enumerate(arrays)})


def load_state(layer: keras.Layer, arrays: Mapping[str, Array], files: Mapping[str, bytes]) -> None:
    """Put back what `layer_states` took."""
    if isinstance(layer, keras.layers.Discretization):
        layer.bin_boundaries = arrays["bin_boundaries"].tolist() if "bin_boundaries" in arrays else None
        return
    if is_lookup(layer) and not files:
        return
    if writes_arrays(layer):
        with _Explained(layer, "load_own_variables"):
            layer.load_own_variables({key: array.copy() for key, array in arrays.items()})  # it may change them
    if writes_files(layer):
        with _Explained(layer, "load_assets"):
            _load_files(layer, files)


def forget_traces(model: keras.Model) -> None:
    """Let `fit`, `evaluate` and `predict` be traced anew: their graphs hold copies of what layers had."""
    for name in ("train_function", "test_function", "predict_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)


def is_lookup(layer: keras.Layer) -> bool:
    """Say whether the layer is one of Keras's that keep a vocabulary."""
    return isinstance(layer, _LOOKUPS)


def has_words(lookup: keras.Layer) -> bool:
    """Say whether a lookup was given a vocabulary or adapted; until then it keeps nothing."""
    return bool(lookup.get_vocabulary(include_special_tokens=False))


def fixed_vocabulary(layer: keras.Layer) -> bytes | None:
    """Return the vocabulary that the layer was built with and that loading cannot change."""
    lookup = getattr(layer, "_lookup_layer", layer)
    given = isinstance(layer, _LOOKUPS) and lookup.input_vocabulary is not None
    return _vocabulary(layer) if given else None


def _overrides(layer: keras.Layer, method: str) -> bool:
    function = getattr(type(layer), method, None)
    return function is not None and not str(function.__module__).startswith("keras.src.")


def _state(placed: PlacedLayer) -> LayerState:
    return LayerState(placed, _arrays(placed.layer), _files(placed.layer))


def _arrays(layer: keras.Layer) -> dict[str, Array]:
    if isinstance(layer, keras.layers.Discretization):
        bins = layer.bin_boundaries
        return {} if bins is None else {"bin_boundaries": np.asarray(bins, np.float64)}
    if not writes_arrays(layer) or (is_lookup(layer) and not has_words(layer)):
        return {}
    store: dict[str, Any] = {}
    with _Explained(layer, "save_own_variables"):
        layer.save_own_variables(store)
    return {str(key): _as_array(value) for key, value in store.items()}


def _as_array(value: Any) -> Array:
    if isinstance(value, keras.Variable):
        return to_array(value)
    return np.array(value.numpy() if hasattr(value, "numpy") else value)


def _files(layer: keras.Layer) -> dict[str, bytes]:
    if isinstance(layer, _LOOKUPS):
        return {VOCABULARY: _vocabulary(layer)} if has_words(layer) else {}
    if not writes_files(layer):
        return {}
    with tempfile.TemporaryDirectory() as folder:
        with _Explained(layer, "save_assets"):
            layer.save_assets(folder)
        paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _vocabulary(layer: keras.Layer) -> bytes:
    """Return the text Keras writes for a vocabulary, after making sure that Keras reads the same words from it."""
    words = [str(word) for word in layer.get_vocabulary(include_special_tokens=True)]
    text = "\n".join(words)
    if text.splitlines() != words:
        broken = next((word for word in words if word.splitlines() != [word]), words[-1])
        raise AnyrigError(
            "ANY-STATE-011",
            f"layer {layer.name!r}: the word {broken!r} does not survive in a vocabulary file with a word per line",
            hint="clean line breaks and empty words out of the vocabulary before adapt() or set_vocabulary()",
        )
    return text.encode()


def _load_files(layer: keras.Layer, files: Mapping[str, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        layer.load_assets(folder)


class _Explained:
    """Turn any failure of the user's method into an error that names the layer and the method."""

    def __init__(self, layer: keras.Layer, method: str) -> None:
        self.layer, self.method = layer, method

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, AnyrigError):
            raise AnyrigError(
                "ANY-STATE-008",
                f"{type(self.layer).__name__} {self.layer.name!r}: {self.method} failed: {error!r}",
                hint=f"mend {type(self.layer).__name__}.{self.method}, or adapt the layer first if it needs that",
            ) from error
