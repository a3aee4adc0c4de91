"""Checkpoints of this project's own as contents: tensors with their recorded checksums."""

from __future__ import annotations

from functools import partial
from typing import Any

from anyrig.errors import AnyrigError
from anyrig.formats.contents import Budget, Contents, FileTensor
from anyrig.formats.jsontext import json_object
from anyrig.formats.safetensors import own_role, read_raw
from anyrig.store.check import fault_of_file
from anyrig.store.manifest import TensorEntry
from anyrig.store.read import Checkpoint

_MODEL = "model.json"


def contents_of(checkpoint: Checkpoint) -> Contents:
    """Return the contents of a checkpoint; each file was seen to have its size and to be no link."""
    for entry in checkpoint.manifest.files:
        if fault := fault_of_file(checkpoint.path, entry):
            raise AnyrigError(
                "ANY-LOAD-008",
                f"The file {entry.name!r} of {checkpoint.path} {fault}.",
                hint=f"see all damage with: anyrig verify {checkpoint.path}",
            )
    return Contents(
        format="checkpoint",
        words="a checkpoint",
        path=checkpoint.path,
        tensors=tuple(_tensor(checkpoint, entry) for entry in checkpoint.manifest.tensors),
        config=_config(checkpoint),
        written_by=_texts(checkpoint.record.get("environment")),
        files=tuple((entry.name, entry.size) for entry in checkpoint.manifest.files),
    )


def _config(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """Return the Keras configuration of the model; None where it has none (the document says why)."""
    if _MODEL not in checkpoint.documents:
        return None
    found = json_object(checkpoint.path / _MODEL, "the file", checkpoint.document(_MODEL), Budget())
    return found if found.get("config") is not None else None


def _texts(made: Any) -> dict[str, str]:
    return {name: said for name, said in made.items() if isinstance(said, str)} if isinstance(made, dict) else {}


def _tensor(checkpoint: Checkpoint, entry: TensorEntry) -> FileTensor:
    piece = entry.pieces[0]
    return FileTensor(
        name=entry.name,
        dtype=entry.dtype,
        shape=entry.shape,
        nbytes=entry.nbytes,
        origin=checkpoint.path,
        file=piece.file,
        read=partial(read_raw, checkpoint.path / piece.file, entry.dtype, piece.start, entry.nbytes),
        checksum=entry.checksum,
        aliases=entry.aliases,
        place=entry.place,
        role=own_role(entry.name),
    )
