"""Say in what two checkpoints or files differ: tensors, files, configuration, progress, and where they were made.

Tensors are paired by name; those of two formats that name them differently by what the names say (`mapping.propose`),
and where names say nothing by their bytes.
Tensors whose recorded checksums are equal are not read. Nothing is written, and TensorFlow is not imported.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyrig.diagnose.foreign import contents_of_other_format
from anyrig.diagnose.leaves import NOTHING, LeafChange, leaf_changes
from anyrig.diagnose.verify import Watch, unwatched
from anyrig.formats.checkpoint import contents_of
from anyrig.formats.contents import Contents, FileTensor
from anyrig.locations import find_checkpoint
from anyrig.mapping.propose import propose
from anyrig.mapping.sides import wanted_side, without_copies
from anyrig.store.digest import hash_bytes
from anyrig.store.layout import DATA_SUFFIX
from anyrig.store.read import Checkpoint, open_checkpoint

if TYPE_CHECKING:
    from anyrig.diagnose.values import ValueChange

# Of the progress: how, why and towards what was saved, which makes the state no other one.
_BOOKKEEPING = frozenset({"loop", "named_save", "weights_only", "boundary", "epochs", "forks"})


@dataclass(frozen=True, slots=True)
class TensorSide:
    """A tensor as one side has it: `dtype` in safetensors spelling."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorChange:
    """A tensor that both have, and that differs; `values` is None where shapes differ or all values are equal."""

    name: str
    a: TensorSide
    b: TensorSide
    values: ValueChange | None


