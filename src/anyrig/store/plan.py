"""What a save will write: which tensor goes where in which file. Pure data; nothing here touches a file system.

Everything that can be refused is refused here, before the first byte is written.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anyrig.errors import UsageError
from anyrig.sizes import parse_size
from anyrig.store.dtypes import ITEM_BYTES, spelling_of
from anyrig.store.header import ALIGNMENT, TensorSpec, build_header
from anyrig.store.jsonvalues import decoded, encodable
from anyrig.store.layout import ASSETS, DATA_SUFFIX, MANIFEST, data_name, fault_of_path
from anyrig.store.tensors import StoredTensor

_GROUP = re.compile(r"[a-z][a-z0-9_]{0,31}")
_MAX_STEP = 10**18 - 1


@dataclass(frozen=True, slots=True)
class Shards:
    """How tensors are shared out over data files: no more than `max_bytes` in one, but for a tensor that is larger.

    With `by_layer` each of the model's own layers has files of its own; the rest is cut by size alone.
    """

    max_bytes: int = 5 * 2**30
    by_layer: bool = False


BY_SIZE = Shards()
SPLITS = ("size", "layer")


def shards_of(max_shard_size: int | str, split: str) -> Shards:
    """Return what a user's settings mean; raise ValueError, which begins with the name of the one at fault."""
    if split not in SPLITS:
        raise ValueError(f"split: expected {' or '.join(SPLITS)}, found {split!r}")
    try:
        return Shards(parse_size(max_shard_size), by_layer=split == "layer")
    except ValueError as error:
        raise ValueError(f"max_shard_size: {error}") from error


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A data file: the bytes of its header, then `tensors` one after another."""

    name: str
    header: bytes
    tensors: tuple[TensorSpec, ...]

    @property
    def size(self) -> int:
        """Bytes of the finished file."""
        return len(self.header) + sum(spec.nbytes for spec in self.tensors)


@dataclass(frozen=True, slots=True)
class WritePlan:
    """A checkpoint to be written: data files, other files by path, and the manifest's JSON parts."""

    step: int
    data_files: tuple[PlannedFile, ...]
    other_files: Mapping[str, bytes]
    progress: dict[str, Any]
    record: dict[str, Any]


def plan_checkpoint(
    step: int,
    tensors: Sequence[StoredTensor],
    *,
    progress: Mapping[str, Any],
    documents: Mapping[str, bytes],
    assets: Mapping[str, bytes],
    record: Mapping[str, Any],
    shards: Shards = BY_SIZE,
) -> WritePlan:
    """Return the plan of one checkpoint; raise `UsageError` for anything that cannot be stored."""
    if not 0 <= step <= _MAX_STEP:
        raise UsageError("ANY-STORE-008", f"step={step!r} is not a step.", hint="give an integer of 0 or more")
    return WritePlan(
        step=operator.index(step),
        data_files=tuple(plan_data_files(specs_of(tensors), shards)),
        other_files=_other_files(documents, assets),
        progress=decoded(encodable(progress, "progress")),
        record=decoded(encodable(record, "record")),
    )


def specs_of(tensors: Sequence[StoredTensor]) -> list[TensorSpec]:
    """Return the specs of `tensors`, whose names and types can be stored."""
    seen: set[str] = set()
    for tensor in tensors:
        for text in (tensor.name, *tensor.aliases, tensor.place or ""):
            _check_text(tensor.name, text)
        if "/" not in tensor.name or not _GROUP.fullmatch(tensor.name.split("/")[0]):
            raise UsageError(
                "ANY-STORE-002",
                f"A tensor cannot be stored under the name {tensor.name!r}.",
                hint="a name is a group of lower-case letters, then '/', then the rest: 'model/conv/kernel'",
            )
        if tensor.name in seen:
            raise UsageError(
                "ANY-STORE-003", f"Two tensors have the name {tensor.name!r}.", hint="give each tensor its own name"
            )
        seen.add(tensor.name)
    return [_spec(tensor) for tensor in tensors]


def _check_text(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(
            "ANY-STORE-002", f"The tensor {name!r} has a name that is not valid Unicode.", hint="rename it"
        ) from None


def _spec(tensor: StoredTensor) -> TensorSpec:
    spelling = spelling_of(tensor.array.dtype)
    if spelling is None:
        raise UsageError(
            "ANY-STORE-001",
            f"The tensor {tensor.name!r} has the type {tensor.array.dtype}, which safetensors files cannot hold.",
            hint="cast it to a number type such as float32, or keep it as text in an asset",
        )
    return TensorSpec(tensor.name, spelling, tensor.array.shape, tensor.array.size * ITEM_BYTES[spelling])


def plan_data_files(specs: Sequence[TensorSpec], shards: Shards) -> Iterator[PlannedFile]:
    """Share each group out over data files."""
    groups: dict[str, list[TensorSpec]] = {}
    for spec in specs:
        groups.setdefault(spec.name.split("/")[0], []).append(spec)
    for group, members in groups.items():
        by_layer = shards.by_layer and group == "model"
        cut = [shard for part in _parts(members, by_layer) for shard in _shards(part, shards.max_bytes)]
        for number, shard in enumerate(cut, start=1):
            ordered = sorted(shard, key=_place_in_file)
            yield PlannedFile(data_name(group, number, len(cut)), build_header(ordered), tuple(ordered))


def _parts(specs: Sequence[TensorSpec], by_layer: bool) -> Iterable[Sequence[TensorSpec]]:
    """Put together what belongs into the same files: all, or what has the same second part in its name."""
    if not by_layer:
        return [specs]
    layers: dict[str, list[TensorSpec]] = {}
    for spec in specs:
        layers.setdefault(spec.name.split("/")[1], []).append(spec)
    return layers.values()


def _shards(specs: Sequence[TensorSpec], max_bytes: int) -> list[list[TensorSpec]]:
    shards: list[list[TensorSpec]] = [[]]
    filled = 0
    for spec in specs:
        if shards[-1] and filled + spec.nbytes > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(spec)
        filled += spec.nbytes
    return shards


def _place_in_file(spec: TensorSpec) -> tuple[bool, int]:
    """Whole lines of 64 bytes first, so that all of them can be mapped; then large items first, so none is split."""
    return spec.nbytes % ALIGNMENT != 0, -ITEM_BYTES[spec.dtype]


def _other_files(documents: Mapping[str, bytes], assets: Mapping[str, bytes]) -> dict[str, bytes]:
    for name in documents:
        if "/" in name or name in (MANIFEST, ASSETS) or name.endswith(DATA_SUFFIX):
            _refuse_file("document", name, "is taken or is not a plain file name")
    files = dict(documents) | {f"{ASSETS}/{path}": content for path, content in assets.items()}
    for name in files:
        if fault := fault_of_path(name):
            _refuse_file("file", name, fault)
        if any(other.startswith(f"{name}/") for other in files):
            _refuse_file("file", name, "is also the folder of another file")
    return files


def _refuse_file(kind: str, name: str, fault: str) -> None:
    raise UsageError(
        "ANY-STORE-004",
        f"The {kind} {name!r} cannot be stored: its name {fault}.",
        hint="use a relative path of plain names (`anyrig.store.layout.portable` makes one of any text)",
    )
