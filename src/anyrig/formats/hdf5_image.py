"""The bytes of an HDF5 file wherever they lie (a file, a member of an archive), opened so that nothing else is touched.

The HDF5 library gets a file without locks (network file systems have none), or a window of one. Its errors, of
whatever kind, leave here as ANY-FORMAT-002. It is a large C library: what is asked of it is kept small, and asked only
after the checks in `hdf5.py`.
"""

from __future__ import annotations

import io
import mmap
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from anyrig.errors import AnyrigError
from anyrig.formats.contents import damaged
from anyrig.formats.hdf5_texts import Bytes, referred
from anyrig.store.check import unreadable

MAGIC = b"\x89HDF\r\n\x1a\n"
_LIBRARY_FAULTS = (
    OSError, RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, MemoryError,
    SystemError,
)  # fmt: skip


@dataclass(frozen=True)
class Image:
    """An HDF5 file of `size` bytes from `start` on in the file at `place`, or in `held`.

    `path` is what the user opened and `file` the name in it. `crc` is the checksum that an archive records of it: it is
    compared once, before the first value is read.
    """

    path: Path
    file: str
    place: Path
    start: int
    size: int
    held: bytes | None = None
    crc: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    _walked: dict[int, int] = field(default_factory=dict, repr=False, compare=False)

    def check(self) -> None:
        """Raise ANY-FORMAT-002 if the bytes are not those that the archive records."""
        with self._lock:
            if self.crc is not None and self._found_crc != self.crc:
                raise damaged(self.path, f"the bytes of {self.file} do not have their recorded checksum")

    @cached_property
    def _found_crc(self) -> int:
        crc = 0
        with self.stream() as stream:
            while part := stream.read(2**20):
                crc = zlib.crc32(part, crc)
        return crc

    @contextmanager
    def mapped(self) -> Iterator[Bytes]:
        """Give the bytes from `start` on, without reading them."""
        if self.held is not None:
            yield self.held
            return
        with open(self.place, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            yield whole

    def text_bytes(self, raw: bytes, base: int, path: str) -> int:
        """Return how long the texts are to which the references in `raw` lead, which stand at `path`.

        Raises ANY-FORMAT-002 unless all of them can be there.
        """
        try:
            with self.mapped() as data:
                return referred(data, raw, self.start + base, self._walked)
        except ValueError as error:
            raise damaged(self.path, f"{path or '/'}: {error}") from error

    def head(self, size: int) -> bytes:
        """Return the first `size` bytes, unchecked."""
        with self.stream() as stream:
            return stream.read(size) or b""

    def stream(self) -> io.BufferedIOBase | io.RawIOBase:
        """Open the bytes, from 0 to `size`."""
        return io.BytesIO(self.held) if self.held is not None else _Window(self.place, self.start, self.size)


def image_of(path: Path, opened: Path | None = None) -> Image:
    """Return the image of a whole file; `opened` is what the user gave, if it was another path."""
    try:
        return Image(opened or path, path.name, path, 0, path.stat().st_size)
    except OSError as error:
        raise unreadable(path, error) from error


class _Window(io.RawIOBase):
    """A part of a file, read-only."""

    def __init__(self, path: Path, start: int, size: int) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  (closed by close)
        self._start, self._size, self._at = start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._at)]
        self._file.seek(self._start + self._at)
        count = self._file.readinto(view) or 0
        self._at += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def opened(image: Image) -> Iterator[Any]:
    """Open an image with h5py; everything that the library raises inside becomes ANY-FORMAT-002 or ANY-LOAD-012."""
    import h5py

    with library_faults(image):
        if image.held is None and (image.start, image.size) == (0, image.place.stat().st_size):
            with h5py.File(image.place, "r", locking=False, rdcc_nbytes=2**26) as file:
                yield file
        else:
            with image.stream() as stream, h5py.File(stream, "r", rdcc_nbytes=2**26) as file:
                yield file


@contextmanager
def library_faults(image: Image, path: str = "") -> Iterator[None]:
    """Turn what the HDF5 library and h5py raise, of `path` in the file, into errors of this project."""
    try:
        yield
    except AnyrigError:
        raise
    except PermissionError as error:
        raise unreadable(image.place, error) from error
    except _LIBRARY_FAULTS as error:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        where = [part for part in ("" if image.file == image.path.name else image.file, path) if part]
        raise damaged(image.path, ": ".join([*where, said])) from error
