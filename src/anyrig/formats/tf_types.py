"""TensorFlow's data types, shapes, slices and constant tensors, as its messages write them down.

A constant (`TensorProto`) holds its elements as bytes, or as numbers, the last of which stands for all missing ones;
so a small message can ask for a huge tensor: its declared size is compared with a budget before anything is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from anyrig.formats.contents import TEXT, over_budget
from anyrig.formats.protobuf import Message, varints
from anyrig.store.dtypes import ITEM_BYTES, numpy_dtype

if TYPE_CHECKING:
    import numpy as np

_REFERENCE = 100  # a type plus this is a reference to such a tensor
_MOST_DIMENSIONS = 254

# By number in TensorFlow's types.proto: the spelling here, and the bytes of an element (0: it has no fixed size).
_TYPES: dict[int, tuple[str, int]] = {
    1: ("F32", 4), 2: ("F64", 8), 3: ("I32", 4), 4: ("U8", 1), 5: ("I16", 2), 6: ("I8", 1), 7: (TEXT, 0),
    8: ("C64", 8), 9: ("I64", 8), 10: ("BOOL", 1), 11: ("qint8", 1), 12: ("quint8", 1), 13: ("qint32", 4),
    14: ("BF16", 2), 15: ("qint16", 2), 16: ("quint16", 2), 17: ("U16", 2), 18: ("complex128", 16), 19: ("F16", 2),
    20: ("resource", 0), 21: ("variant", 0), 22: ("U32", 4), 23: ("U64", 8), 24: ("F8_E5M2", 1), 25: ("F8_E4M3", 1),
    26: ("F8_E4M3FNUZ", 1), 27: ("float8_e4m3b11fnuz", 1), 28: ("F8_E5M2FNUZ", 1), 29: ("int4", 1), 30: ("uint4", 1),
    31: ("int2", 1), 32: ("uint2", 1), 33: ("float4_e2m1fn", 1),
}  # fmt: skip


def type_of(number: int) -> tuple[str, int]:
    """Return the spelling of a type, and the bytes of an element: 0 where these differ or are not known."""
    plain = number - _REFERENCE if number > _REFERENCE else number
    return _TYPES.get(plain, (f"type-{number}", 0))


def shape_of(shape: Message) -> tuple[int, ...] | None:
    """Return the sizes in a TensorShapeProto, -1 where one is open; None if not even their number is known."""
    if shape.integer(3):
        return None
    sizes = tuple(dimension.signed(1) for dimension in shape.messages(2))
    if len(sizes) > _MOST_DIMENSIONS or any(size < -1 for size in sizes):
        raise shape.damaged("a shape has too many or negative sizes")
    return sizes


def whole_shape(holder: Message, number: int) -> tuple[int, ...]:
    """Return the sizes in a field that must know all of them."""
    sizes = shape_of(holder.message(number))
    if sizes is None or -1 in sizes:
        raise holder.damaged("a stored tensor has an open shape")
    return sizes


class Slice(NamedTuple):
    """A part of a tensor: the start and the length along each dimension, None for all of it."""

    extents: tuple[tuple[int, int | None], ...]

    def inside(self, shape: tuple[int, ...]) -> tuple[slice, ...] | None:
        """Return it for a tensor of this shape; None if it does not lie inside."""
        if len(self.extents) != len(shape):
            return None
        found = []
        for (start, length), size in zip(self.extents, shape, strict=True):
            end = size if length is None else start + length
            if not 0 <= start <= end <= size:
                return None
            found.append(slice(start, end))
        return tuple(found)


def slice_of(message: Message) -> Slice:
    """Return a TensorSliceProto."""
    return Slice(tuple((extent.signed(1), extent.signed(2) if 2 in extent else None) for extent in message.messages(1)))


# The field of a TensorProto that holds elements of a type, and the numpy type that packed ones have there
# (None: numbers of varying length). The real and imaginary parts of a complex number follow each other.
_VALUES: dict[str, tuple[int, str | None]] = {
    "F32": (5, "<f4"), "F64": (6, "<f8"), "C64": (9, "<f4"), "complex128": (12, "<f8"),
    "F16": (13, None), "BF16": (13, None), "I64": (10, None), "BOOL": (11, None), "U32": (16, None), "U64": (17, None),
    "I32": (7, None), "I16": (7, None), "I8": (7, None), "U8": (7, None), "U16": (7, None), "qint8": (7, None),
    "quint8": (7, None), "qint16": (7, None), "quint16": (7, None), "qint32": (7, None), "int4": (7, None),
    "uint4": (7, None), "int2": (7, None), "uint2": (7, None),
}  # fmt: skip
_BYTES_FIELD = 18  # float8 types


class Constant(NamedTuple):
    """What a TensorProto declares: `nbytes` of elements; of text 0, as its characters are not counted yet."""

    dtype: str
    item_bytes: int
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return the bytes of its elements."""
        return math.prod(self.shape) * self.item_bytes


