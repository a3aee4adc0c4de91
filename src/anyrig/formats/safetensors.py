"""Safetensors files: one, or several with their index (`model.safetensors.index.json`), named by file or folder."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyrig.formats.contents import BLOCK_ELEMENTS, Budget, Contents, FileTensor
from anyrig.store.check import unreadable
from anyrig.store.dtypes import ITEM_BYTES, numpy_dtype
from anyrig.store.header import TensorSpec, read_header
from anyrig.store.layout import DATA_SUFFIX

if TYPE_CHECKING:
    import numpy as np


def recognize(path: Path) -> Path | None:
    """Return the path if it is a safetensors file."""
    return path if path.is_file() and path.name.endswith(DATA_SUFFIX) else None


def read(path: Path, budget: Budget) -> Contents:
    """Return the tensors of a safetensors file, which records no checksums."""
    specs = read_header(path)
    start = path.stat().st_size - sum(spec.nbytes for spec in specs)  # the header was checked: data fills the file
    tensors = []
    for spec in specs:
        tensors.append(_tensor(spec, path, start))
        start += spec.nbytes
    return Contents(
        format="safetensors",
        words="a safetensors file",
        path=path,
        tensors=tuple(tensors),
        files=((path.name, path.stat().st_size),),
    )


def _tensor(spec: TensorSpec, path: Path, start: int) -> FileTensor:
    return FileTensor(
        name=spec.name,
        dtype=spec.dtype,
        shape=spec.shape,
        nbytes=spec.nbytes,
        origin=path,
        file=path.name,
        read=partial(read_raw, path, spec.dtype, start, spec.nbytes),
    )


def read_raw(file: Path, dtype: str, start: int, nbytes: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the elements of `nbytes` of a file from `start` on; of an unknown type, the bytes."""
    import numpy as np

    kind = numpy_dtype(dtype) if dtype in ITEM_BYTES else np.dtype(np.uint8)
    left = nbytes // kind.itemsize
    try:
        with open(file, "rb", buffering=0) as stream:
            stream.seek(start)
            while left:
                block = np.fromfile(stream, kind, min(left, BLOCK_ELEMENTS))
                if not block.size:
                    raise OSError(0, "the file ended early")
                left -= block.size
                yield block
    except OSError as error:
        raise unreadable(file, error) from error
