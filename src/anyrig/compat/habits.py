"""What Keras 3 refuses by the name of a file, done as older Keras did, with the safety of `anyrig.save_model`.

    model.save("folder"), model.save("x.h5")           a SavedModel that becomes a Keras model again; a whole-model file
    model.save_weights("x.h5"), ("folder/name")        weights in HDF5; a TensorFlow checkpoint
    model.load_weights(any of these)                   every weight, or an error that says which and why
    keras.models.load_model("folder"), ("x.h5")        `anyrig.open_model`
    ModelCheckpoint("x_{epoch:02d}.h5", ...)           Keras's callback under these names

Names that Keras 3 takes go to Keras, with all their arguments.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras

from anyrig.errors import UsageError
from anyrig.exchange.open import open_model
from anyrig.exchange.save import save_as, target_of
from anyrig.exchange.targets import CHECKPOINT, H5_WEIGHTS, SAVED_MODEL

_H5 = (".h5", ".hdf5")
_Method = Callable[..., Any]


def accept_old_names() -> None:
    """Let `save`, `save_weights` and `load_weights` of every Keras model take the names of older Keras too; once."""
    for name, own in (("save", _save), ("save_weights", _save_weights), ("load_weights", _load_weights)):
        original = getattr(keras.Model, name)
        if original.__module__ != __name__:
            setattr(keras.Model, name, _first_asking(own, original))


def _first_asking(own: _Method, original: _Method) -> _Method:
    """Return a method that calls `own` for names that are its own, and `original` for all others."""

    @functools.wraps(original)
    def called(model: keras.Model, filepath: Any, *arguments: Any, **options: Any) -> Any:
        if own(model, os.fspath(filepath), options) is NotImplemented:
            return original(model, filepath, *arguments, **options)
        return None

    called.__module__ = __name__
    return called


def _save(model: keras.Model, path: str, options: dict[str, Any]) -> Any:
    form = options.pop("save_format", None)
    if form == "tf" or not Path(path).suffix:
        target = SAVED_MODEL
    elif path.endswith(_H5) or form == "h5":
        target = target_of(Path("model.h5"))
    else:
        return NotImplemented
    if _may_write(path, options):
        save_as(target, model, Path(path), lossy=not options.get("include_optimizer", True))
    return None


def _save_weights(model: keras.Model, path: str, options: dict[str, Any]) -> Any:
    form = options.pop("save_format", None)
    if path.endswith(".weights.h5"):
        return NotImplemented
    if _may_write(path, options):
        save_as(H5_WEIGHTS if path.endswith(_H5) or form == "h5" else CHECKPOINT, model, Path(path), lossy=True)
    return None


def _load_weights(model: keras.Model, path: str, options: dict[str, Any]) -> Any:
    if path.endswith(".weights.h5") or {"by_name", "skip_mismatch"} & {key for key, value in options.items() if value}:
        return NotImplemented
    open_model(path, into=model)
    return None


def _may_write(path: str, options: Mapping[str, Any]) -> bool:
    """Tell whether a file may be written; `overwrite=False` never replaces one, where Keras asks at a terminal."""
    if options.get("overwrite", True) or not os.path.lexists(path):
        return True
    raise UsageError("ANY-CONVERT-008", f"{path} is there, and overwrite=False", hint="give another name")


def load_model(
    filepath: Any,
    custom_objects: Mapping[str, Any] | None = None,
    compile: bool = True,  # noqa: A002
    safe_mode: bool = True,
) -> Any:
    """Return the model at `filepath`, of any format (`anyrig.open_model`); Keras itself opens `.keras` files."""
    if os.fspath(filepath).endswith(".keras"):
        return keras.saving.load_model(filepath, custom_objects, compile, safe_mode)
    return open_model(filepath, custom_objects=custom_objects)


def save_model(model: keras.Model, filepath: Any, overwrite: bool = True, **options: Any) -> None:
    """Write `model` to `filepath`, as its method `save` does."""
    model.save(filepath, overwrite=overwrite, **options)


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """Keras's callback, which also takes the names of older Keras: `.h5` for weights, folders for whole models."""

    def __init__(self, filepath: Any, *arguments: Any, **options: Any) -> None:
        options.pop("save_format", None)
        whole = not options.get("save_weights_only", False)
        super().__init__("model.keras" if whole else "model.weights.h5", *arguments, **options)
        self.filepath = os.fspath(filepath)
