"""Files and folders that take their place when they are complete, and what a process that was killed has left.

A new file is made in a hidden folder beside its place. `flock` tells whether the process that made a folder lives, so
the next one that writes to the same place removes what a dead one left, and puts back what it had moved away.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from anyrig.store.local import LOCAL, folder_names, remove_tree

_FORMER = ".former"
_LONGEST = 200  # bytes of a name that its work folder repeats: the whole name may have 255


@contextmanager
def work_folder(path: Path) -> Iterator[Path]:
    """Give a new hidden folder beside `path`, which is removed in the end; before, remove those of dead processes."""
    prefix = f".{os.fsdecode(os.fsencode(path.name)[:_LONGEST])}.saving-"
    for name in folder_names(path.parent):
        if name.startswith(prefix):
            _sweep(path.parent / name)
    work = path.parent / f"{prefix}{secrets.token_hex(4)}"
    LOCAL.make_folder(work)
    with _held(work):
        try:
            yield work
        finally:
            with suppress(OSError):
                remove_tree(LOCAL, work)


def put_in_place(written: Path, path: Path, work: Path) -> None:
    """Move what was written, which may be several files of one name, to its place.

    A folder changes places with the former one at one moment. Where the system cannot do that the former is moved into
    `work` first, and put back if the new one does not get to its place.
    """
    parts = [part for part in work.iterdir() if part.name.startswith(written.name)]
    if written.is_dir() and path.is_dir():
        if LOCAL.exchange(written, path):
            return
        former = work / _FORMER
        LOCAL.make_folder(former)
        LOCAL.rename(path, former / path.name)
    try:
        for part in sorted(parts, key=lambda part: part.suffix == ".index"):
            LOCAL.rename(part, path.parent / part.name)
    except BaseException:
        _put_back(work)
        raise


def _put_back(work: Path) -> None:
    """Give the folders that were moved into `work` their places again, if nothing else has them."""
    for name in folder_names(work / _FORMER):
        if not os.path.lexists(work.parent / name):
            LOCAL.rename(work / _FORMER / name, work.parent / name)


def _sweep(work: Path) -> None:
    with suppress(OSError), _held(work) as held:
        if held:
            _put_back(work)
            remove_tree(LOCAL, work)


@contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Hold `folder` until the end of this process at most, and tell whether that could be had: not if another does."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except OSError:  # another process has it, or a network file system has no locks of folders
            held = False
        yield held
    finally:
        os.close(descriptor)