def constant_of(proto: Message) -> Constant:
    """Return what a TensorProto declares."""
    dtype, item_bytes = type_of(proto.integer(1))
    return Constant(dtype, item_bytes, whole_shape(proto, 2))


def elements_of(proto: Message, file: Path, most_bytes: int) -> np.ndarray[Any, Any]:
    """Return the elements of a TensorProto, flat; of a type unknown to numpy, their bytes.

    The last that is written stands for those that are missing, and zero or empty text if none is.
    """
    import numpy as np

    constant = constant_of(proto)
    count = math.prod(constant.shape)
    written = written_in(proto, constant)
    if written.size > count or (not constant.item_bytes and constant.dtype != TEXT):
        return _exactly(proto, constant, written)
    if written.size < count:
        if count * max(constant.item_bytes, 8) > most_bytes:
            raise over_budget(file, f"a constant of shape {constant.shape} of {written.size} values")
        zero = b"" if constant.dtype == TEXT else np.zeros(1, written.dtype)[0]
        filled = np.empty(count, written.dtype)
        filled[: written.size] = written
        filled[written.size :] = written[-1] if written.size else zero
        written = filled
    return _exactly(proto, constant, written)


def whole_elements_of(proto: Message, constant: Constant) -> np.ndarray[Any, Any]:
    """Return the elements of a TensorProto that writes all of them."""
    return _exactly(proto, constant, written_in(proto, constant))


def _exactly(proto: Message, constant: Constant, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    count = math.prod(constant.shape)
    if (constant.item_bytes or constant.dtype == TEXT) and values.size != count:
        raise proto.damaged(f"{values.size} values for {count} elements")
    return values if constant.dtype in ITEM_BYTES or constant.dtype == TEXT else values.view(np.uint8)


def written_in(proto: Message, constant: Constant) -> np.ndarray[Any, Any]:
    """Return the elements that a TensorProto writes down, of a type without fixed size the message's bytes."""
    import numpy as np

    if constant.dtype == TEXT:
        values = proto.blobs(8)
        found = np.empty(len(values), object)
        found[:] = values
        return found
    if not constant.item_bytes:
        return np.frombuffer(proto.bytes_of(proto.span), np.uint8)
    kind = numpy_dtype(constant.dtype) if constant.dtype in ITEM_BYTES else np.dtype((np.void, constant.item_bytes))
    content = proto.blob(4) or (proto.blob(_BYTES_FIELD) if constant.dtype not in _VALUES else b"")
    if content or constant.dtype not in _VALUES:
        if len(content) % constant.item_bytes:
            raise proto.damaged(f"{len(content)} bytes for elements of {constant.dtype}")
        return np.frombuffer(content, kind)
    return numbers(proto, *_VALUES[constant.dtype], constant.item_bytes, kind)


def numbers(
    proto: Message, number: int, packed: str | None, item_bytes: int, kind: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """Return elements that a field has one by one: in bytes of the type `packed`, or as numbers of varying length."""
    import numpy as np

    try:
        parts = list(_parts(proto, number, packed))
    except ValueError as error:
        raise proto.damaged(f"field {number}: {error}") from None
    raw = np.concatenate(parts) if parts else np.zeros(0, packed or "<u8")
    if packed:  # as many bytes as the elements have
        data = raw.tobytes()
        return np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind)
    width = f"<u{item_bytes}"  # negative numbers are two's complement, cut to the type's width
    return raw.astype(width).view(kind)


def _parts(proto: Message, number: int, packed: str | None) -> Iterator[np.ndarray[Any, Any]]:
    import numpy as np

    for value in proto.values(number):
        if packed is None:
            yield np.array([value], "<u8") if isinstance(value, int) else varints(proto.bytes_of(value))
        elif isinstance(value, int):
            yield np.frombuffer(value.to_bytes(np.dtype(packed).itemsize, "little"), packed)
        else:
            yield np.frombuffer(proto.bytes_of(value), packed)
