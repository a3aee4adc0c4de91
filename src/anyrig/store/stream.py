"""Write one file of a checkpoint: bytes go out and are hashed in the same pass, then the file is sealed and flushed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from anyrig.store.digest import ChunkedHash, blocks
from anyrig.store.local import LocalFiles
from anyrig.store.manifest import FileEntry

_BEGIN_FLUSH_BYTES = 4 * 2**20


class NewFile:
    """A file being written: its hash so far, and at the end its entry. The disk works while it is written."""

    def __init__(self, folder: Path, name: str, files: LocalFiles) -> None:
        self._path, self._name, self._files = folder / name, name, files
        self._hash = xxhash.xxh3_128()
        self._descriptor = files.create(self._path)
        self.size = 0
        self._flushing = 0  # so many bytes the disk was told of

    def write(self, block: memoryview) -> None:
        """Append a block."""
        self._files.write(self._descriptor, block)
        self._hash.update(block)
        self.size += len(block)
        if (waiting := self.size - self._flushing) >= _BEGIN_FLUSH_BYTES:
            self._files.begin_flush(self._descriptor, self._flushing, waiting)
            self._flushing = self.size

    def finish(self) -> FileEntry:
        """Make the file read-only and flush it; return its entry once it has the size that was written."""
        self._files.protect(self._path)
        self._files.flush(self._descriptor)
        found = os.fstat(self._descriptor).st_size
        if found != self.size:
            raise OSError(errno.EIO, f"wrote {self.size} bytes, found {found}", str(self._path))
        return FileEntry(self._name, self.size, self._hash.hexdigest())

    def close(self) -> None:
        """Close the file, finished or not."""
        self._files.close(self._descriptor)


@contextmanager
def new_file(folder: Path, name: str, files: LocalFiles) -> Iterator[NewFile]:
    """Create a file and close it at the end, whatever happens."""
    new = NewFile(folder, name, files)
    try:
        yield new
    finally:
        new.close()


def write_bytes(folder: Path, name: str, content: bytes, files: LocalFiles) -> FileEntry:
    """Write a whole small file."""
    with new_file(folder, name, files) as new:
        for block in blocks(memoryview(content)):
            new.write(block)
        return new.finish()


def write_tensor(new: NewFile, view: memoryview) -> tuple[str, tuple[str, ...]]:
    """Append a tensor's bytes; return their checksum and the chunks' checksums."""
    hashes = ChunkedHash()
    for block in blocks(view):
        new.write(block)
        hashes.update(block)
    return hashes.result()
