"""From the bytes of `manifest.json` to a `Manifest`, believing nothing.

The checksum is looked at first, then every key's type, then whether the parts agree with each other: ranges inside
files, sizes that follow from shapes, unique names. Nothing is allocated by a number found in the text, and no file but
the manifest is looked at; whether files really have these sizes is for `read.py` and `check.py`.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from anyrig.store.digest import CHUNK_BYTES, hash_bytes
from anyrig.store.dtypes import ITEM_BYTES
from anyrig.store.jsonvalues import StrictJsonError, decoded, parse_strict
from anyrig.store.layout import DATA_SUFFIX, MANIFEST, fault_of_path
from anyrig.store.manifest import FORMAT, SCHEMA_VERSION, SEAL, FileEntry, Manifest, Piece, TensorEntry
from anyrig.store.parse import HASH_DIGITS, MAX_WHOLE, Fields, ManifestError, bad

_ROOT = frozenset({"format", "schema_version", "step", "files", "tensors", "progress", "record"})
_FILE = frozenset({"name", "size", "checksum"})
_TENSOR = frozenset({"name", "aliases", "dtype", "shape", "checksum", "place", "pieces"})
_PIECE = frozenset({"offset", "shape", "file", "start", "stop", "checksums"})
_MAX_RANK = 64  # numpy's
_SEAL_BYTES = len(SEAL % (b"0" * HASH_DIGITS))


def decode(raw: bytes) -> Manifest:
    """Return the manifest that `encode` made `raw` of; raise `ManifestError` for anything else."""
    try:
        document = parse_strict(_unsealed(raw))
    except StrictJsonError as error:
        _damaged(str(error))
    _check_version(document)
    root = Fields.of(document, "", _ROOT)
    files = tuple(_file(item, where) for item, where in root.items("files"))
    sizes = {entry.name: entry.size for entry in files}
    if len(sizes) != len(files):
        bad("files", f"the file {_repeated([entry.name for entry in files])!r} is listed twice")
    tensors = tuple(_tensor(item, where, sizes) for item, where in root.items("tensors"))
    _check_names(tensors)
    _check_overlaps(tensors)
    progress, record = decoded(root.mapping("progress")), decoded(root.mapping("record"))
    return Manifest(step=root.whole("step"), files=files, tensors=tensors, progress=progress, record=record)


def _unsealed(raw: bytes) -> bytes:
    """Return the JSON without its last key, which must be the checksum of what is returned."""
    body, seal = raw[:-_SEAL_BYTES] + b"}", raw[-_SEAL_BYTES:]
    if seal != SEAL % hash_bytes(body).encode():
        _damaged("its checksum does not match its content")
    return body


def is_sealed(path: Path) -> bool:
    """Tell whether a file ends as a manifest does; nothing more is looked at."""
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _SEAL_BYTES))
        end = file.read(_SEAL_BYTES)
    start, _, tail = SEAL.partition(b"%s")
    return len(end) == _SEAL_BYTES and end.startswith(start) and end.endswith(tail)


def _damaged(why: str) -> NoReturn:
    raise ManifestError(
        "ANY-LOAD-005",
        f"The checkpoint's {MANIFEST} is damaged: {why}.",
        hint="use another checkpoint (`anyrig ls RUN` lists the good ones), or copy this one again",
    )


def _check_version(document: Any) -> None:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        bad("format", f"expected {FORMAT!r}")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise ManifestError(
            "ANY-LOAD-006",
            f"The checkpoint has schema version {version!r}; this anyrig reads version {SCHEMA_VERSION}.",
            hint="pip install --upgrade anyrig",
        )


def _file(value: Any, where: str) -> FileEntry:
    fields = Fields.of(value, where, _FILE)
    name = fields.text("name")
    fault = "names the manifest itself" if name == MANIFEST else fault_of_path(name)
    if fault:
        bad(fields.at("name"), f"the path {name!r} {fault}")
    return FileEntry(name=name, size=fields.whole("size"), checksum=fields.checksum("checksum"))


def _tensor(value: Any, where: str, sizes: dict[str, int]) -> TensorEntry:
    fields = Fields.of(value, where, _TENSOR)
    dtype, shape = fields.text("dtype"), fields.wholes("shape")
    if dtype not in ITEM_BYTES:
        bad(fields.at("dtype"), f"the type {dtype!r} is unknown")
    if len(shape) > _MAX_RANK:
        bad(fields.at("shape"), f"{len(shape)} dimensions are more than {_MAX_RANK}")
    pieces = tuple(_piece(item, at, ITEM_BYTES[dtype], sizes) for item, at in fields.items("pieces"))
    if len(pieces) != 1 or pieces[0].shape != shape or any(pieces[0].offset):
        bad(fields.at("pieces"), "expected one piece that is the whole tensor (schema version 1 has no other)")
    return TensorEntry(
        name=fields.text("name"),
        aliases=fields.texts("aliases"),
        dtype=dtype,
        shape=shape,
        checksum=fields.checksum("checksum"),
        place=fields.optional_text("place"),
        pieces=pieces,
    )


def _piece(value: Any, where: str, item_bytes: int, sizes: dict[str, int]) -> Piece:
    fields = Fields.of(value, where, _PIECE)
    piece = Piece(
        offset=fields.wholes("offset"),
        shape=fields.wholes("shape"),
        file=fields.text("file"),
        start=fields.whole("start"),
        stop=fields.whole("stop"),
        checksums=fields.checksums("checksums"),
    )
    if len(piece.offset) != len(piece.shape):
        bad(fields.at("offset"), "offset and shape differ in length")
    if piece.file not in sizes or not piece.file.endswith(DATA_SUFFIX):
        bad(fields.at("file"), f"{piece.file!r} is not a data file of this checkpoint")
    if not piece.start <= piece.stop <= sizes[piece.file]:
        bad(fields.at("stop"), f"bytes {piece.start} to {piece.stop} are not in {piece.file!r}")
    if piece.stop - piece.start != math.prod(piece.shape) * item_bytes:
        bad(fields.at("shape"), f"{list(piece.shape)} does not fill bytes {piece.start} to {piece.stop}")
    if math.prod(extent or 1 for extent in piece.shape) * item_bytes > MAX_WHOLE:
        bad(fields.at("shape"), f"{list(piece.shape)} is larger than any array")
    if len(piece.checksums) != -(-(piece.stop - piece.start) // CHUNK_BYTES):
        bad(fields.at("checksums"), "expected one checksum per 64 MiB")
    return piece


def _check_names(tensors: Sequence[TensorEntry]) -> None:
    names = [tensor.name for tensor in tensors]
    if len(set(names)) != len(names):
        bad("tensors", f"the name {_repeated(names)!r} is listed twice")


def _repeated(names: Sequence[str]) -> str:
    return next(name for name, count in Counter(names).items() if count > 1)


def _check_overlaps(tensors: Sequence[TensorEntry]) -> None:
    pieces = [(piece, tensor.name) for tensor in tensors for piece in tensor.pieces if piece.stop > piece.start]
    pieces.sort(key=lambda item: (item[0].file, item[0].start))
    for (piece, name), (following, other) in itertools.pairwise(pieces):
        if piece.file == following.file and following.start < piece.stop:
            bad("tensors", f"{name!r} and {other!r} share bytes of {piece.file!r}")
