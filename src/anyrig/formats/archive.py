"""A zip archive, or a folder, as named parts: nothing is unpacked onto a disk, and no name in it becomes a path.

Stored members are read where they lie. Before that, the whole directory of an archive is checked: names that leave it,
names that occur twice, encrypted, linked, overlapping or swollen members refuse the archive.
"""

from __future__ import annotations

import io
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from anyrig.errors import AnyrigError
from anyrig.formats.contents import Budget, damaged, over_budget, unsafe
from anyrig.formats.hdf5_image import Image, image_of
from anyrig.formats.shards import is_plain, safe_member
from anyrig.store.check import unreadable

ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
_DIRECTORY_BYTES = 2**24
_LOCAL_HEADER = 30
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED


@dataclass(frozen=True, slots=True)
class Part:
    """A file of an archive or folder: `image` gives the place of its bytes, or the bytes where they are packed."""

    name: str
    size: int
    image: Callable[[], Image]
    head: Callable[[int], bytes]

    def read(self) -> bytes:
        """Return the bytes, which are checked where a checksum is recorded."""
        found = self.image()
        found.check()
        with found.stream() as stream:
            return stream.read() or b""


class _Sparing(io.FileIO):
    """A file of which no more is read at once than the directory of a sound archive has."""

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = _DIRECTORY_BYTES if size is None or size < 0 else size
        if wanted > _DIRECTORY_BYTES:
            raise zipfile.BadZipFile("its directory is too large")
        return super().read(wanted) or b""


def zip_names(path: Path) -> frozenset[str]:
    """Return the names in a zip archive, without any check; none if it is no archive."""
    try:
        with open(path, "rb", buffering=0) as file:
            if file.read(4) not in ZIP_MAGIC:
                return frozenset()
        with _Sparing(path) as file, zipfile.ZipFile(file) as archive:
            return frozenset(archive.namelist())
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return frozenset()


def is_cut_off(path: Path) -> bool:
    """Tell whether a file begins as a zip archive and has no directory, which stands at its end."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(4) == ZIP_MAGIC[0] and not zip_names(path)
    except OSError:
        return False


def zip_parts(path: Path, budget: Budget) -> Mapping[str, Part]:
    """Return the members of a zip archive. Raises ANY-FORMAT-002, 003, 004 or 032."""
    try:
        with _Sparing(path) as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if len(entries) > budget.tensors:
                raise over_budget(path, f"it has {len(entries)} members")
            starts = {entry.filename: _start(file, path, entry) for entry in entries}
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise damaged(path, f"{error}") from error
    if len(starts) != len(entries):
        raise damaged(path, "a name occurs twice in it")
    for entry in entries:
        _check_entry(path, entry, budget)
    _check_places(path, entries, starts)
    return {
        entry.filename: Part(
            entry.filename,
            entry.file_size,
            partial(_image, path, entry, starts[entry.filename]),
            partial(_head, path, entry, starts[entry.filename]),
        )
        for entry in entries
        if not entry.is_dir()
    }


def _start(file: io.FileIO, path: Path, entry: zipfile.ZipInfo) -> int:
    """Return where the bytes of a member start: after its own header, whose length only that header tells."""
    file.seek(entry.header_offset)
    header = file.read(_LOCAL_HEADER)
    if len(header) < _LOCAL_HEADER or header[:4] != ZIP_MAGIC[0]:
        raise damaged(path, f"the member {entry.filename!r} is not where the directory says")
    lengths = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
    return entry.header_offset + _LOCAL_HEADER + sum(lengths)


def _check_entry(path: Path, entry: zipfile.ZipInfo, budget: Budget) -> None:
    name, packed = entry.orig_filename, entry.compress_size
    if name != entry.filename or not is_plain(name.removesuffix("/")):
        raise unsafe(path, f"the name {name!r} in it leaves the archive")
    if stat.S_ISLNK(entry.external_attr >> 16):
        raise unsafe(path, f"{name!r} in it is a link")
    if entry.flag_bits & 0x41:
        raise unsafe(path, f"{name!r} in it is encrypted")
    if entry.compress_type not in (_STORED, _DEFLATED):
        raise AnyrigError(
            "ANY-FORMAT-032",
            f"{name!r} in {path} is packed by a method that is not read here (number {entry.compress_type}).",
            hint="unpack it into a folder, and give the folder",
        )
    if entry.file_size > packed * (1 if entry.compress_type == _STORED else budget.ratio):
        raise over_budget(path, f"{name!r} in it claims {entry.file_size} bytes, and {packed} are stored")


def _check_places(path: Path, entries: list[zipfile.ZipInfo], starts: Mapping[str, int]) -> None:
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise damaged(path, f"the bytes of {entry.filename!r} are those of another member, too")
        end = starts[entry.filename] + entry.compress_size
    if end > path.stat().st_size:
        raise damaged(path, "its last member ends after the file")


def _head(path: Path, entry: zipfile.ZipInfo, start: int, size: int) -> bytes:
    """Return the first `size` bytes of a member, unchecked."""
    if entry.compress_type == _STORED:
        return _bytes(path, start, min(size, entry.file_size))
    return _unpacked(path, entry, _bytes(path, start, min(2 * size + 1024, entry.compress_size)), size)


def _bytes(path: Path, start: int, size: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(size)


def _unpacked(path: Path, entry: zipfile.ZipInfo, raw: bytes, size: int) -> bytes:
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, size)
    except zlib.error as error:
        raise damaged(path, f"{entry.filename!r} in it cannot be unpacked: {error}") from error


def _image(path: Path, entry: zipfile.ZipInfo, start: int) -> Image:
    if entry.compress_type == _STORED:
        return Image(path, entry.filename, path, start, entry.file_size, crc=entry.CRC)
    if entry.file_size > Budget().header_bytes:
        raise AnyrigError(
            "ANY-FORMAT-033",
            f"{entry.filename!r} in {path} is compressed and has {entry.file_size} bytes: too many to hold in memory.",
            hint="unpack it into a folder, and give the folder",
        )
    held = _unpacked(path, entry, _bytes(path, start, entry.compress_size), entry.file_size + 1)
    if len(held) != entry.file_size:
        raise damaged(path, f"{entry.filename!r} in it does not unpack to its {entry.file_size} bytes")
    return Image(path, entry.filename, path, 0, len(held), held=held, crc=entry.CRC)


def folder_parts(folder: Path, budget: Budget) -> Mapping[str, Part]:
    """Return the files of a folder and of the folders in it; a link that leads out of it is refused when it is read."""
    found = {}
    for path in _files(folder, budget):
        name = path.relative_to(folder).as_posix()
        found[name] = Part(name, path.stat().st_size, partial(_image_of_file, folder, name), partial(_bytes, path, 0))
        if len(found) > budget.tensors:
            raise over_budget(folder, f"it has more than {budget.tensors} files")
    return found


def _files(folder: Path, budget: Budget) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):  # follows no links to folders
        if len(PurePosixPath(Path(here).relative_to(folder)).parts) >= budget.depth:
            folders.clear()
        yield from (path for name in sorted(files) if (path := Path(here, name)).is_file())


def _image_of_file(folder: Path, name: str) -> Image:
    return image_of(safe_member(folder, name), folder)
