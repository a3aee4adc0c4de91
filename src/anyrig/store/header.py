"""The header of a safetensors file: built for writing, parsed with suspicion for reading.

Format: 8 bytes little-endian length, then JSON `{name: {dtype, shape, data_offsets}}` padded with spaces, then the
data without holes (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64
PREFIX_BYTES = 8


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its data. `dtype` in safetensors spelling."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def build_header(specs: Sequence[TensorSpec]) -> bytes:
    """Return the bytes before the data, a multiple of 64, of a file that holds `specs` in this order."""
    entries: dict[str, object] = {"__metadata__": {"format": "np"}}
    start = 0
    for spec in specs:
        stop = start + spec.nbytes
        entries[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(PREFIX_BYTES + len(text)) % ALIGNMENT)
    return len(text).to_bytes(PREFIX_BYTES, "little") + text