@dataclass(frozen=True, slots=True)
class Renamed:
    """A tensor that is called `a` on one side and `b` on the other; `why` is the reason to take them for the same.

    `by_bytes`: names do not say it, and what would tell two layers apart that were exchanged is not there.
    """

    a: str
    b: str
    why: str
    by_bytes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """What differs between the checkpoints or files `a` and `b`.

    `files` are documents and assets by checksum, `config` the leaves of the model's configuration, `progress` those of
    how far training had come, as far as both say it. No part of the state are `bookkeeping`, the rest of what the
    checkpoints say under progress (how and why they were saved, and what only one says), and `record`, where they come
    from (environment, hashes of recipe and data). `by_checksum` tensors are equal by their recorded checksums, unread.
    `renamed` lists the tensors that the two name differently, and why they were taken for the same.
    """

    a: Path
    b: Path
    equal_tensors: int
    only_a: tuple[TensorSide, ...]
    only_b: tuple[TensorSide, ...]
    changed: tuple[TensorChange, ...]
    files: tuple[LeafChange, ...] = ()
    config: tuple[LeafChange, ...] = ()
    progress: tuple[LeafChange, ...] = ()
    bookkeeping: tuple[LeafChange, ...] = ()
    record: tuple[LeafChange, ...] = ()
    by_checksum: int = 0
    renamed: tuple[Renamed, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether both hold the same state: tensors, files, configuration, and how far training had come."""
        return not (self.only_a or self.only_b or self.changed or self.files or self.config or self.progress)


def diff(a: str | os.PathLike[str], b: str | os.PathLike[str], *, watch: Watch = unwatched) -> Diff:
    """Compare two run directories (their newest checkpoints), checkpoints, or files of any format.

    Raises ANY-DIFF-001 when bytes that had to be read are damaged.
    """
    left, right = _open(a), _open(b)
    have, want = (replace(side, tensors=tuple(without_copies(side.tensors))) for side in map(_contents, (left, right)))
    renamed = () if have.format == want.format else tuple(_renamed(have, want))
    both = _paired(have, want, renamed)
    only_a, only_b = ({id(pair[side]) for pair in both} for side in (0, 1))
    unequal = [pair for pair in both if not _same(*pair)]
    with watch(sum(one.nbytes + other.nbytes for one, other in unequal)) as advance:
        compared = [_change(one, other, advance) for one, other in unequal]
    changed = tuple(change for change in compared if change is not None)
    config, files = _documents(left, right)
    said = _leaves(left, right, lambda side: {"step": side.step, **side.progress})
    counted = _counted(left, right)
    return Diff(
        a=left.path,
        b=right.path,
        equal_tensors=len(both) - len(changed),
        only_a=tuple(_side(tensor) for tensor in have.tensors if id(tensor) not in only_a),
        only_b=tuple(_side(tensor) for tensor in want.tensors if id(tensor) not in only_b),
        changed=changed,
        files=files,
        config=config,
        progress=tuple(change for change in said if _key(change) in counted),
        bookkeeping=tuple(change for change in said if _key(change) not in counted),
        record=_leaves(left, right, lambda side: side.record),
        by_checksum=len(both) - len(unequal),
        renamed=renamed,
    )


def _open(path: str | os.PathLike[str]) -> Checkpoint | Contents:
    other = contents_of_other_format(path)
    return open_checkpoint(find_checkpoint(path)) if other is None else other


def _contents(side: Checkpoint | Contents) -> Contents:
    return contents_of(side) if isinstance(side, Checkpoint) else side


def _renamed(a: Contents, b: Contents) -> Iterator[Renamed]:
    """Yield the tensors of two formats that have different names and are the same by what the names say."""
    numbered = _of_the_same_layers(a, b)
    yield from (Renamed(one.name, other.name, _NUMBERED) for one, other in numbered if one.name != other.name)
    known = [{id(pair[side]) for pair in numbered} for side in (0, 1)]
    left, right = ([t for t in side.tensors if id(t) not in done] for side, done in zip((a, b), known, strict=True))
    said = _said_by_names(replace(a, tensors=tuple(left)), replace(b, tensors=tuple(right)))
    yield from (each for each in said if each.a != each.b)
    taken = {each.a for each in said}, {each.b for each in said}
    common = {tensor.name for tensor in left} & {tensor.name for tensor in right}
    rest = [[t for t in side if t.name not in names | common] for side, names in zip((left, right), taken, strict=True)]
    yield from _of_the_same_bytes(*rest)


def _said_by_names(a: Contents, b: Contents) -> list[Renamed]:
    """Return what the names of two formats say, asked from both sides: names that tell more come on either."""
    there = _proposed(a, b)
    have, want = {each.a for each in there}, {each.b for each in there}
    back = [Renamed(each.b, each.a, each.why) for each in _proposed(b, a)]
    return there + [each for each in back if each.a not in have and each.b not in want]


def _proposed(a: Contents, b: Contents) -> list[Renamed]:
    return [
        Renamed(pair.stored.name, pair.wanted.name, pair.why)
        for pair in propose(a.tensors, wanted_side(b)).pairs
        if len(pair.stored.tensors) == 1 and not pair.steps
    ]


def _of_the_same_bytes(left: Sequence[FileTensor], right: Sequence[FileTensor]) -> Iterator[Renamed]:
    """Pair what has the same role, type, shape and bytes; nothing is read that has no counterpart of its shape."""
    shapes = [{_kind(tensor) for tensor in side} for side in (left, right)]
    found: dict[Any, list[FileTensor]] = defaultdict(list)
    for tensor in right:
        if _kind(tensor) in shapes[0]:
            found[_kind(tensor), _digest(tensor)].append(tensor)
    for tensor in left:
        if _kind(tensor) in shapes[1] and (alike := found.get((_kind(tensor), _digest(tensor)))):
            yield Renamed(tensor.name, alike.pop(0).name, "the same bytes", by_bytes=True)


def _kind(tensor: FileTensor) -> tuple[str, str, tuple[int, ...]]:
    return tensor.role, tensor.dtype, tensor.shape


def _digest(tensor: FileTensor) -> str:
    return hash_bytes(tensor.array().tobytes())


_NUMBERED = "the same variable, by its number, of the layer of this name"


def _of_the_same_layers(a: Contents, b: Contents) -> list[tuple[FileTensor, FileTensor]]:
    """Pair what two of Keras's formats have of layers with one name, and as many variables of the same shapes."""
    have, want = _numbered(a), _numbered(b)
    shapes = [{key: [tensor.shape for tensor in tensors] for key, tensors in side.items()} for side in (have, want)]
    same = [key for key in have if key in want and shapes[0][key] == shapes[1][key]]
    return [pair for key in same for pair in zip(have[key], want[key], strict=True)]


def _numbered(side: Contents) -> dict[str, list[FileTensor]]:
    """Return the tensors of each layer, by its name, and of the optimizer, in the order in which Keras counts them."""
    found: dict[str, dict[int, FileTensor]] = defaultdict(dict)
    for tensor in side.tensors:
        if side.format in ("keras-h5", "keras-h5-weights"):
            name = (tensor.aliases or (tensor.name,))[0] if tensor.role == "optimizer" else tensor.name
            layer = name.partition("/")[0]
            found[layer][len(found[layer])] = tensor
        elif side.format in ("keras", "keras-weights") and tensor.aliases:
            layer, _, number = tensor.aliases[0].rpartition("/")
            if number.isdigit():
                found[layer][int(number)] = tensor
    return {layer: [tensors[number] for number in sorted(tensors)] for layer, tensors in found.items()}


def _paired(a: Contents, b: Contents, renamed: Sequence[Renamed]) -> list[tuple[FileTensor, FileTensor]]:
    have, want = ({tensor.name: tensor for tensor in side.tensors} for side in (a, b))
    other_name = {each.a: each.b for each in renamed}
    taken = set(other_name.values())
    names = ((name, other_name.get(name, name)) for name in have)
    return [(have[one], want[other]) for one, other in names if other in want and (one != other or other not in taken)]


def _same(a: FileTensor, b: FileTensor) -> bool:
    return a.checksum is not None and (a.dtype, a.shape, a.checksum) == (b.dtype, b.shape, b.checksum)


def _change(a: FileTensor, b: FileTensor, advance: Any) -> TensorChange | None:
    """Return how two tensors differ, or None if they are equal after all (no checksum was recorded)."""
    from anyrig.diagnose.values import compare_values

    values = compare_values(a, b, advance) if a.shape == b.shape else None
    equal = values is None and (a.dtype, a.shape) == (b.dtype, b.shape)
    return None if equal else TensorChange(a.name, _side(a), _side(b), values)


def _side(tensor: FileTensor) -> TensorSide:
    return TensorSide(tensor.name, tensor.dtype, tensor.shape)


def _documents(
    a: Checkpoint | Contents, b: Checkpoint | Contents
) -> tuple[tuple[LeafChange, ...], tuple[LeafChange, ...]]:
    """Return what differs in JSON documents leaf by leaf, and the other files that differ; a data file has none."""
    if not isinstance(a, Checkpoint) or not isinstance(b, Checkpoint):
        both = _contents(a).config, _contents(b).config
        if None in both:
            return (), ()
        changes = leaf_changes(*(_architecture(config) for config in both))
        return tuple(_without_counters(changes)), ()
    config: list[LeafChange] = []
    files: list[LeafChange] = []
    have, want = _checksums(a), _checksums(b)
    for name in sorted(have.keys() | want.keys()):
        one, other = have.get(name, NOTHING), want.get(name, NOTHING)
        if one == other:
            continue
        if name.endswith(".json") and NOTHING not in (one, other):
            config += _without_counters(leaf_changes(_json(a, name), _json(b, name)))
        else:
            files.append(LeafChange(name, one, other))
    return tuple(config), tuple(files)


def _checksums(checkpoint: Checkpoint) -> Mapping[str, str]:
    return {entry.name: entry.checksum for entry in checkpoint.manifest.files if not entry.name.endswith(DATA_SUFFIX)}


def _json(checkpoint: Checkpoint, name: str) -> Any:
    return json.loads(checkpoint.document(name))


_OF_THE_WRITER = (
    "module",
    "registered_name",
    "shared_object_id",
    "build_config",
    "build_input_shape",
    "compile_config",
)


def _architecture(config: Any) -> Any:
    """Return a configuration without what each way of writing puts beside the layers, and says in its own words."""
    if isinstance(config, Mapping):
        kept = (
            config.items() if "class_name" not in config else [i for i in config.items() if i[0] not in _OF_THE_WRITER]
        )
        return {key: _architecture(value) for key, value in kept}
    return [_architecture(item) for item in config] if isinstance(config, list | tuple) else config


def _without_counters(changes: Iterator[LeafChange]) -> Iterator[LeafChange]:
    """Leave out names that differ in Keras's counter alone (`dense` and `dense_1`), which says nothing of the model."""
    for change in changes:
        names = [re.sub(r"_\d+$", "", value) if isinstance(value, str) else value for value in (change.a, change.b)]
        if names[0] != names[1] or not isinstance(change.a, str):
            yield change


def _counted(a: Checkpoint | Contents, b: Checkpoint | Contents) -> frozenset[str]:
    """Return the keys of the progress that are part of the state: those that both have, but for the bookkeeping."""
    if not isinstance(a, Checkpoint) or not isinstance(b, Checkpoint):
        return frozenset()
    return frozenset({"step", *(a.progress.keys() & b.progress.keys())}) - _BOOKKEEPING


def _key(change: LeafChange) -> str:
    return re.split(r"[.\[]", change.where, maxsplit=1)[0]


def _leaves(
    a: Checkpoint | Contents, b: Checkpoint | Contents, part: Callable[[Checkpoint], dict[str, Any]]
) -> tuple[LeafChange, ...]:
    if not isinstance(a, Checkpoint) or not isinstance(b, Checkpoint):
        return ()
    return tuple(leaf_changes(part(a), part(b)))
