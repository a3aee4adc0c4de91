"""The formats that a model can be written to, by suffix: each a function of a built model and a path not taken."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from anyrig.checkpoints import save
from anyrig.exchange.sample import sample_for
from anyrig.formats.safetensors import OPTIMIZER, PLACES
from anyrig.state.capture import capture
from anyrig.state.optimizers import held_optimizers
from anyrig.store.dtypes import spelling_of
from anyrig.store.header import ALIGNMENT, TensorSpec, build_header

EXTRA = Path("assets.extra") / "anyrig"
"""Where a SavedModel of ours has a checkpoint: TensorFlow leaves `assets.extra` to whoever wants to add something."""
COMPILED = Path("assets.extra") / "anyrig.compile.json"
"""Beside it, what `compile` was told, as Keras writes it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A format; `proved` if the model's arrays stand in it as they are, `install` what its writer needs."""

    format: str
    words: str
    write: Callable[[keras.Model, Path], None]
    folder: bool = False
    proved: bool = True
    install: str | None = None


def _keras(model: keras.Model, path: Path) -> None:
    model.save(path)


def _h5(model: keras.Model, path: Path) -> None:
    from keras.src.legacy.saving.legacy_h5_format import save_model_to_hdf5

    with _readable_training(model):
        save_model_to_hdf5(model, str(path))  # `model.save` does this and warns that there is a newer format


@contextmanager
def _readable_training(model: keras.Model) -> Iterator[None]:
    """Let the file have names of losses and metrics that Keras's own reader knows, and leave the model as it was.

    It knows `mean_squared_error`, not `mse`; and its writer takes the optimizer out of the model's settings.
    """
    config = model._compile_config.config if model.compiled else {}
    kept = dict(config)
    for key, module in (("loss", keras.losses), ("metrics", keras.metrics), ("weighted_metrics", keras.metrics)):
        if key in config:
            config[key] = keras.tree.map_structure(lambda item, module=module: _long_name(item, module), config[key])
    try:
        yield
    finally:
        config.clear()
        config.update(kept)


def _long_name(item: Any, module: Any) -> Any:
    if not isinstance(item, str) or item in ("accuracy", "acc", "crossentropy", "ce"):
        return item
    found = module.get(item)
    return getattr(found, "__name__", None) or found.name


def _h5_weights(model: keras.Model, path: Path) -> None:
    import h5py
    from keras.src.legacy.saving.legacy_h5_format import save_weights_to_hdf5_group

    with h5py.File(path, "w") as file:
        save_weights_to_hdf5_group(file, model)


def _weights(model: keras.Model, path: Path) -> None:
    model.save_weights(path)


def _safetensors(model: keras.Model, path: Path) -> None:
    captured = capture(model).tensors
    metadata = {PLACES: json.dumps({item.name: item.place for item in captured if item.place})}
    if optimizer := vars(model).get("optimizer"):
        both = (optimizer, getattr(optimizer, "inner_optimizer", None))
        metadata[OPTIMIZER] = ",".join(type(each).__name__ for each in both if each is not None)
    tensors = [(item.name, np.asarray(item.array)) for item in captured]
    tensors.sort(key=lambda item: item[1].nbytes % ALIGNMENT != 0)  # those that readers can map come first
    specs = [TensorSpec(name, _spelled(array), array.shape, array.nbytes) for name, array in tensors]
    with path.open("wb") as file:
        file.write(build_header(specs, metadata))
        for _, array in tensors:
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _spelled(array: np.ndarray[Any, Any]) -> str:
    spelling = spelling_of(array.dtype)
    assert spelling, array.dtype  # capture has refused what safetensors lacks
    return spelling


def _checkpoint(model: keras.Model, path: Path) -> None:
    import tensorflow as tf

    parts = {"model": model}
    if (optimizer := held_optimizers(model).get("main")) is not None:
        parts["optimizer"] = optimizer
    tf.train.Checkpoint(**parts).write(str(path))


def _saved_model(model: keras.Model, path: Path) -> None:
    """Write what TensorFlow and its servers call, and beside it a checkpoint, so that it can become a model again."""
    with _silent():
        model.export(path, format="tf_saved_model", verbose=False)
    (path / EXTRA).parent.mkdir()
    save(path / EXTRA, model, optimizer=bool(held_optimizers(model)))
    if settings := model.get_compile_config() if model.compiled else None:
        (path / COMPILED).write_text(json.dumps(settings))


def _onnx(model: keras.Model, path: Path) -> None:
    sample_for(model)  # Keras exports what has been called; this looks for rows that the model takes
    with _silent():
        model.export(path, format="onnx", verbose=False)


def _tflite(model: keras.Model, path: Path) -> None:
    with _silent():
        model.export(path, format="litert", verbose=False)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep exporters from printing to stdout, where the caller's own output goes, and from warning of themselves."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


_H5 = Target("keras-h5", "a whole-model HDF5 file", _h5)
H5_WEIGHTS = Target("keras-h5-weights", "an HDF5 file of weights", _h5_weights)
CHECKPOINT = Target("tensorflow-checkpoint", "a TensorFlow checkpoint", _checkpoint)
SAVED_MODEL = Target("savedmodel", "a SavedModel", _saved_model, folder=True)
TARGETS: Mapping[str, Target] = {
    ".keras": Target("keras", "a .keras file", _keras),
    ".h5": _H5,
    ".hdf5": _H5,
    ".weights.h5": Target("keras-weights", "a .weights.h5 file", _weights),
    ".safetensors": Target("safetensors", "a safetensors file", _safetensors),
    ".ckpt": CHECKPOINT,
    ".onnx": Target("onnx", "an ONNX file", _onnx, proved=False, install="pip install 'anyrig[onnx]'"),
    ".tflite": Target("tflite", "a LiteRT file", _tflite, proved=False),
    "": SAVED_MODEL,
}
