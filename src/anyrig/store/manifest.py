"""The manifest: what one checkpoint holds, as frozen data, and its text.

`docs/format.md` describes the text and `docs/manifest.schema.json` its schema. Reading it back is `decode.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from anyrig.store.digest import Leaf, hash_bytes, model_digest, state_digest
from anyrig.store.jsonvalues import canonical, encodable

FORMAT = "anyrig-checkpoint"
SCHEMA_VERSION = 1
SEAL = b',"manifest_checksum":"%s"}\n'  # the last bytes of the file; the checksum is of all before, plus `}`


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of the checkpoint other than the manifest; `name` is its path inside the folder, with `/`."""

    name: str
    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of a tensor: where it is in the tensor (elements) and in `file` (bytes); a checksum per 64 MiB."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    start: int
    stop: int
    checksums: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A stored tensor; `dtype` in safetensors spelling, `shape` the global one, `checksum` of all its bytes."""

    name: str
    aliases: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    checksum: str
    place: str | None
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's data."""
        return sum(piece.stop - piece.start for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything a checkpoint says about itself."""

    step: int
    files: tuple[FileEntry, ...]
    tensors: tuple[TensorEntry, ...]
    progress: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)

    def leaves(self) -> Iterator[Leaf]:
        """Yield what digests are taken over."""
        return ((tensor.name, tensor.dtype, tensor.shape, tensor.checksum) for tensor in self.tensors)

    @property
    def model_digest(self) -> str:
        """Digest of the weights."""
        return model_digest(self.leaves())

    @property
    def state_digest(self) -> str:
        """Digest of weights, optimizer, averages, metrics and step."""
        return state_digest(self.leaves(), self.step)


def encode(manifest: Manifest) -> bytes:
    """Return the text of `manifest.json`: canonical JSON whose last key is the checksum of the rest."""
    body = canonical(
        {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "step": manifest.step,
            "files": [_fields(entry) for entry in manifest.files],
            "tensors": [
                {**_fields(entry), "pieces": [_fields(piece) for piece in entry.pieces]} for entry in manifest.tensors
            ],
            "progress": encodable(manifest.progress, "progress"),
            "record": encodable(manifest.record, "record"),
        }
    )
    return body[:-1] + SEAL % hash_bytes(body).encode()


def _fields(entry: FileEntry | TensorEntry | Piece) -> dict[str, Any]:
    """Return the fields by name; `dataclasses.asdict` copies each value deeply, which takes half of a small save."""
    return {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}
