"""What can be said of a file of another format from its configuration and names alone; imports no framework."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anyrig.formats.contents import Contents, TensorSignature
from anyrig.formats.sniff import read_any, recognized
from anyrig.locations import resolve
from anyrig.store.remote.url import is_url

# Which programs open a format as it is; `anyrig.open_model` or `anyrig convert` brings the rest there.
READ_BY: Mapping[str, str] = {
    "safetensors": "every reader of safetensors",
    "keras-h5": "Keras 2 and tf-keras; Keras 3 with compile=False, unless it names what Keras 3 dropped",
    "keras-h5-weights": "Keras 1, 2, 3 and tf-keras, into the same model",
    "keras-weights": "Keras 3 of the same version or later, into the same model",
    "keras": "Keras 3 of the same version or later",
    "keras-2": "Keras 2.12 to 2.15 and tf-keras, not Keras 3",
    "tensorflow-checkpoint": "tf.train.Checkpoint, into objects with the same attributes; not Keras's load_weights",
    "tensorflow-variables": "the Saver of TensorFlow 1 (tf.compat.v1), into variables of the same names",
    "savedmodel": "TensorFlow 2 and its servers; Keras 3 only as a TFSMLayer",
    "graphdef": "TensorFlow (tf.compat.v1.import_graph_def)",
    "npz": "numpy",
    "onnx": "ONNX runtimes",
    "tflite": "LiteRT (TensorFlow Lite)",
    "orbax": "Orbax and JAX",
}


def read_by(contents: Contents) -> str | None:
    """Return which programs open a file as it is; an `.h5` of Keras 3 has settings that no earlier one knows."""
    of_keras_3 = str(contents.written_by.get("keras", "")).startswith("3")
    return "Keras 3" if contents.format == "keras-h5" and of_keras_3 else READ_BY.get(contents.format)


def contents_of_other_format(path: str | os.PathLike[str]) -> Contents | None:
    """Return what is at `path` if that is no run, checkpoint or folder of checkpoints of this project.

    A path may also be the prefix of several files. Raises ANY-FORMAT-001 for what no reader knows.
    """
    if is_url(path):
        return None
    here = Path(path).expanduser()
    if not os.path.lexists(here) and (found := recognized(here)) is not None:
        return read_any(found[1])
    location = resolve(path)
    return None if location.kind in ("run", "checkpoints", "checkpoint") else read_any(location.path)


def optimizer_of(contents: Contents) -> str | None:
    """Return the class of the optimizer that a file names, else "unnamed" if it has an optimizer's tensors."""
    named = (contents.compile_config or {}).get("optimizer_config", (contents.compile_config or {}).get("optimizer"))
    if isinstance(named, Mapping):
        named = named.get("class_name")
    if isinstance(named, str):
        return named
    return "unnamed" if any(tensor.role == "optimizer" for tensor in contents.tensors) else None


def precision_of(contents: Contents) -> str | None:
    """Return the precision of a model's layers, as its configuration has it; several are joined."""
    policies = {_policy(layer.get("config", {}).get("dtype")) for layer in _layers(contents.config)} - {None}
    return ", ".join(sorted(str(policy) for policy in policies)) or None


def _policy(dtype: Any) -> str | None:
    if isinstance(dtype, Mapping):
        dtype = dtype.get("config", {}).get("name") if isinstance(dtype.get("config"), Mapping) else None
    return dtype if isinstance(dtype, str) else None


def inputs_of(contents: Contents) -> tuple[TensorSignature, ...]:
    """Return the inputs that a Keras configuration declares: its input layers, else the first layer with a shape."""
    found = [_input(layer) for layer in _layers(contents.config) if layer.get("class_name") == "InputLayer"]
    if not found:
        shaped = (layer for layer in _layers(contents.config) if _shape(layer.get("config", {})) is not None)
        found = [_input(layer) for layer in list(shaped)[:1]]
    return tuple(found)


def _input(layer: Mapping[str, Any]) -> TensorSignature:
    config = layer.get("config", {})
    return TensorSignature(str(config.get("name", "input")), _policy(config.get("dtype")) or "float32", _shape(config))


def _shape(config: Mapping[str, Any]) -> tuple[int | None, ...] | None:
    shape = config.get("batch_shape", config.get("batch_input_shape"))
    if not isinstance(shape, (list, tuple)) or not all(size is None or isinstance(size, int) for size in shape):
        return None
    return tuple(shape)


def _layers(config: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield the layers of the outermost model, in the forms that Keras has written."""
    inner: Any = (config or {}).get("config")
    layers = inner.get("layers") if isinstance(inner, Mapping) else inner
    for layer in layers if isinstance(layers, list) else []:
        if isinstance(layer, Mapping) and isinstance(layer.get("config"), Mapping):
            yield layer
