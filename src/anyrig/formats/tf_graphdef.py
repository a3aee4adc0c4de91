"""Frozen graphs (`GraphDef`): the constants among their nodes, as tensors.

Driven by the file's bytes: a graph begins with a node, which has a name and an operation. The graph is read as data,
and nothing of it is run. Opening notes where each constant lies; its bytes are read again with its blocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyrig.formats.contents import TEXT, Budget, Contents, FileTensor, Role, damaged, over_budget
from anyrig.formats.protobuf import Message, Span, parse, read_varint
from anyrig.formats.tf_table import read_bytes, size_of
from anyrig.formats.tf_types import Constant, constant_of, elements_of

if TYPE_CHECKING:
    import numpy as np

_START_BYTES = 4096
_NODE_FIELD = b"\x0a"  # of a graph: a node; of a node: its name
_OPERATION_FIELD = b"\x12"
_OPERATION = re.compile(rb"[A-Z_][A-Za-z0-9_]*(>[A-Za-z0-9_]+)*")
_FLOATS = ("F16", "BF16", "F32", "F64", "C64")


def recognize(path: Path) -> Path | None:
    """Return the path if it is a file that begins with a node of a graph."""
    try:
        with open(path, "rb") as stream:
            return path if _begins_with_node(stream.read(_START_BYTES)) else None
    except OSError:
        return None


def _begins_with_node(data: bytes) -> bool:
    try:
        if data[:1] != _NODE_FIELD:
            return False
        _, at = read_varint(data, 1, len(data))
        if data[at : at + 1] != _NODE_FIELD:
            return False
        size, at = read_varint(data, at + 1, len(data))
        at += size
        if data[at : at + 1] != _OPERATION_FIELD:
            return False
        size, at = read_varint(data, at + 1, len(data))
    except ValueError:
        return False
    return _OPERATION.fullmatch(data[at : at + size]) is not None and at + size <= len(data)


def read(path: Path, budget: Budget) -> Contents:
    """Return the constants of a graph and, as `function/node`, of its functions."""
    if (size := size_of(path)) > budget.header_bytes:
        raise over_budget(path, f"a graph of {size} bytes")
    graph = parse(read_bytes(path, 0, size), path, budget)
    tensors = [_tensor(path, name, value, budget) for name, value in _constants(graph)]
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise damaged(path, "two nodes have the same name")
    return Contents(
        format="graphdef",
        words="a frozen TensorFlow graph",
        path=path,
        tensors=tuple(tensors),
        metadata={"producer": graph.message(4).integer(1)},
        files=((path.name, size),),
        unchecked=("the numbers: a graph has no checksums",),
        notes=("Its constants are weights and small numbers of its operations; a graph does not tell them apart.",),
    )


def _constants(graph: Message) -> Iterator[tuple[str, Message]]:
    yield from _constants_of(graph.messages(1), "")
    for function in graph.message(2).messages(1):
        yield from _constants_of(function.messages(3), f"{function.message(1).text(1)}/")


def _constants_of(nodes: Iterator[Message], scope: str) -> Iterator[tuple[str, Message]]:
    for node in nodes:
        if node.blob(2) == b"Const":
            value = node.mapping(5).get("value")
            if value is None:
                raise node.damaged("a constant has no value")
            yield scope + node.text(1), value.message(8)


def _tensor(path: Path, name: str, value: Message, budget: Budget) -> FileTensor:
    constant = constant_of(value)
    start, end = value.span
    if max(constant.nbytes, math.prod(constant.shape)) > max(end - start, budget.header_bytes):
        raise over_budget(path, f"{name} of shape {constant.shape} is stored in {end - start} bytes")
    return FileTensor(
        name=name,
        dtype=constant.dtype,
        shape=constant.shape,
        nbytes=_characters(value, constant) if constant.dtype == TEXT else constant.nbytes or end - start,
        origin=path,
        file=path.name,
        read=partial(_read, path, value.span, budget),
        role=_role(constant),
    )


def _characters(value: Message, constant: Constant) -> int:
    """Return the length of all text; the last one stands for those that are not written."""
    lengths = [end - start for start, end in value.spans(8)]
    return sum(lengths) + (math.prod(constant.shape) - len(lengths)) * (lengths[-1] if lengths else 0)


def _role(constant: Constant) -> Role:
    return "weight" if constant.shape and constant.dtype in _FLOATS else "other"


def _read(path: Path, span: Span, budget: Budget) -> Iterator[np.ndarray[Any, Any]]:
    start, end = span
    value = parse(read_bytes(path, start, end - start), path, budget)
    yield elements_of(value, path, budget.header_bytes)
