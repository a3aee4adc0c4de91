"""What a written model predicts, run as its receiver runs it: by Keras, TensorFlow, or the runtime of its format."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np


def outputs_of(form: str, path: Path, model: keras.Model, x: Any) -> Any:
    """Return the outputs of the model in the file at `path`, of the format `form`, for the rows `x`.

    `model` is the one that was written: where a file holds weights alone, a copy of it with other weights is filled
    from the file. Raises `Unable` with the reason if the file cannot be run here.
    """
    return _WAYS[form](path, model, x)


class Unable(Exception):
    """The outputs of a file cannot be had here, for the reason in the message."""


def _whole(path: Path, model: keras.Model, x: Any) -> Any:
    known = {type(layer).__name__: type(layer) for layer in model._flatten_layers()}
    own = {name: kind for name, kind in known.items() if not kind.__module__.startswith("keras.")}
    return keras.saving.load_model(path, custom_objects=own, compile=False).predict(x, verbose=0)


def _copy(model: keras.Model, x: Any) -> keras.Model:
    """Return a model of the same architecture with other weights."""
    try:
        copy = type(model).from_config(model.get_config())
        copy.predict(x, verbose=0)
    except Exception as error:
        raise Unable(f"no second model can be made of {type(model).__name__}'s configuration") from error
    return copy


def _weights(path: Path, model: keras.Model, x: Any) -> Any:
    copy = _copy(model, x)
    copy.load_weights(path)
    return copy.predict(x, verbose=0)


def _safetensors(path: Path, model: keras.Model, x: Any) -> Any:
    from safetensors.numpy import load_file

    from anyrig.state.walk import model_variables

    copy, stored = _copy(model, x), load_file(path)
    for item in model_variables(copy):
        item.variable.assign(stored[f"model/{item.name}"] if f"model/{item.name}" in stored else stored[item.name])
    return copy.predict(x, verbose=0)


def _checkpoint(path: Path, model: keras.Model, x: Any) -> Any:
    import tensorflow as tf

    copy = _copy(model, x)
    tf.train.Checkpoint(model=copy).read(str(path)).assert_existing_objects_matched().expect_partial()
    return copy.predict(x, verbose=0)


def _saved_model(path: Path, model: keras.Model, x: Any) -> Any:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))  # its variables live as long as it does
    return loaded.serve(keras.tree.map_structure(tf.convert_to_tensor, x))


def _onnx(path: Path, model: keras.Model, x: Any) -> Any:
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise Unable("onnxruntime is not installed, and runs ONNX files: pip install 'anyrig[onnx]'") from error
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = _by_name(model, x, [each.name for each in session.get_inputs()])
    names = [each.name for each in session.get_outputs()]
    return _in_order(dict(zip(names, session.run(names, given), strict=True)))


def _tflite(path: Path, model: keras.Model, x: Any) -> Any:
    import tensorflow as tf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it moves to a package of its own
        plain = tf.lite.experimental.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES  # others refuse some sizes
        interpreter = tf.lite.Interpreter(str(path), experimental_op_resolver_type=plain)
    runner = interpreter.get_signature_runner()
    return _in_order(runner(**_by_name(model, x, list(runner.get_input_details()))))


def _by_name(model: keras.Model, x: Any, names: list[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the rows for each input of an exported model, which has the names of the model's own inputs."""
    leaves = keras.tree.flatten(x)
    if isinstance(x, dict):
        named = x
    elif len(names) == 1:
        named = {names[0]: leaves[0]}
    else:
        named = dict(zip([leaf.name for leaf in model.inputs], leaves, strict=True))
    if named.keys() != set(names):
        raise Unable(f"its inputs are called {', '.join(sorted(names))}, the model's {', '.join(sorted(named))}")
    return {name: np.asarray(rows) for name, rows in named.items()}


def _in_order(outputs: Mapping[str, Any]) -> list[Any]:
    """Return outputs as Keras flattens them: a dict's by name, a list's by number (`output_0`)."""
    numbered = all(name.startswith("output_") and name[7:].isdecimal() for name in outputs)
    return [outputs[name] for name in sorted(outputs, key=(lambda name: int(name[7:])) if numbered else None)]


_WAYS: Mapping[str, Callable[[Path, keras.Model, Any], Any]] = {
    "keras": _whole,
    "keras-h5": _whole,
    "keras-weights": _weights,
    "safetensors": _safetensors,
    "tensorflow-checkpoint": _checkpoint,
    "savedmodel": _saved_model,
    "onnx": _onnx,
    "tflite": _tflite,
}
