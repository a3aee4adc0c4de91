"""Keras models: a `.keras` archive (from 2.12 on), or the same unpacked; with one weights file or several.

`config.json` is data here: nothing that it names is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyrig.formats import hdf5_file, keras_weights
from anyrig.formats.archive import Part, folder_parts, zip_names, zip_parts
from anyrig.formats.contents import Budget, Contents, FileTensor, damaged, over_budget
from anyrig.formats.jsontext import json_object

_CONFIG, _METADATA, _ASSETS = "config.json", "metadata.json", "assets/"
_WEIGHTS, _INDEX = "model.weights.h5", "model.weights.json"


def recognize(path: Path) -> Path | None:
    """Return the path if it is an archive or a folder with the files of a Keras model."""
    try:
        names = frozenset(os.listdir(path)) if path.is_dir() else zip_names(path) if path.is_file() else frozenset()
    except OSError:
        return None
    return path if _CONFIG in names and names & {_WEIGHTS, _INDEX, _METADATA} else None


def read(path: Path, budget: Budget) -> Contents:
    """Return the model's weights, configuration and assets."""
    parts = folder_parts(path, budget) if path.is_dir() else zip_parts(path, budget)
    config = _json(path, parts, _CONFIG, budget)
    made = _json(path, parts, _METADATA, budget) if _METADATA in parts else {}
    tensors = _tensors(path, parts, budget)
    compiled = config.get("compile_config")
    old = str(made.get("keras_version", "")).startswith("2.")
    return Contents(
        format="keras-2" if old else "keras",
        words=f"a Keras {2 if old else 3} model" + (" (a folder)" if path.is_dir() else ""),
        path=path,
        tensors=tensors,
        config=config,
        compile_config=compiled if isinstance(compiled, dict) else None,
        written_by={
            key.removesuffix("_version"): value
            for key, value in made.items()
            if key.endswith("_version") and isinstance(value, str)
        },
        metadata={key: value for key, value in made.items() if not key.endswith("_version")},
        assets={name.removeprefix(_ASSETS): part.read for name, part in parts.items() if name.startswith(_ASSETS)},
        files=tuple((part.name, part.size) for part in parts.values()),
        checked=() if path.is_dir() else ("the CRC-32 of each file in the archive",),
        unchecked=("the numbers: an unpacked archive has no checksums",) if path.is_dir() else (),
        notes=() if tensors else ("it holds no weights: the model starts from its initial values",),
    )


def _json(path: Path, parts: Mapping[str, Part], name: str, budget: Budget) -> dict[str, Any]:
    if name not in parts:
        raise damaged(path, f"it has no {name}")
    if parts[name].size > budget.header_bytes:
        raise over_budget(path, f"{name} in it has {parts[name].size} bytes")
    return json_object(path, f"{name} in it", parts[name].read(), budget)


def _tensors(path: Path, parts: Mapping[str, Part], budget: Budget) -> tuple[FileTensor, ...]:
    if _INDEX in parts:
        index = _json(path, parts, _INDEX, budget)
        return keras_weights.sharded(path, index, lambda name: _part(path, parts, name).image(), budget)
    if _WEIGHTS in parts:
        return hdf5_file.contents_of(parts[_WEIGHTS].image(), budget).tensors
    return ()


def _part(path: Path, parts: Mapping[str, Part], name: str) -> Part:
    if name not in parts:
        raise damaged(path, f"its file {name!r} is missing")
    return parts[name]
