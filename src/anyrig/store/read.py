"""Open a committed checkpoint and give out its tensors, documents and assets. Reads; never changes a file.

Tensors are views of maps, or read into memory (`content.py` says when and why). Opening parses the manifest and nothing
else, so listing a checkpoint of any size costs the same. numpy is imported with the first tensor. Links are never
followed inside a checkpoint, and nothing is allocated before the real size of the file was seen to be the listed one.
"""

from __future__ import annotations

import itertools
import mmap
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from anyrig.errors import AnyrigError, UsageError
from anyrig.store.check import Damage, damage_in, fault_of_file, unreadable
from anyrig.store.content import Chunk, Verify, check_level, chunks_of, empty, fetch, read_at, want
from anyrig.store.decode import decode
from anyrig.store.digest import hash_bytes
from anyrig.store.dtypes import numpy_dtype
from anyrig.store.header import ALIGNMENT
from anyrig.store.layout import ASSETS, DATA_SUFFIX, MANIFEST, leftover_of, step_name, step_of
from anyrig.store.manifest import FileEntry, Manifest, Piece, TensorEntry
from anyrig.store.mounts import shared
from anyrig.store.parse import ManifestError

if TYPE_CHECKING:
    import numpy as np

    from anyrig.store.content import Bytes

_MAX_MANIFEST_BYTES = 2**30

Seen = tuple[str, int]
"""What tells one save from every other: the checksum of its manifest, and when that was written."""


class Replaced(AnyrigError):
    """Another checkpoint, or none, has taken the place of the one that was opened."""


