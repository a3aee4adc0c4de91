"""Arrays of numpy: `.npy` files and `.npz` archives of them. Python objects in them (pickle) are never read."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

from anyrig.errors import AnyrigError
from anyrig.formats.archive import Part, zip_names, zip_parts
from anyrig.formats.contents import TEXT, Budget, Contents, FileTensor, damaged
from anyrig.formats.elements import Kind, from_bytes, plain
from anyrig.formats.hdf5_image import image_of
from anyrig.store.dtypes import spelling_of

if TYPE_CHECKING:
    import numpy as np

_MAGIC = b"\x93NUMPY"
_HEAD_BYTES = 2**14  # numpy itself refuses longer descriptions

_NO_HEADER = (ValueError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError, EOFError, Warning)


def recognize(path: Path) -> Path | None:
    """Return the path if it is an array of numpy or an archive of nothing else."""
    if not path.is_file():
        return None
    try:
        with open(path, "rb") as file:
            if file.read(len(_MAGIC)) == _MAGIC:
                return path
    except OSError:
        return None
    names = zip_names(path)
    return path if names and all(name.endswith(".npy") for name in names) else None


def read(path: Path, budget: Budget) -> Contents:
    """Return the arrays of a file or archive; an array of Python objects is listed and cannot be read."""
    names = zip_names(path)
    if names:
        parts = tuple(zip_parts(path, budget).values())
    else:
        whole = image_of(path)
        parts = (Part(path.name, whole.size, lambda: whole, whole.head),)
    return Contents(
        format="npz",
        words="an archive of numpy arrays" if names else "a numpy array",
        path=path,
        tensors=tuple(_tensor(path, part) for part in parts),
        files=tuple((part.name, part.size) for part in parts),
        checked=("the CRC-32 of each file in the archive",) if names else (),
        unchecked=() if names else ("the numbers: numpy's files have no checksums",),
    )


def _tensor(path: Path, part: Part) -> FileTensor:
    shape, fortran, dtype, offset = _description(path, part)
    spelling = TEXT if dtype.kind in "SU" and dtype.itemsize else spelling_of(dtype)
    kind = Kind(spelling or str(dtype), dtype.itemsize, dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and offset + nbytes != part.size:
        raise damaged(path, f"{part.name!r} describes {nbytes} bytes and has {part.size - offset}")
    return FileTensor(
        name=part.name.removesuffix(".npy"),
        dtype=kind.dtype,
        shape=shape,
        nbytes=part.size - offset,
        origin=path,
        file=part.name,
        read=partial(_read, path, part, kind, shape, offset, fortran and len(shape) > 1),
    )


def _description(path: Path, part: Part) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    from numpy.lib import format as npy

    head = io.BytesIO(part.head(_HEAD_BYTES))
    try:
        version = npy.read_magic(head)
        if version not in ((1, 0), (2, 0), (3, 0)):
            raise ValueError(f"of the unknown version {version}")
        reader = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = reader(head)
    except _NO_HEADER as error:
        raise damaged(path, f"{part.name!r} in it is no numpy array: {error}") from error
    if not all(type(size) is int and size >= 0 for size in shape) or not dtype.itemsize:
        raise damaged(path, f"{part.name!r} in it has the shape {shape}, of {dtype.itemsize} bytes each")
    return shape, fortran, dtype, head.tell()


def _read(
    path: Path, part: Part, kind: Kind, shape: tuple[int, ...], offset: int, fortran: bool
) -> Iterator[np.ndarray[Any, Any]]:
    if kind.numpy.hasobject:
        raise AnyrigError(
            "ANY-FORMAT-034",
            f"{part.name!r} in {path} holds Python objects (pickle): reading them could run code.",
            hint="ask the sender for plain arrays: np.savez(PATH, name=array)",
        )
    import numpy as np

    image = part.image()
    image.check()
    if fortran:  # the elements do not lie in C order: all of them are needed for the first row
        with image.stream() as stream:
            stream.seek(offset)
            raw = stream.read() or b""
        yield plain(image, kind, np.frombuffer(raw, kind.numpy).reshape(shape, order="F").reshape(-1))
    elif 0 not in shape:
        yield from from_bytes(image, kind, offset, math.prod(shape))
