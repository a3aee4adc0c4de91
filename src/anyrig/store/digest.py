"""Checksums of bytes and digests of states; all of them xxh3-128, written as 32 hexadecimal digits.

A digest is a tree of hashes: one leaf per tensor over (name, type, shape, hash of its bytes), then one hash over the
leaves sorted by name. So it can be taken from a manifest alone, and does not depend on files, shards or order.
It detects change and damage; it is no protection against somebody who wants two states to look alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from anyrig.store.dtypes import spelling_of
from anyrig.store.tensors import StoredTensor, bytes_of

if TYPE_CHECKING:
    import numpy as np

CHUNK_BYTES = 64 * 2**20  # of a tensor per checksum in the manifest
BLOCK_BYTES = 2**20  # hashed and written at a time, so that the second hash finds the bytes in the cache

Leaf = tuple[str, str, Sequence[int], str]

_STATE_GROUPS = ("model/", "optimizer/", "ema/", "metrics/")


def blocks(view: memoryview) -> Iterator[memoryview]:
    """Cut `view` into blocks of at most `BLOCK_BYTES`."""
    for start in range(0, len(view), BLOCK_BYTES):
        yield view[start : start + BLOCK_BYTES]


class ChunkedHash:
    """Hash of a tensor's bytes, and of each chunk of them, from blocks that never cross a chunk's end."""

    def __init__(self) -> None:
        self._whole: xxhash.xxh3_128 | None = None  # until the first chunk is full it has seen the same bytes
        self._chunk = xxhash.xxh3_128()
        self._in_chunk = 0
        self._closed: list[str] = []

    def update(self, block: memoryview) -> None:
        """Add a block of at most `BLOCK_BYTES`."""
        if self._in_chunk == CHUNK_BYTES:
            self._close_chunk()
        self._in_chunk += len(block)
        self._chunk.update(block)
        if self._whole is not None:
            self._whole.update(block)

    def _close_chunk(self) -> None:
        if self._whole is None:
            self._whole = self._chunk.copy()
        self._closed.append(self._chunk.hexdigest())
        self._chunk.reset()
        self._in_chunk = 0

    def result(self) -> tuple[str, tuple[str, ...]]:
        """Return the whole hash and the chunks' hashes (none for a tensor without bytes)."""
        if self._in_chunk:
            self._close_chunk()
        return (self._whole or self._chunk).hexdigest(), tuple(self._closed)


def hash_bytes(data: bytes | memoryview) -> str:
    """Return the checksum of `data`."""
    return xxhash.xxh3_128_hexdigest(data)


def hash_file(path: Path) -> str:
    """Return the checksum of a file's bytes, read block by block."""
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            state.update(block)
    return state.hexdigest()


def tensor_hash(array: np.ndarray[Any, Any]) -> str:
    """Return the hash of an array's bytes in C order, little-endian."""
    return hash_bytes(bytes_of(array))


def tree_digest(entries: Iterable[Leaf]) -> str:
    """Return the digest of (name, safetensors type, shape, tensor hash) entries, in any order."""
    root = xxhash.xxh3_128()
    for name, dtype, shape, checksum in sorted(entries, key=lambda entry: entry[0]):
        leaf = json.dumps([name, dtype, list(shape), checksum], separators=(",", ":"))
        root.update(xxhash.xxh3_128_digest(leaf.encode()))
    return root.hexdigest()


def model_digest(entries: Iterable[Leaf]) -> str:
    """Return the digest of the entries named `model/...`."""
    return tree_digest(entry for entry in entries if entry[0].startswith("model/"))


def state_digest(entries: Iterable[Leaf], step: int) -> str:
    """Return the digest of model, optimizer, averages, metrics and step; callbacks and aliases do not count."""
    step_leaf: Leaf = ("step", "I64", (), hash_bytes(step.to_bytes(8, "little")))
    return tree_digest([step_leaf, *(entry for entry in entries if entry[0].startswith(_STATE_GROUPS))])


def _leaf(tensor: StoredTensor) -> Leaf:
    dtype = spelling_of(tensor.array.dtype) or str(tensor.array.dtype)
    return tensor.name, dtype, tensor.array.shape, tensor_hash(tensor.array)


def model_digest_of(tensors: Sequence[StoredTensor]) -> str:
    """Return what `Checkpoint.model_digest` gives after `tensors` were stored."""
    return model_digest(_leaf(tensor) for tensor in tensors if tensor.name.startswith("model/"))


def state_digest_of(tensors: Sequence[StoredTensor], step: int) -> str:
    """Return what `Checkpoint.state_digest` gives after `tensors` were stored at `step`."""
    return state_digest((_leaf(tensor) for tensor in tensors if tensor.name.startswith(_STATE_GROUPS)), step)
