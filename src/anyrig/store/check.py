"""Compare the files of a checkpoint with its manifest: sizes and every checksum, in one pass over the bytes.

Needs neither numpy nor a map: files are read through one buffer of 1 MiB.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import xxhash

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


def damage_in(folder: Path, manifest: Manifest) -> list[Damage]:
    """Return all damage of the checkpoint in `folder`, in the manifest's order."""
    tensors: dict[str, list[TensorEntry]] = {}
    for tensor in manifest.tensors:
        for piece in tensor.pieces:
            tensors.setdefault(piece.file, []).append(tensor)
    return [damage for entry in manifest.files for damage in _check(folder, entry, tensors.get(entry.name, []))]


def _check(folder: Path, entry: FileEntry, tensors: list[TensorEntry]) -> list[Damage]:
    if fault := fault_of_file(folder, entry):
        return [Damage(entry.name, None, fault)]
    try:
        with open(folder / entry.name, "rb", buffering=0) as file:
            return list(_check_content(file, entry, sorted(tensors, key=_place)))
    except OSError as error:
        return [Damage(entry.name, None, f"cannot be read: {error.strerror}")]


def _place(tensor: TensorEntry) -> tuple[int, int]:
    return tensor.pieces[0].start, tensor.pieces[0].stop  # an empty tensor comes before its neighbour


def _check_content(file: FileIO, entry: FileEntry, tensors: list[TensorEntry]) -> Iterator[Damage]:
    whole = xxhash.xxh3_128()
    position = 0
    found: list[Damage] = []
    for tensor in tensors:
        piece = tensor.pieces[0]
        for block in _read(file, piece.start - position):
            whole.update(block)
        hashes = ChunkedHash()
        for block in _read(file, piece.stop - piece.start):
            whole.update(block)
            hashes.update(block)
        position = piece.stop
        found.extend(_compare(tensor, *hashes.result()))
    for block in _read(file, entry.size - position):
        whole.update(block)
    yield from found
    if whole.hexdigest() != entry.checksum and not found:
        yield Damage(entry.name, None, "its content has changed")


def _read(file: FileIO, count: int) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(min(count, BLOCK_BYTES)))
    while count:
        got = 0
        while got < min(count, len(buffer)):
            read = file.readinto(buffer[got : min(count, len(buffer))])
            if not read:
                raise OSError(0, "the file ended early")
            got += read
        yield buffer[:got]
        count -= got


def _compare(tensor: TensorEntry, checksum: str, chunks: tuple[str, ...]) -> Iterator[Damage]:
    piece = tensor.pieces[0]
    wrong = [index for index, (a, b) in enumerate(zip(chunks, piece.checksums, strict=True)) if a != b]
    for index in wrong:
        start = piece.start + index * CHUNK_BYTES
        stop = min(start + CHUNK_BYTES, piece.stop)
        yield Damage(piece.file, tensor.name, f"its bytes {start} to {stop} have changed")
    if checksum != tensor.checksum and not wrong:
        yield Damage(piece.file, tensor.name, "its checksum does not match its content")
