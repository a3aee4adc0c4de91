"""`anyrig.save_model`: a Keras model into a file of the format that its name asks for, read back before it counts.

The file is written beside its place, flushed, read by this project's own readers and compared with the model bit by
bit; only then it takes its place. What was there stays until that moment. State that the format cannot hold is found
before anything is written, and leaving it out is the caller's word (`lossy=True`), never a default.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from anyrig.errors import AnyrigError, UsageError
from anyrig.exchange.lost import Lost, lost_in
from anyrig.exchange.replace import put_in_place, work_folder
from anyrig.exchange.targets import TARGETS, Target
from anyrig.formats.contents import TEXT
from anyrig.formats.sniff import read_any
from anyrig.state.capture import require_built
from anyrig.state.seeds import seed_generators
from anyrig.state.values import to_array
from anyrig.state.walk import model_variables
from anyrig.store.digest import hash_bytes
from anyrig.store.local import LOCAL, make_folders

_OF_SAVED_MODELS = frozenset(
    ["saved_model.pb", "keras_metadata.pb", "fingerprint.pb", "variables", "assets", "assets.extra"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What was written: `arrays` variables of the model were found in the file bit by bit.

    `lost` lists what the format does not hold and the caller gave up, `notes` what it does not hold by its nature.
    """

    path: Path
    format: str
    arrays: int
    lost: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def save_model(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    lossy: bool = False,
    check: Callable[[Target, Path], None] | None = None,
) -> Saved:
    """Write `model` to `path` in the format of its suffix, and return what was proved of it.

    `.keras`, `.h5` or `.hdf5` (the older whole-model file), `.weights.h5`, `.safetensors`, `.ckpt`
    (`tf.train.Checkpoint`), `.onnx`, `.tflite`; a name without suffix becomes a SavedModel folder. A file or a folder
    of the same kind that is at `path` is replaced when the new one is complete. `check` is called with the format and
    what was written, before it takes its place; what it raises leaves everything as it was.

    Raises ANY-CONVERT-001 (suffix), -002 (the format cannot hold some state; `lossy=True` leaves it out), -003 (what
    was written does not hold the model's arrays: it is removed), -004 (something else is at `path`), -005 (Keras cannot
    write it), -009 (the file system cannot).
    """
    target_path = Path(os.path.realpath(os.path.expanduser(path)))
    return save_as(target_of(target_path), model, target_path, lossy=lossy, check=check)


def save_as(
    target: Target,
    model: keras.Model,
    path: Path,
    *,
    lossy: bool = False,
    check: Callable[[Target, Path], None] | None = None,
) -> Saved:
    """Write `model` to `path` in the format `target`, whatever the name's suffix; else as `save_model`."""
    require_built(model)
    target_path = Path(os.path.realpath(os.path.expanduser(path)))
    losses = lost_in(target.format, model)
    refuse_losses(losses, target, target_path, lossy=lossy)
    _refuse_other_things(target_path, target)
    with _errors_named(target_path):
        make_folders(LOCAL, target_path.parent)
        with work_folder(target_path) as work:
            written = work / target_path.name
            _write(target, model, written)
            arrays = _proved(model, written, target)
            if check is not None:
                check(target, written)
            _flush(work)
            put_in_place(written, target_path, work)
        LOCAL.flush_folder(target_path.parent)
    return Saved(
        path=target_path,
        format=target.format,
        arrays=arrays,
        lost=tuple(loss.what for loss in losses if loss.refused),
        notes=tuple(loss.what for loss in losses if not loss.refused),
    )


