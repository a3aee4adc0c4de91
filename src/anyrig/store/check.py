"""Compare the files of a checkpoint with its manifest: sizes and every checksum, in one pass over the bytes.

Needs neither numpy nor a map: files are read through one buffer of 1 MiB. The check of one file is a piece of work for
one thread: reading and hashing release the interpreter's lock.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import xxhash

from anyrig.errors import AnyrigError
from anyrig.store.digest import BLOCK_BYTES, CHUNK_BYTES, ChunkedHash
from anyrig.store.manifest import FileEntry, Manifest, TensorEntry


@dataclass(frozen=True, slots=True)
class Damage:
    """A file, or a tensor in it, that is not what the manifest says; `what` says how."""

    file: str
    tensor: str | None
    what: str

    def __str__(self) -> str:
        return f"{self.file}{f' ({self.tensor})' if self.tensor else ''}: {self.what}"


def fault_of_file(folder: Path, entry: FileEntry) -> str | None:
    """Say why a file cannot be the one that the manifest lists, without reading it; None when it can be."""
    path = folder
    for part in entry.name.split("/"):
        path = path / part
        try:
            status = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return "is missing"
        if stat.S_ISLNK(status.st_mode):
            return "is or goes through a link"
    if not stat.S_ISREG(status.st_mode):
        return "is not a file"
    if status.st_size != entry.size:
        return f"has {status.st_size} bytes instead of {entry.size}"
    return None


def unreadable(path: Path, error: OSError | ValueError) -> AnyrigError:
    """Return the error for what is there but cannot be read; never confused with what is not there."""
    return AnyrigError(
        "ANY-LOAD-012",
        f"{path} cannot be read: {error}.",
        hint="check the permissions of the file and of its folders, and the disk",
    )


Advance = Callable[[int], None]
"""Is told how many more bytes were read; in any thread."""


class Check(Protocol):
    """A file that is to be read, wherever it is."""

    def damage(self, advance: Advance) -> list[Damage]:
        """Read the file and return what is not as the manifest says."""


class Readable(Protocol):
    """A file that is open for reading."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer from the front; return how many bytes that were."""


@dataclass(frozen=True, slots=True)
class FileCheck:
    """A file of the checkpoint in `folder` that is to be read, and the tensors in it."""

    folder: Path
    entry: FileEntry
    tensors: tuple[TensorEntry, ...]

    def damage(self, advance: Advance = lambda _: None) -> list[Damage]:
        """Read the file and return what is not as the manifest says. Raises AnyrigError if it may not be read."""
        try:
            if fault := fault_of_file(self.folder, self.entry):
                return [Damage(self.entry.name, None, fault)]
            with open(self.folder / self.entry.name, "rb", buffering=0) as file:
                return damage_in_stream(file, self.entry, self.tensors, advance)
        except PermissionError as error:
            raise unreadable(self.folder / self.entry.name, error) from error
        except OSError as error:
            return [Damage(self.entry.name, None, f"cannot be read: {error.strerror}")]


def damage_in_stream(
    file: Readable, entry: FileEntry, tensors: Sequence[TensorEntry], advance: Advance
) -> list[Damage]:
    """Read a file from its beginning and return what is not as the manifest says."""
    return list(_check_content(_Reader(file, advance), entry, sorted(tensors, key=_place)))


def file_checks(folder: Path, manifest: Manifest) -> list[FileCheck]:
    """Return what has to be checked of the checkpoint in `folder`, in the manifest's order."""
    tensors = tensors_by_file(manifest)
    return [FileCheck(folder, entry, tensors.get(entry.name, ())) for entry in manifest.files]


def tensors_by_file(manifest: Manifest) -> dict[str, tuple[TensorEntry, ...]]:
    """Return the tensors that have bytes in each file."""
    tensors: dict[str, list[TensorEntry]] = {}
    for tensor in manifest.tensors:
        for piece in tensor.pieces:
            tensors.setdefault(piece.file, []).append(tensor)
    return {name: tuple(found) for name, found in tensors.items()}


def damage_in(folder: Path, manifest: Manifest) -> list[Damage]:
    """Return all damage of the checkpoint in `folder`, in the manifest's order."""
    return [damage for check in file_checks(folder, manifest) for damage in check.damage()]


def damage_of(checks: Sequence[Check], advance: Advance, *, threads: int | None = None) -> list[list[Damage]]:
    """Return the damage of each file, read in parallel (default: one thread for each processor)."""
    from concurrent.futures import ThreadPoolExecutor  # not needed by what only lists checkpoints

    given_up = threading.Event()

    def unless_given_up(count: int) -> None:
        if given_up.is_set():
            raise InterruptedError
        advance(count)

    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        try:
            return list(pool.map(lambda check: check.damage(unless_given_up), checks))
        except BaseException:  # Ctrl-C does not wait for the rest of large files
            given_up.set()
            raise


def _place(tensor: TensorEntry) -> tuple[int, int]:
    return tensor.pieces[0].start, tensor.pieces[0].stop  # an empty tensor comes before its neighbour


class _Reader:
    """Gives out a file's bytes through one buffer, and tells how many it has read."""

    def __init__(self, file: Readable, advance: Advance) -> None:
        self._file = file
        self._advance = advance
        self._buffer = memoryview(bytearray(BLOCK_BYTES))

    def read(self, count: int) -> Iterator[memoryview]:
        """Yield the next `count` bytes in blocks of at most 1 MiB, each valid until the next."""
        while count:
            got = 0
            while got < min(count, BLOCK_BYTES):
                read = self._file.readinto(self._buffer[got : min(count, BLOCK_BYTES)])
                if not read:
                    raise OSError(0, "the file ended early")
                got += read
            self._advance(got)
            yield self._buffer[:got]
            count -= got


def _check_content(file: _Reader, entry: FileEntry, tensors: list[TensorEntry]) -> Iterator[Damage]:
    whole = xxhash.xxh3_128()
    position = 0
    found: list[Damage] = []
    for tensor in tensors:
        piece = tensor.pieces[0]
        for block in file.read(piece.start - position):
            whole.update(block)
        hashes = ChunkedHash()
        for block in file.read(piece.stop - piece.start):
            whole.update(block)
            hashes.update(block)
        position = piece.stop
        found.extend(_compare(tensor, *hashes.result()))
    for block in file.read(entry.size - position):
        whole.update(block)
    yield from found
    if whole.hexdigest() != entry.checksum and not found:
        yield Damage(entry.name, None, "its content has changed")


def _compare(tensor: TensorEntry, checksum: str, chunks: tuple[str, ...]) -> Iterator[Damage]:
    piece = tensor.pieces[0]
    wrong = [index for index, (a, b) in enumerate(zip(chunks, piece.checksums, strict=True)) if a != b]
    for index in wrong:
        start = piece.start + index * CHUNK_BYTES
        stop = min(start + CHUNK_BYTES, piece.stop)
        yield Damage(piece.file, tensor.name, f"its bytes {start} to {stop} have changed")
    if checksum != tensor.checksum and not wrong:
        yield Damage(piece.file, tensor.name, "its checksum does not match its content")
