"""The chunks of an HDF5 dataset, checked before the library unpacks them: it trusts each to have the size it should.

A stream that goes on would make it allocate without bound; one that ends early, read what is behind its buffer.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from anyrig.formats.contents import damaged, over_budget
from anyrig.formats.hdf5_image import Image

_CHECKSUM_BYTES = 4
_SLACK = 2**20


def check_chunks(image: Image, found: Any, path: str, filters: Sequence[str], size: int) -> None:
    """Raise ANY-FORMAT-002 or 003 unless each chunk unpacks to `size` bytes. `filters` are in the order of writing."""
    chunks: list[Any] = []
    found.chunk_iter(chunks.append)
    for chunk in chunks:
        applied = [name for index, name in enumerate(filters) if not chunk.filter_mask >> index & 1]
        length = chunk.size - _CHECKSUM_BYTES * applied.count("fletcher32")
        if length > 2 * size + _SLACK:
            raise damaged(image.path, f"a chunk of {path!r} is larger packed than unpacked")
        if "gzip" in applied or "lzf" in applied:
            raw = found.read_direct_chunk(chunk.chunk_offset)[1][:length]
            length = _inflated(image, path, raw, size) if "gzip" in applied else lzf_size(raw)
        if length > size:
            raise over_budget(image.path, f"a chunk of {path!r} unpacks to more than its {size} bytes")
        if length < size:
            raise damaged(image.path, f"a chunk of {path!r} unpacks to {length} of its {size} bytes")


def _inflated(image: Image, path: str, raw: bytes, size: int) -> int:
    try:
        return len(zlib.decompressobj().decompress(raw, size + 1))
    except zlib.error as error:
        raise damaged(image.path, f"a chunk of {path!r} cannot be unpacked: {error}") from error


def lzf_size(raw: bytes) -> int:
    """Return to how many bytes LZF data unpacks, without unpacking it (http://oldhome.schmorp.de/marc/liblzf.html)."""
    at = size = 0
    while at < len(raw):
        control = raw[at]
        if control < 32:  # so many bytes, and one more, as they are
            at += control + 2
            size += control + 1
        else:  # a copy of earlier ones: 3 bits of length, perhaps a further byte of it, and the rest of the distance
            long = control >= 7 << 5
            size += (control >> 5) + 2 + (raw[at + 1] if long and at + 1 < len(raw) else 0)
            at += 3 if long else 2
    return size
