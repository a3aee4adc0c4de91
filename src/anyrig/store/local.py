"""Every effect the store has on a file system, in one replaceable object.

Nothing else under `store/` creates, writes, flushes, renames or removes. A test replaces `LOCAL` with a subclass that
fails or dies at a chosen call; a remote store can take its place later. No method decides anything.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_START_WRITING = 2  # SYNC_FILE_RANGE_WRITE, in <fcntl.h> of Linux
_HERE = -100  # AT_FDCWD, in <fcntl.h>: a path that is not absolute begins at the working directory
_EXCHANGE = 2  # RENAME_EXCHANGE, in <linux/fs.h>
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}  # kernels and file systems that cannot
_FOLDER_FLUSH_UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP}  # some FUSE and network file systems


class LocalFiles:
    """The local file system. File handles are plain descriptors."""

    def free(self, path: Path) -> int:
        """Bytes that this user may still write to the disk of the folder `path`."""
        return shutil.disk_usage(path).free

    def make_folder(self, path: Path) -> None:
        """Create one folder; its parent exists, it does not."""
        os.mkdir(path)

    def create(self, path: Path) -> int:
        """Create a new file for writing and return its descriptor; an existing file is an error."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)

    def write(self, descriptor: int, data: memoryview) -> None:
        """Write all of `data`."""
        while data:
            data = data[os.write(descriptor, data) :]

    def begin_flush(self, descriptor: int, start: int, size: int) -> None:
        """Let the system begin to put these bytes on the disk; `flush` has less to wait for then.

        No promise: a failure shows in `flush`, and where the system has no such call nothing is done.
        """
        if _sync_file_range:
            _sync_file_range(descriptor, start, size, _START_WRITING)

    def protect(self, path: Path) -> None:
        """Take away everybody's write permission."""
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) & ~0o222)

    def flush(self, descriptor: int) -> None:
        """Return when the file is on the disk."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a descriptor that `create` returned."""
        os.close(descriptor)

    def flush_folder(self, path: Path) -> None:
        """Return when the folder's list of names is on the disk (nothing to do on Windows)."""
        if os.name == "nt":
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _FOLDER_FLUSH_UNSUPPORTED:
                raise
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Give `old` the name `new`; a file of that name is replaced, a folder with content is an error."""
        os.replace(old, new)

    def exchange(self, one: Path, other: Path) -> bool:
        """Let two files or folders of one disk take each other's name at one moment; False where that cannot be."""
        if _renameat2 is None:
            return False
        if _renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
            return True
        code = ctypes.get_errno()
        if code in _NO_EXCHANGE:
            return False
        raise OSError(code, os.strerror(code), str(other))

    def remove_file(self, path: Path) -> None:
        """Remove one file or link."""
        if os.name == "nt":
            os.chmod(path, stat.S_IWRITE)
        os.unlink(path)

    def remove_folder(self, path: Path) -> None:
        """Remove one empty folder."""
        os.rmdir(path)


def _system_call(name: str, *types: Any) -> Callable[..., int] | None:
    found = getattr(ctypes.CDLL(None, use_errno=True), name, None) if os.name == "posix" else None
    if found:
        found.argtypes = types
    return found


_sync_file_range = _system_call("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_renameat2 = _system_call("renameat2", ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
LOCAL = LocalFiles()


def make_folders(files: LocalFiles, path: Path) -> None:
    """Create `path` and its missing parents, each flushed into its parent."""
    if path.is_dir():
        return
    make_folders(files, path.parent)
    try:
        files.make_folder(path)
    except FileExistsError:
        if not path.is_dir():
            raise
    files.flush_folder(path.parent)


def remove_tree(files: LocalFiles, path: Path) -> None:
    """Remove a folder and what is in it, never following a link."""
    for entry in _entries(path):
        if entry.is_dir(follow_symlinks=False):
            remove_tree(files, Path(entry.path))
        else:
            files.remove_file(Path(entry.path))
    files.remove_folder(path)


def _entries(path: Path) -> Iterator[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        yield from sorted(entries, key=lambda entry: entry.name)


def folder_names(path: Path) -> list[str]:
    """Names of the real folders in `path` (no links), sorted; empty when `path` does not exist."""
    try:
        return [entry.name for entry in _entries(path) if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
