"""The bytes of tensors: views of private maps, or read into memory; and their checksums, in parallel.

A map is copy-on-write: whoever writes to its pages leaves the file as it is. A file that is renamed or removed while it
is mapped stays there for whoever has mapped it, so retention may take a checkpoint whose tensors are in use. A file
that is cut short would end the process at its next touch; so data files are read-only, sizes are compared before they
are mapped, and on file systems that other machines write to, files are read. Reading and hashing release the
interpreter's lock, so threads divide the chunks of 64 MiB among them.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import xxhash

from anyrig.errors import AnyrigError, UsageError
from anyrig.store.digest import BLOCK_BYTES, CHUNK_BYTES
from anyrig.store.header import ALIGNMENT
from anyrig.store.manifest import Piece

if TYPE_CHECKING:
    import numpy as np

    Bytes = np.ndarray[Any, np.dtype[np.uint8]]

T = TypeVar("T")
Verify = Literal["full", "fast", "off"]
_SAMPLE = 16  # chunks that "fast" compares, evenly spread
_BATCH_BYTES = CHUNK_BYTES  # of small tensors that one thread takes at a time


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a piece that has a checksum of its own; `memory` holds it, or is `to_read` from the file."""

    piece: Piece
    number: int
    memory: memoryview
    to_read: bool

    @property
    def start(self) -> int:
        """Its first byte in the file."""
        return self.piece.start + self.number * CHUNK_BYTES

    @property
    def checksum(self) -> str:
        """The checksum of what was written."""
        return self.piece.checksums[self.number]


def check_level(verify: str) -> None:
    """Raise for a level of verification that there is not."""
    if verify not in get_args(Verify):
        raise UsageError(
            "ANY-LOAD-016", f"verify: expected full, fast or off, found {verify!r}", hint='leave it at verify="full"'
        )


def empty(size: int) -> Bytes:
    """Return new memory that starts at a multiple of 64 bytes, as TensorFlow wants it."""
    import numpy as np

    try:
        memory = np.empty(size + ALIGNMENT, np.uint8)
    except MemoryError as error:
        raise AnyrigError(
            "ANY-LOAD-017",
            f"There is no memory for a tensor of {size:,} bytes.",
            hint="load it where more memory is free, or from a local disk, which is mapped",
        ) from error
    skipped = -memory.ctypes.data % ALIGNMENT
    return memory[skipped : skipped + size]


def chunks_of(piece: Piece, memory: Bytes, *, to_read: bool) -> Iterator[Chunk]:
    """Yield the chunks of a piece that `memory` holds, or will hold."""
    view = memory.data
    for number in range(len(piece.checksums)):
        yield Chunk(piece, number, view[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES], to_read)


def fetch(folder: Path, chunks: Sequence[Chunk], verify: Verify) -> list[Chunk]:
    """Read what is to be read and return the chunks that are not what was written, in parallel. Raises OSError."""
    step = {"full": 1, "fast": max(1, len(chunks) // _SAMPLE), "off": len(chunks) + 1}[verify]
    checked = {id(chunk) for chunk in chunks[::step]} if verify != "off" else set()
    todo = [chunk for chunk in chunks if chunk.to_read or id(chunk) in checked]
    todo.sort(key=lambda chunk: (chunk.piece.file, chunk.start))

    def work(batch: Sequence[Chunk]) -> list[Chunk]:
        unsound = []
        for file, group in itertools.groupby(batch, key=lambda chunk: chunk.piece.file):
            with open(folder / file, "rb", buffering=0) as opened:
                for chunk in group:
                    found = _fetched(chunk, opened)
                    if id(chunk) in checked and found.hexdigest() != chunk.checksum:
                        unsound.append(chunk)
        return unsound

    return [chunk for found in _in_parallel(work, todo) for chunk in found]


def _fetched(chunk: Chunk, file: FileIO) -> xxhash.xxh3_128:
    """Return the hash of a chunk, read if need be: block by block, so that it is hashed while it is in the cache."""
    if not chunk.to_read:
        return xxhash.xxh3_128(chunk.memory)
    found = xxhash.xxh3_128()
    for start in range(0, len(chunk.memory), BLOCK_BYTES):
        block = chunk.memory[start : start + BLOCK_BYTES]
        read_at(file, chunk.start + start, block)
        found.update(block)
    return found


def read_at(file: FileIO, start: int, memory: memoryview) -> None:
    """Fill `memory` with the bytes of a file from `start` on."""
    file.seek(start)
    while memory:
        if not (count := file.readinto(memory)):
            raise OSError(errno.EIO, "the file ended early")
        memory = memory[count:]


def want(mapped: mmap.mmap, start: int, stop: int) -> None:
    """Let the system begin to read a range of a map from the disk, and return at once."""
    if hasattr(mmap, "MADV_WILLNEED") and stop > start:
        page = start - start % mmap.PAGESIZE
        mapped.madvise(mmap.MADV_WILLNEED, page, stop - page)


def _in_parallel(work: Callable[[Sequence[Chunk]], T], chunks: Sequence[Chunk]) -> list[T]:
    batches = list(_batches(chunks))
    if len(batches) < 2:
        return [work(batch) for batch in batches]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(batches), os.cpu_count() or 1)) as pool:
        return list(pool.map(work, batches))


def _batches(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    batch: list[Chunk] = []
    size = 0
    for chunk in chunks:
        batch.append(chunk)
        size += len(chunk.memory)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
