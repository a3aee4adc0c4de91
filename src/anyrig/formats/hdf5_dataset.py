"""One dataset of an HDF5 file: what it is, whether that much is stored, and its elements block by block.

Data in one piece is read from the file itself, without the HDF5 library. Of compressed data each chunk is unpacked
within bounds first, for the library would follow a stream to any length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NoReturn

from anyrig.errors import AnyrigError
from anyrig.formats.contents import TEXT, Budget, FileTensor, Role, damaged, over_budget, unsafe
from anyrig.formats.elements import Kind, from_bytes, plain
from anyrig.formats.hdf5_chunks import check_chunks
from anyrig.formats.hdf5_image import Image, library_faults, opened
from anyrig.formats.hdf5_texts import REFERENCE_BYTES
from anyrig.store.dtypes import ITEM_BYTES, spelling_of

if TYPE_CHECKING:
    import numpy as np

_TAGS = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
"""What Keras writes into the attribute `dtype` of data for which HDF5 has no type. Without it nothing is guessed."""

_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 32000: "lzf"}
_PIPELINES = {
    (*shuffle, *packed, *summed)
    for shuffle in ((), ("shuffle",))
    for packed in ((), ("gzip",), ("lzf",))
    for summed in ((), ("fletcher32",))
}
_SLAB_BYTES = 2**24
_MOST_SLAB_BYTES = 2**28
_SMALL = 2**20


@dataclass(frozen=True, slots=True)
class Stored:
    """A dataset. `dtype` as in `FileTensor`; `stored_bytes` is what it takes in the file.

    `varying` texts lie elsewhere in the file. Chunks that are `summed` have checksums, compared when they are read.
    """

    image: Image
    path: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    stored_bytes: int
    read: Any
    varying: bool
    summed: bool

    def tensor(
        self,
        name: str,
        *,
        aliases: tuple[str, ...] = (),
        role: Role = "weight",
        of: str | None = None,
        slot: str | None = None,
    ) -> FileTensor:
        """Return it under a name, with its path in the file as a further one."""
        paths = (alias for alias in (*aliases, self.path) if alias != name)
        return FileTensor(
            name=name,
            dtype=self.dtype,
            shape=self.shape,
            nbytes=self.nbytes,
            origin=self.image.path,
            file=self.image.file,
            read=self.read,
            aliases=tuple(dict.fromkeys(paths)),
            role=role,
            of=of,
            slot=slot,
        )


def stored(image: Image, found: Any, path: str, tag: str | None, budget: Budget, base: int = 0) -> Stored:
    """Return a dataset after the checks: all of it is in this file, and no more is promised than is stored."""
    import h5py

    plan, space = found.get_create_plist(), found.get_space()
    layout = plan.get_layout()
    if layout == h5py.h5d.VIRTUAL or plan.get_external_count():
        raise unsafe(image.path, f"the data of {path!r} lies in another file")
    kind = _kind(found.get_type(), tag)
    extent = space.get_simple_extent_type()
    shape = (0,) if extent == h5py.h5s.NULL else tuple(space.get_simple_extent_dims())
    nbytes = math.prod(shape) * kind.itemsize
    held = found.get_storage_size() if nbytes else 0
    filters = _filters(image, plan, path) if layout == h5py.h5d.CHUNKED else ()
    if nbytes > held * (budget.ratio if "gzip" in filters or "lzf" in filters else 1):
        raise over_budget(image.path, f"{path!r} claims {nbytes} bytes, and {held} are stored for it")
    if layout == h5py.h5d.CHUNKED:
        _check_plan(image, plan, path, kind, nbytes)
    offset = found.get_offset() if layout == h5py.h5d.CONTIGUOUS else None
    if offset is not None and offset + nbytes > image.size:
        raise damaged(image.path, f"the data of {path!r} would end after the file")
    if nbytes and layout == h5py.h5d.CONTIGUOUS and offset is None:
        raise over_budget(image.path, f"{path!r} claims {nbytes} bytes, and none are stored for it")
    if kind.varying and nbytes and offset is None:
        kind = Kind("text in chunks", kind.itemsize, None)
    read = partial(_read, image, path, kind, shape, offset, filters)
    if kind.varying:
        nbytes = image.text_bytes(_references(image, offset, nbytes), base, path) if offset is not None else 0
        if nbytes > image.size:
            raise over_budget(image.path, f"{path!r} repeats texts to {nbytes} bytes, more than the whole file has")
    return Stored(image, path, kind.dtype, shape, nbytes, held, read, kind.varying, "fletcher32" in filters)


def _references(image: Image, offset: int, nbytes: int) -> bytes:
    """Return where texts of variable length are said to be."""
    with image.mapped() as data:
        return data[image.start + offset : image.start + offset + nbytes]


def _kind(stored_type: Any, tag: str | None) -> Kind:
    import h5py
    import numpy as np

    itemsize, of = stored_type.get_size(), stored_type.get_class()
    if of == h5py.h5t.STRING:
        if stored_type.is_variable_str():
            return Kind(TEXT, REFERENCE_BYTES, np.dtype(object), varying=True)
        return Kind(TEXT, itemsize, np.dtype(f"S{itemsize}"))
    if of == h5py.h5t.OPAQUE:
        spelling = _TAGS.get(tag or "", "")
        known = ITEM_BYTES.get(spelling) == itemsize
        return Kind(spelling if known else f"V{itemsize}", itemsize, np.dtype(f"V{itemsize}"))
    numpy = _exact(stored_type) if of in (h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.ENUM, h5py.h5t.COMPOUND) else None
    number = spelling_of(numpy) if numpy is not None else None
    return Kind(number, itemsize, numpy) if number else Kind(f"HDF5 class {of}", itemsize, None)


def _exact(stored_type: Any) -> Any:
    """Return the numpy type that has the very bits of a number, of a boolean or of a complex number; else None."""
    import h5py
    import numpy as np

    try:
        dtype = stored_type.dtype
        same = dtype.kind in "biufc" and stored_type.equal(h5py.h5t.py_create(dtype, logical=True))
    except (TypeError, ValueError, KeyError):
        return None
    plain = np.dtype(dtype.str)  # without the metadata in which h5py notes an enumeration
    return plain if same and (dtype.kind == "b" or not dtype.metadata) else None


def _filters(image: Image, plan: Any, path: str) -> tuple[str, ...]:
    found = [plan.get_filter(index) for index in range(plan.get_nfilters())]
    names = tuple(_FILTERS.get(entry[0], f"number {entry[0]}") for entry in found)
    if names not in _PIPELINES:
        raise AnyrigError(
            "ANY-FORMAT-030",
            f"{path!r} in {image.path} is packed with filters that are not read here: {', '.join(names)}.",
            hint="write the file anew without them, e.g. with: h5repack -f GZIP=4 IN OUT",
        )
    return names


def _check_plan(image: Image, plan: Any, path: str, kind: Kind, nbytes: int) -> None:
    chunk = math.prod(plan.get_chunk()) * kind.itemsize
    if chunk > max(2 * nbytes, _SMALL):
        raise over_budget(image.path, f"a chunk of {path!r} claims {chunk} bytes, the whole has {nbytes}")
    for index in range(plan.get_nfilters()):
        number, _, values, _ = plan.get_filter(index)
        if _FILTERS[number] == "lzf" and len(values) > 2 and values[2] > max(2 * chunk, _SMALL):
            raise over_budget(image.path, f"the filter of {path!r} asks for {values[2]} bytes for {chunk}")


def _read(
    image: Image, path: str, kind: Kind, shape: tuple[int, ...], offset: int | None, filters: tuple[str, ...]
) -> Iterator[np.ndarray[Any, Any]]:
    image.check()
    if kind.numpy is None:
        _refuse_type(image, path, kind)
    if 0 in shape:
        return
    with library_faults(image, path):
        if offset is None or kind.varying:
            yield from _from_library(image, path, kind, shape, filters)
        else:
            yield from from_bytes(image, kind, offset, math.prod(shape))


def _refuse_type(image: Image, path: str, kind: Kind) -> NoReturn:
    raise AnyrigError(
        "ANY-FORMAT-031",
        f"{path!r} in {image.path} has elements of a type that is not read here ({kind.dtype}).",
        hint="only numbers, booleans, text and raw bytes are; leave it out, or write it in such a type",
    )


def _from_library(
    image: Image, path: str, kind: Kind, shape: tuple[int, ...], filters: tuple[str, ...]
) -> Iterator[np.ndarray[Any, Any]]:
    """Read what lies in chunks, in the header, or elsewhere in the file (texts of variable length)."""
    import h5py

    with opened(image) as file, library_faults(image, path):
        found = h5py.h5o.open(file.id, path.encode())
        plan = found.get_create_plist()
        chunked = plan.get_layout() == h5py.h5d.CHUNKED
        chunk = plan.get_chunk() if chunked else shape
        if chunked:
            check_chunks(image, found, path, filters, math.prod(chunk) * kind.itemsize)
        for start, count in _slabs(image, path, shape, (1,) * len(shape) if kind.varying else chunk, kind.itemsize):
            yield plain(image, kind, _slab(found, kind, start, count))


def _slab(found: Any, kind: Kind, start: tuple[int, ...], count: tuple[int, ...]) -> np.ndarray[Any, Any]:
    import h5py
    import numpy as np

    space = found.get_space()
    if start:
        space.select_hyperslab(start, count)
    part = np.empty(count, found.dtype if kind.varying else kind.numpy)
    found.read(h5py.h5s.create_simple(count) if count else space, space, part)
    return part.reshape(-1)


def _slabs(
    image: Image, path: str, shape: tuple[int, ...], chunk: tuple[int, ...], itemsize: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield corners and sizes of parts, in C order, that together are the whole, so that no chunk is unpacked twice."""
    if not shape:
        yield (), ()
        return
    axis, row = 0, math.prod(shape[1:]) * itemsize
    while min(chunk[axis], shape[axis]) * row > _MOST_SLAB_BYTES and chunk[axis] == 1 and axis + 1 < len(shape):
        axis, row = axis + 1, row // shape[axis + 1]
    if min(chunk[axis], shape[axis]) * row > _MOST_SLAB_BYTES:
        raise over_budget(image.path, f"{path!r} is cut into chunks that cannot be read in order within bounds")
    rows = max(1, _SLAB_BYTES // (row * chunk[axis])) * chunk[axis]
    for outer in product(*(range(size) for size in shape[:axis])):
        for first in range(0, shape[axis], rows):
            start = (*outer, first, *(0 for _ in shape[axis + 1 :]))
            yield start, (*(1 for _ in outer), min(rows, shape[axis] - first), *shape[axis + 1 :])