class Checkpoint:
    """A committed checkpoint: its manifest is parsed and valid, its data not yet touched."""

    def __init__(self, path: Path, manifest: Manifest, *, mapped: bool | None = None, seen: Seen | None = None) -> None:
        self.path = path
        self.manifest = manifest
        self._mapped = mapped
        self._seen = seen
        self._files = {entry.name: entry for entry in manifest.files}
        self._tensors = {tensor.name: tensor for tensor in manifest.tensors}
        self._aliases: dict[str, list[TensorEntry]] = {}
        for tensor in manifest.tensors:
            for alias in tensor.aliases:
                self._aliases.setdefault(alias, []).append(tensor)
        self._maps: dict[str, mmap.mmap] = {}

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, step={self.step}, tensors={len(self._tensors)})"

    @property
    def step(self) -> int:
        """The step after which this state was taken."""
        return self.manifest.step

    @property
    def progress(self) -> dict[str, Any]:
        """What was given as progress."""
        return self.manifest.progress

    @property
    def record(self) -> dict[str, Any]:
        """What was given as record."""
        return self.manifest.record

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the stored tensors, in the order in which they were given."""
        return tuple(self._tensors)

    @property
    def documents(self) -> tuple[str, ...]:
        """Names of the documents."""
        return tuple(name for name in self._files if "/" not in name and not name.endswith(DATA_SUFFIX))

    @property
    def assets(self) -> tuple[str, ...]:
        """Paths of the assets, without the leading `assets/`."""
        return tuple(name.removeprefix(f"{ASSETS}/") for name in self._files if name.startswith(f"{ASSETS}/"))

    @property
    def model_digest(self) -> str:
        """Digest of the weights, from the manifest alone."""
        return self.manifest.model_digest

    @property
    def state_digest(self) -> str:
        """Digest of weights, optimizer, averages, metrics and step, from the manifest alone."""
        return self.manifest.state_digest

    @cached_property
    def mapped(self) -> bool:
        """Whether tensors are views of maps: as asked for when it was opened, else where the file system allows it."""
        return not shared(self.path) if self._mapped is None else self._mapped

    def moved_to(self, path: Path) -> Checkpoint:
        """Return the same checkpoint under the path that its folder was renamed to; nothing is read."""
        return Checkpoint(path, self.manifest, mapped=self._mapped, seen=self._seen)

    def tensor(self, name: str, index: Any = None) -> np.ndarray[Any, Any]:
        """Return a tensor by its name or an alias, or the part of it that `index` (as in `array[index]`) selects.

        It is read-only. The whole is a view of a private memory map where the data is aligned to 64 bytes, else a copy.
        The map is copy-on-write: whoever sets `flags.writeable` can write to it, and the file stays as it is. A part is
        a copy, for which only its own pages are read, or its own rows of the first axis where nothing is mapped.
        Checksums are not looked at: `tensors` and `verify_checkpoint` do that.
        """
        entry = self.entry(name)
        if index is None:
            return self.tensors([name])[entry.name]
        if self.mapped or not entry.shape:
            return _part(self._view(entry) if self.mapped else self.tensors([name])[entry.name], index)
        rows, rest = first_rows(index, entry.shape)
        return _part(self._read_rows(entry, rows), rest)

    def tensors(self, names: Iterable[str], *, verify: Verify = "off") -> dict[str, np.ndarray[Any, Any]]:
        """Return several tensors, each under its own name, read and compared with their checksums in parallel.

        `verify`: "full" compares every chunk of 64 MiB, "fast" a sample of them, "off" none. Sizes of files are always
        compared. Raises ANY-LOAD-008 for a tensor that has changed.
        """
        check_level(verify)
        entries = [self.entry(name) for name in names]
        memory = {entry.name: self._memory(entry.pieces[0]) for entry in entries}
        chunks = [chunk for entry in entries for chunk in self._chunks(entry.pieces[0], memory[entry.name])]
        try:
            found = fetch(self.path, chunks, verify)
        except OSError as error:
            self._cannot_read(self.path, error)
        if verify != "full" and any(chunk.to_read for chunk in chunks):
            self._require_current()  # "full" has compared every byte
        if found:
            piece = found[0].piece
            name = next(entry.name for entry in entries if entry.pieces[0] is piece)
            also = f", nor are {len(found) - 1} other parts" if len(found) > 1 else ""
            self._unusable(piece.file, f"is damaged: {name} is not what was written{also}")
        if verify == "off" and self.mapped:
            self._want(entries)
        return {entry.name: _shaped(memory[entry.name], entry, entry.shape) for entry in entries}

    def entry(self, name: str) -> TensorEntry:
        """Return the manifest's entry of a tensor, by its name or an alias that only one tensor has."""
        if name in self._tensors:
            return self._tensors[name]
        found = self._aliases.get(name, [])
        if len(found) != 1:
            what = "has no" if not found else f"has {len(found)} tensors with the alias"
            raise UsageError(
                "ANY-LOAD-009",
                f"{self.path} {what} {name!r}.",
                hint=f"list its names with: anyrig inspect {self.path} --tensors",
            )
        return found[0]

    def document(self, name: str) -> bytes:
        """Return a document's content after comparing its checksum."""
        return self._content(name, "document")

    def asset(self, path: str) -> bytes:
        """Return an asset's content after comparing its checksum."""
        return self._content(f"{ASSETS}/{path}", "asset")

    def _content(self, name: str, kind: str) -> bytes:
        entry = self._files.get(name)
        if entry is None or name.endswith(DATA_SUFFIX):
            raise UsageError(
                "ANY-LOAD-010",
                f"{self.path} has no {kind} {name!r}.",
                hint=f"list its files with: anyrig inspect {self.path}",
            )
        path = self._checked(entry)
        try:
            content = path.read_bytes()
        except OSError as error:
            self._cannot_read(path, error)
        if hash_bytes(content) != entry.checksum:
            self._unusable(name, "has changed since it was written")
        return content

    def _memory(self, piece: Piece) -> Bytes:
        """Return a view of a piece; where it would not start at a multiple of 64 bytes, memory to read it into."""
        import numpy as np

        size = piece.stop - piece.start
        if not self._in_place(piece):
            self._checked(self._files[piece.file])
            return empty(size)
        return np.frombuffer(self._map(piece.file), np.uint8, size, piece.start)

    def _in_place(self, piece: Piece) -> bool:
        return self.mapped and piece.start % ALIGNMENT == 0

    def _chunks(self, piece: Piece, memory: Bytes) -> Iterator[Chunk]:
        return chunks_of(piece, memory, to_read=not self._in_place(piece))

    def _view(self, entry: TensorEntry) -> np.ndarray[Any, Any]:
        import numpy as np

        piece = entry.pieces[0]
        raw = np.frombuffer(self._map(piece.file), np.uint8, piece.stop - piece.start, piece.start)
        return _shaped(raw, entry, entry.shape)

    def _read_rows(self, entry: TensorEntry, rows: slice) -> np.ndarray[Any, Any]:
        piece = entry.pieces[0]
        row = (piece.stop - piece.start) // max(1, entry.shape[0])
        memory = empty((rows.stop - rows.start) * row)
        path = self._checked(self._files[piece.file])
        try:
            with open(path, "rb", buffering=0) as file:
                read_at(file, piece.start + rows.start * row, memory.data)
        except OSError as error:
            self._cannot_read(path, error)
        self._require_current()
        return _shaped(memory, entry, (rows.stop - rows.start, *entry.shape[1:]))

    def _want(self, entries: Sequence[TensorEntry]) -> None:
        """Let the system read ahead what will be used, neighbours in one request."""
        mapped = (piece for entry in entries for piece in entry.pieces if self._in_place(piece))
        pieces = sorted(mapped, key=lambda p: (p.file, p.start))
        for file, group in itertools.groupby(pieces, key=lambda piece: piece.file):
            start = stop = 0
            for piece in group:
                if piece.start > stop + ALIGNMENT:
                    want(self._map(file), start, stop)
                    start = piece.start
                stop = piece.stop
            want(self._map(file), start, stop)

    def _map(self, file: str) -> mmap.mmap:
        if file not in self._maps:
            path = self._checked(self._files[file])
            try:
                with open(path, "rb") as opened:
                    mapped = mmap.mmap(opened.fileno(), self._files[file].size, access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:
                self._cannot_read(path, error)
            self._require_current()
            self._maps[file] = mapped
        return self._maps[file]

    def _checked(self, entry: FileEntry) -> Path:
        if fault := fault_of_file(self.path, entry):
            self._unusable(entry.name, fault)
        return self.path / entry.name

    def _require_current(self) -> None:
        """Raise `Replaced` unless the folder still has the manifest that was opened, so that its files are its own."""
        try:
            current = self._seen is None or _manifest_of(self.path)[1] == self._seen
        except ManifestError:
            current = False
        if not current:
            raise Replaced(
                "ANY-LOAD-019",
                f"{self.path} was replaced or removed while it was read.",
                hint="load again: what is there now is another checkpoint, or a later one has taken its place",
            )

    def _cannot_read(self, path: Path, error: OSError | ValueError) -> NoReturn:
        self._require_current()
        raise unreadable(path, error) from error

    def _unusable(self, name: str, fault: str) -> NoReturn:
        self._require_current()
        raise AnyrigError(
            "ANY-LOAD-008",
            f"The file {name!r} of {self.path} {fault}.",
            hint=f"see all damage with: anyrig verify {self.path}",
        )


def first_rows(index: Any, shape: Sequence[int]) -> tuple[slice, Any]:
    """Return the rows of the first axis that `index` needs, and the index that is left within them."""
    first, *others = index if isinstance(index, tuple) else (index,)
    if shape and isinstance(first, slice) and first.step in (None, 1):
        start, stop, _ = first.indices(shape[0])
        return slice(start, max(start, stop)), (slice(None), *others)
    if shape and isinstance(first, int) and -shape[0] <= first < shape[0]:
        row = range(shape[0])[first]
        return slice(row, row + 1), (0, *others)
    return slice(0, shape[0] if shape else 1), index


def _shaped(raw: Bytes, entry: TensorEntry, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    return _frozen(raw.view(numpy_dtype(entry.dtype)).reshape(shape))


def _part(whole: np.ndarray[Any, Any], index: Any) -> np.ndarray[Any, Any]:
    import numpy as np

    return _frozen(np.array(whole[index]))


def _frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


def open_checkpoint(path: str | os.PathLike[str], *, mapped: bool | None = None) -> Checkpoint:
    """Open a checkpoint folder under whatever name, unless the name says that it was never finished.

    `mapped` says whether its data files are mapped or read; None lets the file system decide.
    """
    folder = Path(path)
    name = os.path.basename(os.path.abspath(folder))
    if leftover_of(name):
        raise ManifestError(
            "ANY-LOAD-003",
            f"{folder} was not finished or was set aside: it is not a checkpoint.",
            hint="use a folder named step-N (`anyrig ls RUN` lists them)",
        )
    return open_unfinished(folder, step_of(name), mapped=mapped)


def open_unfinished(folder: Path, step: int | None, *, mapped: bool | None = None) -> Checkpoint:
    """Open a folder whatever its name says, so that a repair can see what is in it; it holds `step` unless None."""
    raw, seen = _manifest_of(folder)
    manifest = decode(raw)
    if step not in (None, manifest.step):
        raise ManifestError(
            "ANY-LOAD-004",
            f"{folder} holds step {manifest.step}: the folder was renamed.",
            hint=f"name it {step_name(manifest.step)} again",
        )
    return Checkpoint(folder, manifest, mapped=mapped, seen=seen)


def verify_checkpoint(checkpoint: Checkpoint) -> list[Damage]:
    """Read every file and compare sizes and all checksums; an empty list means sound."""
    return damage_in(checkpoint.path, checkpoint.manifest)


def _manifest_of(folder: Path) -> tuple[bytes, Seen]:
    path = folder / MANIFEST
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        _no_manifest(folder)
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        _not_a_checkpoint(folder, f"has a {MANIFEST} that is not a plain file")
    if status.st_size > _MAX_MANIFEST_BYTES:
        _not_a_checkpoint(folder, f"has a {MANIFEST} of {status.st_size} bytes")
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        _no_manifest(folder)
    except OSError as error:
        raise unreadable(path, error) from error
    return raw, (hash_bytes(raw), status.st_mtime_ns)


def _no_manifest(folder: Path) -> NoReturn:
    if folder.is_dir():
        _not_a_checkpoint(folder, f"has no {MANIFEST}")
    if folder.is_symlink() or folder.exists():
        _not_a_checkpoint(folder, "is not a folder")
    raise ManifestError(
        "ANY-LOAD-001",
        f"{folder} does not exist.",
        hint="check the path (`anyrig ls RUN` lists the checkpoints of a run)",
    )


def _not_a_checkpoint(folder: Path, found: str) -> NoReturn:
    raise ManifestError(
        "ANY-LOAD-002",
        f"{folder} is not a checkpoint: it {found}.",
        hint="give a folder named step-N, or the run directory above it",
    )
