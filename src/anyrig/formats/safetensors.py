"""Safetensors files: one, or several with their index (`model.safetensors.index.json`), named by file or folder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyrig.formats.contents import BLOCK_ELEMENTS, Budget, Contents, FileTensor, Role, damaged, over_budget
from anyrig.formats.jsontext import json_object
from anyrig.formats.shards import index_at, is_index, safe_member, weight_map
from anyrig.store.check import unreadable
from anyrig.store.dtypes import ITEM_BYTES, numpy_dtype
from anyrig.store.header import PREFIX_BYTES, TensorSpec, header_of
from anyrig.store.layout import DATA_SUFFIX, MANIFEST

if TYPE_CHECKING:
    import numpy as np

_GROUPS: dict[str, Role] = {
    "model": "weight",
    "optimizer": "optimizer",
    "ema": "optimizer",
    "metrics": "other",
    "callbacks": "other",
}
_SEED = re.compile(r"model/(.*/)?\w*seed_generator[^/]*/state")
PLACES = "anyrig.places"
"""The key in a file's metadata of a JSON object: fingerprints of places in the graph by name (`FileTensor.place`)."""
OPTIMIZER = "anyrig.optimizer"
"""The key of the compiled optimizer's class (`Adam`; `LossScaleOptimizer,Adam`), which says what slots mean."""
_UNCHECKED = ("the numbers: safetensors files have no checksums",)
_PART = re.compile(r"(.+)-\d{5}-of-(\d{5})\.safetensors")


def recognize(path: Path) -> Path | None:
    """Return the path of a safetensors file or of the index of several; of a folder, the one that it holds."""
    if not path.is_dir():
        named = path.is_file() and path.name.endswith(DATA_SUFFIX)  # a damaged one is to be called that
        return path if named or _is_file(path) or is_index(path, DATA_SUFFIX) else None
    if (path / MANIFEST).exists():
        return None  # a checkpoint of this project, which says more of its files
    for suffix in (f"{DATA_SUFFIX}.index.json", DATA_SUFFIX):
        if found := sorted(path.glob(f"*{suffix}")):
            return found[0] if len(found) == 1 and recognize(found[0]) else None
    return None


def _is_file(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            start = file.read(PREFIX_BYTES + 1)
            room = os.fstat(file.fileno()).st_size - PREFIX_BYTES
    except OSError:
        return False
    return start[PREFIX_BYTES:] == b"{" and 2 <= int.from_bytes(start[:PREFIX_BYTES], "little") <= room


def read(path: Path, budget: Budget) -> Contents:
    """Return the tensors of a safetensors file, or of all files that an index names; no checksums are recorded."""
    return _whole(path, budget) if is_index(path, DATA_SUFFIX) else _one(path, budget)


def _one(path: Path, budget: Budget) -> Contents:
    part = _PART.fullmatch(path.name)
    metadata = header_of(path)[1]
    return Contents(
        format="safetensors",
        words="a safetensors file",
        path=path,
        tensors=_tensors(path, path, budget),
        metadata={OPTIMIZER: metadata[OPTIMIZER]} if OPTIMIZER in metadata else {},
        files=((path.name, path.stat().st_size),),
        notes=(f"it is one of {int(part[2])} files: open their folder or its index for the whole",) if part else (),
        unchecked=_UNCHECKED,
    )


def _whole(path: Path, budget: Budget) -> Contents:
    shards = {name: files[0] for name, files in weight_map(path, index_at(path, budget)).items()}
    names = list(dict.fromkeys(shards.values()))
    files = {name: safe_member(path.parent, name) for name in names}
    found = {(tensor.file, tensor.name): tensor for name in names for tensor in _tensors(files[name], path, budget)}
    if missing := [name for name, file in shards.items() if (file, name) not in found]:
        raise damaged(path, f"its index says that {shards[missing[0]]!r} holds {missing[0]!r}, and it does not")
    extra = len(found) - len(shards)
    return Contents(
        format="safetensors",
        words="safetensors files with an index",
        path=path,
        tensors=tuple(found[file, name] for name, file in shards.items()),
        files=tuple((file, (path.parent / file).stat().st_size) for file in (path.name, *names)),
        notes=(f"{extra} tensors of its files are not in its index: they are left out",) if extra else (),
        unchecked=_UNCHECKED,
    )


def _places(path: Path, metadata: Mapping[str, str], budget: Budget) -> Mapping[str, str]:
    """Return the places of tensors in the graph that this project writes into a file of its own."""
    if PLACES not in metadata:
        return {}
    found = json_object(path, f"{PLACES} in it", metadata[PLACES], budget)
    return {name: place for name, place in found.items() if isinstance(place, str)}


def own_role(name: str) -> Role:
    """Return what a tensor of this project's files is for; the state of random generators is no weight."""
    return "other" if _SEED.fullmatch(name) else _GROUPS.get(name.partition("/")[0], "other")


def _tensors(path: Path, opened: Path, budget: Budget) -> tuple[FileTensor, ...]:
    specs, metadata = header_of(path)
    if len(specs) > budget.tensors:
        raise over_budget(path, f"it lists {len(specs)} tensors")
    start = path.stat().st_size - sum(spec.nbytes for spec in specs)  # the header was checked: data fills the file
    places = _places(path, metadata, budget)
    ours = all(spec.name.partition("/")[0] in _GROUPS for spec in specs)
    tensors = []
    for spec in specs:
        role = own_role(spec.name) if ours else "weight"
        tensors.append(_tensor(spec, path, opened, start, role, places.get(spec.name)))
        start += spec.nbytes
    return tuple(tensors)


def _tensor(spec: TensorSpec, path: Path, opened: Path, start: int, role: Role, place: str | None) -> FileTensor:
    return FileTensor(
        role=role,
        place=place,
        name=spec.name,
        dtype=spec.dtype,
        shape=spec.shape,
        nbytes=spec.nbytes,
        origin=opened,
        file=path.name,
        read=partial(read_raw, path, spec.dtype, start, spec.nbytes),
    )


def read_raw(file: Path, dtype: str, start: int, nbytes: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the elements of `nbytes` of a file from `start` on; of an unknown type, the bytes."""
    import numpy as np

    kind = numpy_dtype(dtype) if dtype in ITEM_BYTES else np.dtype(np.uint8)
    left = nbytes // kind.itemsize
    try:
        with open(file, "rb", buffering=0) as stream:
            stream.seek(start)
            while left:
                block = np.fromfile(stream, kind, min(left, BLOCK_ELEMENTS))
                if not block.size:
                    raise OSError(0, "the file ended early")
                left -= block.size
                yield block
    except OSError as error:
        raise unreadable(file, error) from error
