"""TFLite (LiteRT) models: tensors that have data, signatures, and what the writer said.

Read as data from the FlatBuffer itself
(https://github.com/google-ai-edge/LiteRT/blob/main/tflite/converter/schema/schema.fbs): no package is needed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyrig.formats.contents import Budget, Contents, FileTensor, Signature, TensorSignature, damaged
from anyrig.formats.elements import from_bytes, kind_of
from anyrig.formats.flatbuffer import Table, root
from anyrig.formats.hdf5_image import image_of
from anyrig.formats.mapped import mapped
from anyrig.formats.protobuf import Span
from anyrig.store.dtypes import ITEM_BYTES

if TYPE_CHECKING:
    import numpy as np

_IDENTIFIER = b"TFL3"
# By number in the schema: the spelling here. Those that safetensors does not know are given as bytes.
_TYPES = (
    "F32", "F16", "I32", "U8", "I64", "text of TFLite", "BOOL", "I16", "C64", "I8", "F64", "complex128", "U64",
    "resource", "variant", "U32", "U16", "int4", "BF16", "int2",
)  # fmt: skip
_FLOATS = ("F32", "F16", "BF16", "F64")


def recognize(path: Path) -> Path | None:
    """Return the path if it is a file with the identifier of TFLite."""
    try:
        with open(path, "rb") as file:
            return path if file.read(8)[4:] == _IDENTIFIER else None
    except OSError:
        return None


def read(path: Path, budget: Budget) -> Contents:
    """Return the tensors of a model whose values are stored. Raises ANY-FORMAT-002 and 003."""
    with mapped(path) as data:
        model = root(data, path, budget.tensors)
        spans = [_span(buffer) for buffer in model.tables(4)]
        graphs = [list(graph.tables(0)) for graph in model.tables(2)]
        stored = [one for tensors in graphs for one in tensors if _has_data(one, spans)]
        quantised = sum(_is_quantised(one) for one in stored)
        return Contents(
            format="tflite",
            words="a TFLite model",
            path=path,
            tensors=_apart([_tensor(path, one, spans[one.number(2, "I")]) for one in stored]),
            signatures=tuple(_signatures(model, graphs)),
            metadata={"version": model.number(0, "I"), "description": model.text(3)},
            files=((path.name, len(data)),),
            unchecked=("the numbers: TFLite has no checksums",),
            notes=(f"{quantised} tensors are quantised: their numbers are those that are stored",) if quantised else (),
        )


def _span(buffer: Table) -> Span:
    """Return where a buffer lies: inside its table, or, of large models, behind them."""
    start, size = buffer.number(1, "Q"), buffer.number(2, "Q")
    if start <= 1:
        return buffer.span(0)
    if start + size > len(buffer.data):
        raise damaged(buffer.file, f"a buffer at byte {start} ends after the file")
    return start, start + size


def _has_data(tensor: Table, spans: Sequence[Span]) -> bool:
    number = tensor.number(2, "I")
    if number >= len(spans):
        raise damaged(tensor.file, f"{tensor.text(3)!r} is in buffer {number} of {len(spans)}")
    return spans[number][0] < spans[number][1]


def _is_quantised(tensor: Table) -> bool:
    return any(one.numbers(2) for one in tensor.table(4))  # it has scales


def _tensor(path: Path, tensor: Table, span: Span) -> FileTensor:
    name, shape, dtype = tensor.text(3), tensor.numbers(0), _type(tensor)
    size, item_bytes = span[1] - span[0], ITEM_BYTES.get(dtype, 0)
    if any(length < 0 for length in shape) or (item_bytes and math.prod(shape) * item_bytes != size):
        raise damaged(path, f"{name!r} of shape {shape} has {size} bytes")
    return FileTensor(
        name=name,
        dtype=dtype,
        shape=shape,
        nbytes=size,
        origin=path,
        file=path.name,
        read=partial(_read, path, dtype, span),
        role="weight" if dtype in _FLOATS or _is_quantised(tensor) else "other",
    )


def _type(tensor: Table) -> str:
    number = tensor.number(1, "b")
    return _TYPES[number] if 0 <= number < len(_TYPES) else f"type-{number}"


def _apart(tensors: Sequence[FileTensor]) -> tuple[FileTensor, ...]:
    """Number the tensors whose name another one has, too (each graph of a model has its own)."""
    counts, seen = Counter(tensor.name for tensor in tensors), Counter[str]()
    found = []
    for tensor in tensors:
        seen[tensor.name] += 1
        name = f"{tensor.name}#{seen[tensor.name]}" if counts[tensor.name] > 1 else tensor.name
        found.append(replace(tensor, name=name))
    return tuple(found)


def _read(path: Path, dtype: str, span: Span) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the elements; of a type that is not known here, the bytes."""
    kind = kind_of(dtype)
    yield from from_bytes(image_of(path), kind, span[0], (span[1] - span[0]) // kind.itemsize)


def _signatures(model: Table, graphs: Sequence[Sequence[Table]]) -> Iterator[Signature]:
    """Yield the signatures that are named, or what the first graph takes and gives."""
    named = list(model.tables(7))
    for one in named:
        tensors = graphs[number] if (number := one.number(4, "I")) < len(graphs) else ()
        ends = [[_end(end.text(0), tensors, end.number(1, "I")) for end in one.tables(field)] for field in (0, 1)]
        yield Signature(one.text(2), tuple(filter(None, ends[0])), tuple(filter(None, ends[1])))
    if not named:
        for graph, tensors in list(zip(model.tables(2), graphs, strict=True))[:1]:
            ends = [[_end("", tensors, number) for number in graph.numbers(field)] for field in (1, 2)]
            yield Signature(graph.text(3) or "main", tuple(filter(None, ends[0])), tuple(filter(None, ends[1])))


def _end(name: str, tensors: Sequence[Table], number: int) -> TensorSignature | None:
    if not 0 <= number < len(tensors):
        return None
    tensor = tensors[number]
    shape = tensor.numbers(7) or tensor.numbers(0)
    return TensorSignature(name or tensor.text(3), _type(tensor), tuple(None if size < 0 else size for size in shape))
