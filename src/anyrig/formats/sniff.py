"""Finds out, by content and not by suffix, which format a path has, and reads it."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import cast

from anyrig.errors import UsageError
from anyrig.formats.archive import is_cut_off
from anyrig.formats.contents import Budget, Contents, Reader, damaged

# Modules under anyrig.formats, imported in turn until one knows the content. Those that are sure come first.
READERS: tuple[str, ...] = (
    "hdf5_file",
    "keras_zip",
    "npz",
    "orbax_folder",
    "keras_weights",
    "safetensors",
    "tf_saved_model",
    "tf_checkpoint",
    "tflite_model",
    "onnx_model",
    "tf_graphdef",
)


def recognized(path: Path) -> tuple[Reader, Path] | None:
    """Return the reader of what is at `path`, and the path under which it reads it."""
    for name in READERS:
        reader = cast(Reader, importlib.import_module(f"anyrig.formats.{name}"))
        if (found := reader.recognize(path)) is not None:
            return reader, found
    return None


def read_any(path: str | os.PathLike[str], budget: Budget = Budget()) -> Contents:  # noqa: B008  (it is immutable)
    """Return what is at `path`, of whatever format. Raises ANY-FORMAT-001 for what no reader knows."""
    given = Path(path).expanduser()
    found = recognized(given)
    if found is None and is_cut_off(given):
        raise damaged(given, "it begins as an archive (.keras, .npz) and ends too early (cut off?)")
    if found is None:
        raise UsageError(
            "ANY-FORMAT-001",
            f"{given} is of no format that is known here{_looks_like(given)}.",
            hint="give the file or folder that holds the weights; see what it is with: file PATH",
        )
    return found[0].read(found[1], budget)


def _looks_like(path: Path) -> str:
    """Say what is there instead, for somebody who gave the wrong thing."""
    if path.is_dir():
        names = sorted(os.listdir(path))
        return f": a folder with {', '.join(names[:5])}{' and more' if len(names) > 5 else ''}" if names else ": empty"
    return ": an empty file" if path.is_file() and not path.stat().st_size else ""
