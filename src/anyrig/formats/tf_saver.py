"""The first Saver format of TensorFlow: one sorted string table that holds names, shapes and the tensors themselves.

Opening reads the first entry alone, which lists all tensors and their slices. A tensor is read by the keys of its
slices. Checksums are those of the table's blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyrig.formats.contents import Budget, FileTensor, damaged, over_budget
from anyrig.formats.protobuf import Message, parse
from anyrig.formats.tf_slices import Piece, joined, slice_key
from anyrig.formats.tf_table import Table, is_table, newer
from anyrig.formats.tf_types import Constant, Slice, slice_of, type_of, whole_elements_of, whole_shape

if TYPE_CHECKING:
    import numpy as np

_KNOWN_VERSION = 1


def is_saver_file(path: Path) -> bool:
    """Say whether a file is a table that is not the index of another format."""
    return path.is_file() and not path.name.endswith(".index") and is_table(path)


def saver_tensors(file: Path, budget: Budget) -> tuple[FileTensor, ...]:
    """Return the tensors of a file, under their names."""
    table = Table(file, budget)
    key, value = next(table.items(), (None, b""))
    if key != b"":
        raise damaged(file, "its first entry does not list tensors")
    meta = parse(value, file, budget).message(1)
    if (needed := meta.message(2).integer(2)) > _KNOWN_VERSION:
        raise newer(file, needed, _KNOWN_VERSION)
    listed = list(meta.messages(1))
    names = {one.text(1) for one in listed}
    if len(names) != len(listed):
        raise damaged(file, "it lists a tensor twice")
    return tuple(_tensor(table, one, budget) for one in listed)


def _tensor(table: Table, listed: Message, budget: Budget) -> FileTensor:
    name, shape = listed.text(1), whole_shape(listed, 2)
    dtype, item_bytes = type_of(listed.integer(3))
    slices = [slice_of(part) for part in listed.messages(4)]
    regions = [part.inside(shape) for part in slices]
    count = sum(math.prod(extent.stop - extent.start for extent in region) for region in regions if region is not None)
    if None in regions or count != math.prod(shape):
        raise damaged(table.file, f"{name}: its slices do not make up its shape {shape}")
    if count * item_bytes > table.size * budget.ratio:
        raise over_budget(table.file, f"{name} of shape {shape} in a file of {table.size} bytes")
    pieces = [
        Piece(region, partial(_read, table, name, part, Constant(dtype, item_bytes, _sizes(region)), budget))
        for part, region in zip(slices, regions, strict=True)
        if region is not None
    ]
    return FileTensor(
        name=name,
        dtype=dtype,
        shape=shape,
        nbytes=count * item_bytes,
        origin=table.file,
        file=table.file.name,
        read=partial(joined, table.file, shape, pieces),
    )


def _sizes(region: tuple[slice, ...]) -> tuple[int, ...]:
    return tuple(extent.stop - extent.start for extent in region)


def _read(table: Table, name: str, part: Slice, constant: Constant, budget: Budget) -> Iterator[np.ndarray[Any, Any]]:
    wanted = slice_key(name.encode(), part)
    key, value = next(table.items(wanted), (None, b""))
    if key != wanted:
        raise damaged(table.file, f"the slice {part.extents} of {name} is missing")
    data = parse(value, table.file, budget).message(2).message(3)
    if data.integer(1) and type_of(data.integer(1))[0] != constant.dtype:  # TensorFlow leaves the type out here
        raise damaged(table.file, f"{name} is listed as {constant.dtype} and stored as another type")
    yield whole_elements_of(data, constant)
