"""Writes TensorFlow's files byte by byte, as TensorFlow would never write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from anyrig.formats.tf_table import FOOTER_BYTES, MAGIC, extend, masked

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def varint(value: int) -> bytes:
    value %= 2**64
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def field(number: int, value: int | bytes | str) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def fixed32(number: int, value: int) -> bytes:
    return varint(number << 3 | 5) + value.to_bytes(4, "little")


def shape(*sizes: int) -> bytes:
    return b"".join(field(2, field(1, size)) for size in sizes)


def block(entries: Sequence[tuple[bytes, bytes]], packed: int = 0) -> bytes:
    body = b"".join(b"\0" + varint(len(key)) + varint(len(value)) + key + value for key, value in entries)
    return sealed(body + bytes(4) + (1).to_bytes(4, "little"), packed)


def sealed(body: bytes, packed: int = 0) -> bytes:
    body += bytes([packed])
    return body + masked(extend(0, body)).to_bytes(4, "little")


def table(*blocks: bytes, last_keys: Sequence[bytes]) -> bytes:
    out, handles = b"", []
    for one, key in zip(blocks, last_keys, strict=True):
        handles.append((key, varint(len(out)) + varint(len(one) - 5)))
        out += one
    index = block(handles)
    place = varint(len(out)) + varint(len(index) - 5)
    return out + index + (b"\0\0" + place).ljust(FOOTER_BYTES - len(MAGIC), b"\0") + MAGIC


def entry(dtype: int, sizes: Sequence[int], start: int, data: bytes, shard: int = 0, size: int | None = None) -> bytes:
    """A BundleEntryProto; without `size`, the data's."""
    return (
        field(1, dtype)
        + field(2, shape(*sizes))
        + field(3, shard)
        + field(4, start)
        + field(5, len(data) if size is None else size)
        + fixed32(6, masked(extend(0, data)))
    )


def write_bundle(
    prefix: Path, entries: Mapping[bytes, bytes], data: bytes, *, header: bytes = field(1, 1) + field(3, field(1, 1))
) -> Path:
    items = [(b"", header), *sorted(entries.items())]
    prefix.with_name(prefix.name + ".index").write_bytes(table(block(items), last_keys=[items[-1][0]]))
    prefix.with_name(prefix.name + ".data-00000-of-00001").write_bytes(data)
    return prefix


def text_data(*texts: bytes) -> tuple[bytes, int]:
    """Return how text is stored, and its checksum as an entry has it."""
    crc = extend(0, b"".join(len(text).to_bytes(4, "little") for text in texts))
    check = masked(crc).to_bytes(4, "little")
    crc = extend(extend(crc, check), b"".join(texts))
    return b"".join(varint(len(text)) for text in texts) + check + b"".join(texts), masked(crc)


def write_objects(prefix: Path, nodes: Sequence[bytes], values: Mapping[str, bytes]) -> Path:
    """Write float32 vectors by their keys, and the graph of the objects that they belong to."""
    data, entries = b"", {}
    for key, value in values.items():
        entries[key.encode()] = entry(1, [len(value) // 4], len(data), value)
        data += value
    graph, crc = text_data(b"".join(field(1, node) for node in nodes))
    stored = field(1, 7) + field(2, b"") + field(4, len(data)) + field(5, len(graph)) + fixed32(6, crc)
    return write_bundle(prefix, entries | {OBJECT_GRAPH.encode(): stored}, data + graph)


def node(
    children: Mapping[str, int] | None = None,
    attributes: Sequence[tuple[str, str, str]] = (),
    slots: Sequence[tuple[int, str, int]] = (),
) -> bytes:
    """An object: children by name, attributes (name, full name, key), slots (variable, name, slot)."""
    links = b"".join(field(1, field(1, number) + field(2, name)) for name, number in (children or {}).items())
    stored = b"".join(field(2, field(1, name) + field(2, full) + field(3, key)) for name, full, key in attributes)
    slotted = b"".join(field(3, field(1, of) + field(2, name) + field(3, slot)) for of, name, slot in slots)
    return links + stored + slotted


def variable(key: str, full_name: str = "") -> bytes:
    return node(attributes=[("VARIABLE_VALUE", full_name, key + VALUE)])
