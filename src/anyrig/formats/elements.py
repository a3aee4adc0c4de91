"""The elements of a tensor that lies in one piece in a file, as `FileTensor.read` promises them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anyrig.formats.contents import BLOCK_ELEMENTS, TEXT, damaged
from anyrig.formats.hdf5_image import Image
from anyrig.store.check import unreadable
from anyrig.store.dtypes import ITEM_BYTES, numpy_dtype

if TYPE_CHECKING:
    import numpy as np

_BLOCK_BYTES = 2**24


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a dataset's elements; `numpy` is that of the bytes in the file, None where they mean nothing here."""

    dtype: str
    itemsize: int
    numpy: Any
    varying: bool = False


def kind_of(dtype: str) -> Kind:
    """Return how elements of a type are read; of one that is not known here, as bytes."""
    import numpy as np

    return (
        Kind(dtype, ITEM_BYTES[dtype], numpy_dtype(dtype)) if dtype in ITEM_BYTES else Kind("", 1, np.dtype(np.uint8))
    )


def from_bytes(image: Image, kind: Kind, offset: int, elements: int) -> Iterator[np.ndarray[Any, Any]]:
    """Read what lies in one piece."""
    import numpy as np

    if image.held is not None:
        yield plain(image, kind, np.frombuffer(image.held, kind.numpy, elements, offset))
        return
    step = max(1, min(BLOCK_ELEMENTS, _BLOCK_BYTES // kind.itemsize))
    try:
        with open(image.place, "rb", buffering=0) as file:
            file.seek(image.start + offset)
            while elements:
                part = np.fromfile(file, kind.numpy, min(elements, step))
                if not part.size:
                    raise OSError("the file ended early")
                elements -= part.size
                yield plain(image, kind, part)
    except OSError as error:
        raise unreadable(image.place, error) from error


def plain(image: Image, kind: Kind, part: Any) -> np.ndarray[Any, Any]:
    """Return elements as `FileTensor.read` promises them: little-endian, text as `bytes`, unknown types as bytes."""
    import numpy as np

    if kind.dtype == TEXT:
        texts = part.tolist()
        return np.array([text.encode() for text in texts] if part.dtype.kind == "U" else texts, object)
    if kind.dtype not in ITEM_BYTES:
        return np.asarray(part.view(np.uint8))
    if kind.dtype == "BOOL" and part.view(np.uint8).max(initial=0) > 1:
        raise damaged(image.path, "a boolean in it is neither true nor false")
    wanted = numpy_dtype(kind.dtype)
    return np.asarray(part.view(wanted) if part.dtype.kind == "V" else part.astype(wanted, copy=False))
