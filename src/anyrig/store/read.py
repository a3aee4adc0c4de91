"""Open a committed checkpoint and give out its tensors, documents and assets. Reads; never changes a file.

Opening parses the manifest and nothing else, so listing a checkpoint of any size costs the same. numpy is imported
with the first tensor. Links are never followed inside a checkpoint, and nothing is allocated before the real size of
the file was seen to be the listed one.
"""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from anyrig.errors import AnyrigError, UsageError
from anyrig.store.check import Damage, damage_in, fault_of_file
from anyrig.store.decode import decode
from anyrig.store.digest import hash_bytes
from anyrig.store.dtypes import numpy_dtype
from anyrig.store.header import ALIGNMENT
from anyrig.store.layout import ASSETS, DATA_SUFFIX, MANIFEST, leftover_of, step_name, step_of
from anyrig.store.manifest import FileEntry, Manifest, TensorEntry
from anyrig.store.parse import ManifestError

if TYPE_CHECKING:
    import numpy as np

_MAX_MANIFEST_BYTES = 2**30


class Checkpoint:
    """A committed checkpoint: its manifest is parsed and valid, its data not yet touched."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
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

    def tensor(self, name: str) -> np.ndarray[Any, Any]:
        """Return a tensor by its name or an alias, read-only.

        A view of a private memory map where the data is aligned to 64 bytes, else a copy. The map is copy-on-write:
        whoever sets `flags.writeable` can write to it, and the file stays as it is. Checksums are not looked at:
        `verify_checkpoint` does that.
        """
        import numpy as np

        entry = self.entry(name)
        piece = entry.pieces[0]
        raw = np.frombuffer(self._map(piece.file), np.uint8, piece.stop - piece.start, piece.start)
        if piece.start % ALIGNMENT:
            raw = raw.copy()
        array = raw.view(numpy_dtype(entry.dtype)).reshape(entry.shape)
        array.flags.writeable = False
        return array

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
            raise unreadable(path, error) from error
        if hash_bytes(content) != entry.checksum:
            self._unusable(name, "has changed since it was written")
        return content

    def _map(self, file: str) -> mmap.mmap:
        if file not in self._maps:
            path = self._checked(self._files[file])
            try:
                with open(path, "rb") as opened:
                    self._maps[file] = mmap.mmap(opened.fileno(), self._files[file].size, access=mmap.ACCESS_COPY)
            except (OSError, ValueError) as error:
                raise unreadable(path, error) from error
        return self._maps[file]

    def _checked(self, entry: FileEntry) -> Path:
        if fault := fault_of_file(self.path, entry):
            self._unusable(entry.name, fault)
        return self.path / entry.name

    def _unusable(self, name: str, fault: str) -> NoReturn:
        raise AnyrigError(
            "ANY-LOAD-008",
            f"The file {name!r} of {self.path} {fault}.",
            hint=f"see all damage with: anyrig verify {self.path}",
        )


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a checkpoint folder under whatever name, unless the name says that it was never finished."""
    folder = Path(path)
    name = os.path.basename(os.path.abspath(folder))
    if leftover_of(name):
        raise ManifestError(
            "ANY-LOAD-003",
            f"{folder} was not finished or was set aside: it is not a checkpoint.",
            hint="use a folder named step-N (`anyrig ls RUN` lists them)",
        )
    return open_unfinished(folder, step_of(name))


def open_unfinished(folder: Path, step: int | None) -> Checkpoint:
    """Open a folder whatever its name says, so that a repair can see what is in it; it holds `step` unless None."""
    manifest = decode(_manifest_bytes(folder))
    if step not in (None, manifest.step):
        raise ManifestError(
            "ANY-LOAD-004",
            f"{folder} holds step {manifest.step}: the folder was renamed.",
            hint=f"name it {step_name(manifest.step)} again",
        )
    return Checkpoint(folder, manifest)


def verify_checkpoint(checkpoint: Checkpoint) -> list[Damage]:
    """Read every file and compare sizes and all checksums; an empty list means sound."""
    return damage_in(checkpoint.path, checkpoint.manifest)


def _manifest_bytes(folder: Path) -> bytes:
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
        return path.read_bytes()
    except FileNotFoundError:
        _no_manifest(folder)
    except OSError as error:
        raise unreadable(path, error) from error


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


def unreadable(path: Path, error: OSError | ValueError) -> AnyrigError:
    """Return the error for what is there but cannot be read; never confused with what is not there."""
    return AnyrigError(
        "ANY-LOAD-012",
        f"{path} cannot be read: {error}.",
        hint="check the permissions of the file and of its folders, and the disk",
    )
