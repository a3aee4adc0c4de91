"""One checkpoint on its way to a URL and back: data first, in parallel and compared; the manifest decides.

An upload or download that was broken off is taken up again with the files that arrived.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import xxhash

from anyrig.errors import AnyrigError
from anyrig.store.digest import BLOCK_BYTES
from anyrig.store.layout import MANIFEST, step_name
from anyrig.store.local import LOCAL, LocalFiles, folder_names, make_folders, remove_tree
from anyrig.store.manifest import FileEntry
from anyrig.store.read import Checkpoint
from anyrig.store.remote.listing import RemoteStep
from anyrig.store.remote.objects import Objects

T = TypeVar("T")
THREADS = 4
_UNFINISHED = ".fetch-"


class Damaged(AnyrigError):
    """Bytes are not those that the manifest lists."""


def upload(objects: Objects, checkpoint: Checkpoint, folder: str, *, before_commit: Callable[[], None]) -> bytes:
    """Upload a committed checkpoint into `folder`, which holds no manifest; return the manifest's bytes.

    `before_commit` is called when all data is there and has been compared.
    """
    _each(checkpoint.manifest.files, lambda entry: _send(objects, checkpoint.path, folder, entry))
    before_commit()
    raw = (checkpoint.path / MANIFEST).read_bytes()
    # Committed by this object: every file that it lists is at the URL, with its size and content.
    objects.write(f"{folder}/{MANIFEST}", raw)
    return raw


def _send(objects: Objects, local: Path, folder: str, entry: FileEntry) -> None:
    path, name = local / entry.name, f"{folder}/{entry.name}"
    checksum, md5 = _checksums(path)
    if checksum != entry.checksum:
        raise Damaged(
            "ANY-REMOTE-004",
            f"{path} has changed since it was written, so it was not uploaded.",
            hint=f"see all damage with: anyrig verify {local}",
        )
    if not objects.holds(name, entry.size, md5):
        objects.put(name, path, md5)


def remove(objects: Objects, folder: str, names: Iterable[str]) -> None:
    """Remove the objects `names` of `folder`, the manifest before all others."""
    objects.remove(f"{folder}/{MANIFEST}")
    _each([name for name in names if name != MANIFEST], lambda name: objects.remove(f"{folder}/{name}"))


def fetch(objects: Objects, step: RemoteStep, checkpoints: Path, *, files: LocalFiles = LOCAL) -> Path:
    """Download a committed step into the folder `checkpoints`, every byte compared, and commit it there.

    Raises `Damaged` when what is at the URL is not what its manifest lists.
    """
    final = checkpoints / step_name(step.step)
    partial = checkpoints.parent / f"{_UNFINISHED}{step.checksum}"  # a later try finds it by what is fetched
    make_folders(files, checkpoints)
    make_folders(files, partial)
    try:
        _each(step.manifest.files, lambda entry: _receive(objects, step.folder, partial, entry, files))
    except Damaged:
        remove_tree(files, partial)
        raise
    (partial / MANIFEST).unlink(missing_ok=True)
    descriptor = files.create(partial / MANIFEST)
    files.write(descriptor, memoryview(step.raw))
    _settle(partial / MANIFEST, descriptor, files)
    for inner, _, _ in os.walk(partial, topdown=False):
        files.flush_folder(Path(inner))
    files.rename(partial, final)
    files.flush_folder(checkpoints)
    for name in folder_names(checkpoints.parent):
        if name.startswith(_UNFINISHED):
            remove_tree(files, checkpoints.parent / name)
    return final


def _receive(objects: Objects, folder: str, partial: Path, entry: FileEntry, files: LocalFiles) -> None:
    path = partial / entry.name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and _checksums(path)[0] == entry.checksum:
        return
    for _ in range(2):  # bytes may be lost on the way; that twice is damage at the URL
        path.unlink(missing_ok=True)
        try:
            objects.get(f"{folder}/{entry.name}", path)
        except FileNotFoundError:
            raise Damaged("ANY-REMOTE-005", f"{objects.url}/{folder}/{entry.name} is gone.", hint=_OTHER) from None
        if _checksums(path)[0] == entry.checksum:
            _settle(path, os.open(path, os.O_RDWR), files)
            return
    raise Damaged(
        "ANY-REMOTE-005",
        f"{objects.url}/{folder}/{entry.name} is not what its manifest lists: its checksum differs.",
        hint=_OTHER,
    )


_OTHER = "use another step: anyrig ls URL, and anyrig verify URL, say which are sound"


def _settle(path: Path, descriptor: int, files: LocalFiles) -> None:
    try:
        files.flush(descriptor)
    finally:
        files.close(descriptor)
    files.protect(path)


def _checksums(path: Path) -> tuple[str, str]:
    """Return the manifest's kind of checksum and the MD5, by which stores compare, in one pass."""
    own, md5 = xxhash.xxh3_128(), hashlib.md5(usedforsecurity=False)
    with open(path, "rb", buffering=0) as opened:
        while block := opened.read(BLOCK_BYTES):
            own.update(block)
            md5.update(block)
    return own.hexdigest(), md5.hexdigest()


def _each(items: Iterable[T], act: Callable[[T], object]) -> None:
    """Do it for each of `items`, some at a time; after the first error none is begun."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="anyrig-transfer") as pool:
        work = [pool.submit(act, item) for item in items]
        try:
            for future in work:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
