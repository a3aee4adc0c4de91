"""The header of a safetensors file: built for writing, parsed with suspicion for reading.

Format: 8 bytes little-endian length, then JSON `{name: {dtype, shape, data_offsets}}` padded with spaces, then the
data without holes (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyrig.errors import AnyrigError
from anyrig.store.dtypes import ITEM_BYTES
from anyrig.store.jsonvalues import StrictJsonError, parse_strict

ALIGNMENT = 64
PREFIX_BYTES = 8
_METADATA = "__metadata__"
MAX_HEADER_BYTES = 100_000_000  # as in the official reader


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its data. `dtype` in safetensors spelling."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def build_header(specs: Sequence[TensorSpec], metadata: Mapping[str, str] = {}) -> bytes:
    """Return the bytes before the data, a multiple of 64, of a file that holds `specs` in this order."""
    entries: dict[str, object] = {_METADATA: {"format": "np", **metadata}}
    start = 0
    for spec in specs:
        stop = start + spec.nbytes
        entries[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(PREFIX_BYTES + len(text)) % ALIGNMENT)
    return len(text).to_bytes(PREFIX_BYTES, "little") + text


def read_header(path: Path) -> list[TensorSpec]:
    """Return the tensors that the header of a safetensors file lists, in the order of their data."""
    return header_of(path)[0]


def header_of(path: Path) -> tuple[list[TensorSpec], Mapping[str, str]]:
    """Return the tensors as `read_header` does, and the texts that the file has about itself."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(PREFIX_BYTES), "little")
            if not 2 <= length <= min(size - PREFIX_BYTES, MAX_HEADER_BYTES):
                raise StrictJsonError(f"its header cannot have {length} bytes")
            header = parse_strict(file.read(length))
            return list(_specs(header, size - PREFIX_BYTES - length)), _metadata(header)
    except (StrictJsonError, OSError) as error:
        raise AnyrigError(
            "ANY-LOAD-014",
            f"{path} is not a readable safetensors file: {error}.",
            hint="copy or download the file again, or see what it is with: file PATH",
        ) from error


def _specs(header: Any, data_bytes: int) -> Iterator[TensorSpec]:
    if not isinstance(header, dict):
        raise StrictJsonError("its header is not an object")
    found = [_spec(name, entry) for name, entry in header.items() if name != _METADATA]
    position = 0
    for start, stop, spec in sorted(found, key=lambda item: item[:2]):
        if start != position:
            raise StrictJsonError(f"the data of {spec.name!r} starts at byte {start} instead of {position}")
        position = stop
        yield spec
    if position != data_bytes:
        raise StrictJsonError(f"it has {data_bytes} bytes of data, its header lists {position}")


def _metadata(header: Any) -> Mapping[str, str]:
    found = header.get(_METADATA)
    return {key: text for key, text in found.items() if isinstance(text, str)} if isinstance(found, dict) else {}


def _spec(name: str, entry: Any) -> tuple[int, int, TensorSpec]:
    try:
        dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [start, stop, *shape]
        if not isinstance(dtype, str) or not all(type(number) is int and number >= 0 for number in numbers):
            raise TypeError
    except (TypeError, ValueError, KeyError):
        raise StrictJsonError(f"the header's entry of {name!r} is not valid") from None
    if dtype in ITEM_BYTES and stop - start != math.prod(shape) * ITEM_BYTES[dtype]:
        raise StrictJsonError(f"the shape and the bytes of {name!r} do not fit")
    return start, stop, TensorSpec(name, dtype, tuple(shape), stop - start)
