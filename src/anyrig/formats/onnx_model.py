"""ONNX models: their initialisers as tensors, inputs, outputs, and who wrote them.

Read as data from the protocol buffer itself (https://github.com/onnx/onnx/blob/main/onnx/onnx.proto): the onnx package
is not needed. Data that a model keeps in files beside it is read from its own folder alone.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from anyrig.formats.contents import TEXT, Budget, Contents, FileTensor, Signature, TensorSignature, damaged, over_budget
from anyrig.formats.elements import from_bytes, kind_of
from anyrig.formats.hdf5_image import image_of
from anyrig.formats.mapped import mapped
from anyrig.formats.protobuf import Message, Span, parse, read_varint
from anyrig.formats.shards import safe_member
from anyrig.formats.tf_types import numbers
from anyrig.store.dtypes import ITEM_BYTES, numpy_dtype

if TYPE_CHECKING:
    import numpy as np

_VERSION, _GRAPH, _OPSETS = 1, 7, 8
_MODEL_FIELDS = frozenset({*range(1, 9), 14, 20, 25, 26})
_NEWEST = 100  # versions of the format are small numbers
_MOST_FIELDS = 1000
_ELSEWHERE = 1
_FLOATS = ("F16", "BF16", "F32", "F64", "C64", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")

# By number in onnx.proto: the spelling here, and the bytes of an element (0: several in a byte, or of no fixed size).
_TYPES = {
    1: ("F32", 4), 2: ("U8", 1), 3: ("I8", 1), 4: ("U16", 2), 5: ("I16", 2), 6: ("I32", 4), 7: ("I64", 8), 8: (TEXT, 0),
    9: ("BOOL", 1), 10: ("F16", 2), 11: ("F64", 8), 12: ("U32", 4), 13: ("U64", 8), 14: ("C64", 8),
    15: ("complex128", 16), 16: ("BF16", 2), 17: ("F8_E4M3", 1), 18: ("F8_E4M3FNUZ", 1), 19: ("F8_E5M2", 1),
    20: ("F8_E5M2FNUZ", 1), 21: ("uint4", 0), 22: ("int4", 0), 23: ("float4_e2m1fn", 0),
}  # fmt: skip
# The field of elements that are not written as raw bytes, and how they are packed there (see `tf_types.numbers`).
_VALUES: dict[str, tuple[int, str | None]] = {
    "F32": (4, "<f4"), "C64": (4, "<f4"), "F64": (10, "<f8"), "I64": (7, None), "U32": (11, None), "U64": (11, None),
}  # fmt: skip
_OTHERS: tuple[int, str | None] = (5, None)


class _Place(NamedTuple):
    """Where the raw bytes of a tensor lie; without `file`, its message in the model has its elements."""

    file: Path | None
    span: Span


def recognize(path: Path) -> Path | None:
    """Return the path if it is a file that is laid out as a model of ONNX."""
    try:
        with mapped(path) as data:
            return path if _is_model(data) else None
    except (OSError, ValueError):
        return None


def _is_model(data: bytes | mmap.mmap) -> bool:
    """Tell by the fields of the outermost message: a version, a graph, and no other than a model has."""
    if data[:1] != b"\x08":
        return False
    version, at = read_varint(data, 1, min(len(data), 16))
    seen = {_VERSION}
    for _ in range(_MOST_FIELDS):
        if at >= len(data):
            break
        key, at = read_varint(data, at, len(data))
        if key >> 3 not in _MODEL_FIELDS or key & 7 not in (0, 2):
            return False
        size, at = read_varint(data, at, len(data))
        at += size if key & 7 == 2 else 0
        seen.add(key >> 3)
    return version <= _NEWEST and _GRAPH in seen and (_OPSETS in seen or at > len(data))


def read(path: Path, budget: Budget) -> Contents:
    """Return the initialisers of a model. Raises ANY-FORMAT-002 to 004."""
    with mapped(path) as data:
        model = parse(data, path, budget)
        graph = model.message(_GRAPH)
        tensors = tuple(_tensor(path, proto) for proto in graph.messages(5))
        inside = {tensor.name for tensor in tensors}
        if len(inside) != len(tensors):
            raise damaged(path, "two initialisers have the same name")
        writer = model.text(2)
        files = dict.fromkeys([path.name, *(tensor.file for tensor in tensors)])
        return Contents(
            format="onnx",
            words="an ONNX model",
            path=path,
            tensors=tensors,
            written_by={writer: model.text(3)} if writer else {},
            signatures=(_signature(graph, inside),),
            metadata={
                "ir_version": model.integer(_VERSION),
                "opset": {one.text(1) or "ai.onnx": one.integer(2) for one in model.messages(_OPSETS)},
                **{entry.text(1): entry.text(2) for entry in model.messages(14)},
            },
            files=tuple((name, (path.parent / name).stat().st_size) for name in files),
            unchecked=("the numbers: ONNX has no checksums",),
        )


def _signature(graph: Message, inside: set[str]) -> Signature:
    given = (_end(value) for value in graph.messages(11))
    outputs = tuple(_end(value) for value in graph.messages(12))
    return Signature(graph.text(2) or "main", tuple(each for each in given if each.name not in inside), outputs)


def _end(value: Message) -> TensorSignature:
    kind = value.message(2).message(1)
    shape = tuple(one.signed(1) if 1 in one else None for one in kind.message(2).messages(1)) if 2 in kind else None
    return TensorSignature(value.text(1), _type(kind.integer(1))[0], shape)


def _type(number: int) -> tuple[str, int]:
    return _TYPES.get(number, (f"type-{number}", 0))


def _tensor(path: Path, proto: Message) -> FileTensor:
    name, (dtype, item_bytes) = proto.text(8), _type(proto.integer(2))
    shape = _shape(proto)
    place = _place(path, proto)
    size = place.span[1] - place.span[0]
    if place.file is not None and item_bytes and math.prod(shape) * item_bytes != size:
        raise damaged(path, f"{name!r} of shape {shape} has {size} bytes")
    if math.prod(shape) > max(8 * size, 1):  # no type has more elements than bits
        raise over_budget(path, f"{name!r} of shape {shape} is stored in {size} bytes")
    return FileTensor(
        name=name,
        dtype=dtype,
        shape=shape,
        nbytes=math.prod(shape) * item_bytes if item_bytes else size,
        origin=path,
        file=path.name if place.file is None else place.file.relative_to(path.parent).as_posix(),
        read=partial(_read, path, place, dtype, shape),
        role="weight" if dtype in _FLOATS else "other",
    )


def _shape(proto: Message) -> tuple[int, ...]:
    """Return the sizes, which are written one by one or packed."""
    import numpy as np

    sizes = numbers(proto, 1, None, 8, np.dtype("<i8")).tolist()
    if any(size < 0 for size in sizes):
        raise proto.damaged(f"a tensor has the shape {sizes}")
    return tuple(sizes)


def _place(path: Path, proto: Message) -> _Place:
    if proto.integer(14) != _ELSEWHERE:
        return _Place(path, proto.spans(9)[-1]) if 9 in proto else _Place(None, proto.span)
    said = {entry.text(1): entry.text(2) for entry in proto.messages(13)}
    file = safe_member(path.parent, said.get("location", ""))
    try:
        start = int(said.get("offset", "0"))
        end = start + int(said["length"]) if "length" in said else file.stat().st_size
    except ValueError:
        raise proto.damaged("a tensor in another file has a place that is no number") from None
    if not 0 <= start <= end <= file.stat().st_size:
        raise proto.damaged(f"a tensor would lie outside {file.name}")
    return _Place(file, (start, end))


def _read(path: Path, place: _Place, dtype: str, shape: tuple[int, ...]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the elements; of a type that is not known here, the bytes."""
    start, end = place.span
    if place.file is not None:
        kind = kind_of(dtype)
        yield from from_bytes(image_of(place.file, path), kind, start, (end - start) // kind.itemsize)
        return
    with mapped(path) as data:
        proto = parse(data[start:end], path, Budget())
    values = _listed(proto, dtype)
    if (dtype in ITEM_BYTES or dtype == TEXT) and values.size != math.prod(shape):
        raise damaged(path, f"{proto.text(8)!r} has {values.size} values for the shape {shape}")
    yield values


def _listed(proto: Message, dtype: str) -> np.ndarray[Any, Any]:
    """Return elements that are not written as raw bytes."""
    import numpy as np

    if dtype == TEXT:
        texts = np.empty(len(proto.spans(6)), object)
        texts[:] = proto.blobs(6)
        return texts
    if dtype in ITEM_BYTES:
        number, packed = _VALUES.get(dtype, _OTHERS)
        return numbers(proto, number, packed, ITEM_BYTES[dtype], numpy_dtype(dtype))
    return np.frombuffer(proto.bytes_of(proto.span), np.uint8)