@contextmanager
def _errors_named(path: Path) -> Iterator[None]:
    """Turn what the file system raises inside the block into ANY-CONVERT-009."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error).partition("\n")[0]
        raise AnyrigError(
            "ANY-CONVERT-009",
            f"{path} was not written: {why}. What was there is as it was",
            hint="give a place that can be written to, with room for the file; --debug shows where it failed",
        ) from error


def target_of(path: Path) -> Target:
    """Return the format that a name asks for; the longest suffix decides."""
    suffixes = sorted(TARGETS, key=len, reverse=True)
    found = next((suffix for suffix in suffixes if suffix and path.name.lower().endswith(suffix)), None)
    if found is None and not path.suffix:
        found = ""
    if found is None or path.name.lower() == found:
        raise UsageError(
            "ANY-CONVERT-001",
            f"{path.name!r} names no format: a model is written to {', '.join(s for s in suffixes if s)}, or to a "
            "SavedModel folder (a name without suffix)",
            hint="choose the suffix of the format that you want",
        )
    return TARGETS[found]


def refuse_losses(losses: list[Lost], target: Target, path: Path, *, lossy: bool) -> None:
    """Raise unless nothing is lost that the caller has not given up."""
    refused = [loss.what for loss in losses if loss.refused]
    if refused and not lossy:
        raise UsageError(
            "ANY-CONVERT-002",
            f"{target.words} cannot hold everything, and {path} was not written. It would lose: {'; '.join(refused)}",
            hint="write a .keras file or an anyrig checkpoint, which hold more; or leave it out: lossy=True (--lossy)",
        )


def _refuse_other_things(path: Path, target: Target) -> None:
    """A file replaces a file, a SavedModel a SavedModel; nothing else is ever removed."""
    if os.path.lexists(f"{path}.index"):
        raise UsageError(
            "ANY-CONVERT-004",
            f"{path} is a TensorFlow checkpoint: its two files cannot be replaced at one moment",
            hint="give another name, or remove it first",
        )
    if not os.path.lexists(path):
        return
    names = sorted(os.listdir(path)) if path.is_dir() else []
    same = (not names or "saved_model.pb" in names) if path.is_dir() and target.folder else path.is_file()
    if not same or path.is_dir() != target.folder:
        raise UsageError(
            "ANY-CONVERT-004",
            f"{path} is something else than {target.words}, and is left as it is",
            hint="give another name, or move it away",
        )
    if others := [name for name in names if name not in _OF_SAVED_MODELS]:
        raise UsageError(
            "ANY-CONVERT-004",
            f"{path} is a SavedModel and has {others[0]!r} as well, which would be lost; it is left as it is",
            hint="give another name, or move what is not of the SavedModel away",
        )


def _write(target: Target, model: keras.Model, path: Path) -> None:
    try:
        target.write(model, path)
    except (AnyrigError, OSError, MemoryError):
        raise
    except ImportError as error:
        raise AnyrigError(
            "ANY-CONVERT-005",
            f"{target.words} is written by a package that is not here: {error}",
            hint=target.install or "install it",
        ) from error
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise AnyrigError(
            "ANY-CONVERT-005",
            f"Keras cannot write this model as {target.words}: {type(error).__name__}: {first}",
            hint="write a .keras file or .safetensors, or change what the message names",
        ) from error


def _proved(model: keras.Model, path: Path, target: Target) -> int:
    """Return how many of the model's variables the file holds bit by bit; raise if it holds fewer than all."""
    if not target.proved:
        return 0
    seeds = {id(generator.state) for _, generator in seed_generators(model)}
    kept = [item for item in model_variables(model) if id(item.variable) not in seeds]
    wanted = Counter(_identity(to_array(item.variable)) for item in kept)
    missing = wanted - Counter(_identity(tensor.array()) for tensor in read_any(path).tensors if tensor.dtype != TEXT)
    if missing:
        raise AnyrigError(
            "ANY-CONVERT-003",
            f"{target.words} was written without {missing.total()} of the {wanted.total()} arrays of the model, and "
            "was removed again",
            hint="some layer keeps state that Keras does not write: use an anyrig checkpoint, anyrig.save(path, model)",
        )
    return wanted.total()


def _identity(array: np.ndarray[Any, Any]) -> tuple[str, tuple[int, ...], str]:
    return array.dtype.name, array.shape, hash_bytes(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _flush(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        LOCAL.flush_folder(Path(parent))
