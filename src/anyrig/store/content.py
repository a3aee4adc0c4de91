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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from anyrig.errors import AnyrigError, UsageError
from anyrig.store.digest import CHUNK_BYTES, hash_bytes
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
    """A part of a piece that has a checksum of its own, and the memory that holds it, or will hold it."""

    piece: Piece
    number: int
    memory: memoryview

    @property
    def start(self) -> int:
        """Its first byte in the file."""
        return self.piece.start + self.number * CHUNK_BYTES

    @property
    def sound(self) -> bool:
        """Whether the memory holds what was written."""
        return hash_bytes(self.memory) == self.piece.checksums[self.number]


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


def chunks_of(piece: Piece, memory: Bytes) -> Iterator[Chunk]:
    """Yield the chunks of a piece that `memory` holds."""
    view = memory.data
    for number in range(len(piece.checksums)):
        yield Chunk(piece, number, view[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES])


def sample(chunks: Sequence[Chunk], verify: Verify) -> list[Chunk]:
    """Return the chunks whose checksums are to be compared."""
    return {"full": list(chunks), "fast": list(chunks[:: max(1, len(chunks) // _SAMPLE)]), "off": []}[verify]


def damaged(chunks: Iterable[Chunk]) -> list[Chunk]:
    """Return the chunks whose memory is not what was written, in parallel."""
    return [chunk for found in _in_parallel(_unsound, list(chunks)) for chunk in found]


def read_chunks(folder: Path, chunks: Sequence[Chunk]) -> None:
    """Fill the memory of every chunk from the files in `folder`, in parallel. Raises OSError."""

    def fill(batch: Sequence[Chunk]) -> None:
        for file, group in itertools.groupby(batch, key=lambda chunk: chunk.piece.file):
            with open(folder / file, "rb", buffering=0) as opened:
                for chunk in group:
                    read_at(opened, chunk.start, chunk.memory)

    _in_parallel(fill, sorted(chunks, key=lambda chunk: (chunk.piece.file, chunk.start)))


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


def _unsound(batch: Sequence[Chunk]) -> list[Chunk]:
    return [chunk for chunk in batch if not chunk.sound]


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
