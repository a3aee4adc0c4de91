"""The reader of HDF5 files: Keras's two layouts, and any other as the tensors that it has."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from anyrig.formats import keras_h5, keras_weights
from anyrig.formats.contents import Budget, Contents
from anyrig.formats.hdf5 import Tree, checksums_of, parse
from anyrig.formats.hdf5_image import MAGIC, Image, image_of

_PLACES = (0, *(512 << shift for shift in range(12)))  # where the format's signature may stand


def recognize(path: Path) -> Path | None:
    """Return the path if it is an HDF5 file."""
    return path if path.is_file() and _has_signature(path) else None


def _has_signature(path: Path) -> bool:
    try:
        with open(path, "rb", buffering=0) as file:
            return any(file.seek(place) == place and file.read(len(MAGIC)) == MAGIC for place in _PLACES)
    except OSError:
        return False


def read(path: Path, budget: Budget) -> Contents:
    """Return what an HDF5 file holds."""
    return contents_of(image_of(path), budget)


def contents_of(image: Image, budget: Budget) -> Contents:
    """Return what an HDF5 file holds, wherever its bytes lie."""
    tree = parse(image, budget)
    checked, unchecked = checksums_of((tree,))
    return dataclasses.replace(_contents(tree, budget), checked=checked, unchecked=unchecked)


def _contents(tree: Tree, budget: Budget) -> Contents:
    if keras_h5.is_legacy(tree):
        return keras_h5.legacy(tree, budget)
    return keras_weights.contents(tree) if keras_weights.is_weights(tree) else _plain(tree)


def _plain(tree: Tree) -> Contents:
    return Contents(
        format="hdf5",
        words="an HDF5 file of no layout of Keras",
        path=tree.image.path,
        tensors=tuple(stored.tensor(path) for path, stored in tree.datasets.items()),
        metadata=dict(tree.attributes[""]),
        files=((tree.image.file, tree.image.size),),
    )
