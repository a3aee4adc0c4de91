"""The second Saver format of TensorFlow: an `.index` that says where tensors lie, and `.data-*-of-*` files with them.

Driven by the prefix that these names share. Opening reads the index alone and compares it with the sizes of the data
files: every range must lie inside its file, hold what its type and shape ask for, and overlap no other. Data is read
with the blocks of a tensor; its checksum is checked before the last block is handed out. Tensors that were saved in
slices (partitioned variables) are given whole. No link is followed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyrig.errors import AnyrigError
from anyrig.formats.contents import BLOCK_ELEMENTS, TEXT, Budget, FileTensor, damaged, over_budget
from anyrig.formats.protobuf import Message, parse, varints
from anyrig.formats.tf_slices import Piece, joined, slice_key
from anyrig.formats.tf_table import Table, extend, masked, newer, read_bytes, size_of
from anyrig.formats.tf_types import Slice, slice_of, type_of, whole_shape
from anyrig.store.dtypes import ITEM_BYTES, numpy_dtype

if TYPE_CHECKING:
    import numpy as np

INDEX_SUFFIX = ".index"
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_KNOWN_VERSION = 1
_BLOCK_BYTES = 8 * BLOCK_ELEMENTS
_VARIANT = "variant"
_CRC_BYTES = 4


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the names of a checkpoint's files begin with, in their folder; it may be empty."""

    folder: Path
    name: str

    @property
    def path(self) -> Path:
        """Return it as one path."""
        return self.folder / self.name

    @property
    def index(self) -> Path:
        """Return the path of the index."""
        return self.folder / f"{self.name}{INDEX_SUFFIX}"

    def data(self, shard: int, shards: int) -> Path:
        """Return the path of a data file."""
        return self.folder / f"{self.name}.data-{shard:05d}-of-{shards:05d}"


@dataclass(frozen=True, slots=True)
class Entry:
    """What the index says of a tensor, or of one slice; a tensor in `slices` has no data of its own."""

    key: bytes
    dtype: str
    item_bytes: int
    shape: tuple[int, ...]
    shard: int
    start: int
    size: int
    crc: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Bundle:
    """An index that was read and found to agree with the sizes of its data files."""

    prefix: Prefix
    shards: int
    producer: int
    entries: dict[bytes, Entry]
    files: tuple[tuple[str, int], ...]
    budget: Budget

    @property
    def keys(self) -> list[str]:
        """Return the keys of whole tensors."""
        return [_text(self.prefix.index, key) for key in self.entries if not key.startswith(b"\0")]

    def tensor(self, key: str) -> FileTensor:
        """Return a tensor under its key as its name."""
        entry = self.entries[key.encode()]
        nbytes = entry.size if not entry.slices else math.prod(entry.shape) * entry.item_bytes
        if entry.dtype == TEXT and not entry.slices:
            nbytes -= _lengths(self.data_file(entry), entry, self.budget)[1]
        return FileTensor(
            name=key,
            dtype=entry.dtype,
            shape=entry.shape,
            nbytes=nbytes,
            origin=self.prefix.path,
            file=self.data_file(entry).name,
            read=partial(self.read, entry),
        )

    def read(self, entry: Entry) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the elements of a tensor, joined of its slices if it has some."""
        if not entry.slices:
            return _read(self.data_file(entry), entry, self.budget)
        pieces, count = [], 0
        for part in entry.slices:
            stored = self.entries[slice_key(entry.key, part)]
            region = part.inside(entry.shape)
            assert region is not None  # it was checked when the index was read
            count += math.prod(stored.shape)
            pieces.append(Piece(region, partial(_read, self.data_file(stored), stored, self.budget)))
        if count != math.prod(entry.shape):  # so it is in files whose writer named the slots of slices wrongly
            raise damaged(self.prefix.index, f"{_shown(entry.key)}: slices of {count} elements for shape {entry.shape}")
        return joined(self.prefix.index, entry.shape, pieces)

    def data_file(self, entry: Entry) -> Path:
        """Return the file that holds an entry's data (of a sliced tensor: its first slice's)."""
        while entry.slices:
            entry = self.entries[slice_key(entry.key, entry.slices[0])]
        return self.prefix.data(entry.shard, self.shards)


def open_bundle(prefix: Prefix, budget: Budget) -> Bundle:
    """Read an index and compare it with its data files."""
    file = prefix.index
    if size_of(file) > budget.header_bytes:
        raise over_budget(file, f"an index of more than {budget.header_bytes} bytes")
    items = Table(file, budget).items()
    key, value = next(items, (None, b""))
    if key != b"":
        raise damaged(file, "its first entry is not the header of a checkpoint")
    shards, producer = _header(file, parse(value, file, budget))
    entries: dict[bytes, Entry] = {}
    for key, value in items:
        if len(entries) == budget.tensors:
            raise over_budget(file, f"it lists more than {budget.tensors} tensors")
        entries[key] = _entry(file, key, parse(value, file, budget))
    stored = [entry for entry in entries.values() if not entry.slices]
    sizes = _sizes(prefix, shards, stored)
    for entry in entries.values():
        _check(file, entry, sizes, entries)
    _check_apart(file, stored)
    files = (
        (file.name, size_of(file)),
        *((prefix.data(shard, shards).name, size) for shard, size in sizes.items()),
    )
    return Bundle(prefix, shards, producer, entries, tuple(files), budget)


def _header(file: Path, header: Message) -> tuple[int, int]:
    """Return the number of data files, and the version of the writer."""
    if header.integer(2):
        raise AnyrigError(
            "ANY-FORMAT-010",
            f"{file} was written on a machine whose numbers begin with their highest byte; it is not read here.",
            hint="restore and save it with TensorFlow on such a machine, as .npz, and give that",
        )
    version = header.message(3)
    if version.integer(2) > _KNOWN_VERSION:
        raise newer(file, version.integer(2), _KNOWN_VERSION)
    return header.integer(1), version.integer(1)


def _entry(file: Path, key: bytes, message: Message) -> Entry:
    dtype, item_bytes = type_of(message.integer(1))
    return Entry(
        key=key,
        dtype=dtype,
        item_bytes=item_bytes,
        shape=whole_shape(message, 2),
        shard=message.integer(3),
        start=message.signed(4),
        size=message.signed(5),
        crc=message.integer(6),
        slices=tuple(slice_of(part) for part in message.messages(7)),
    )


def _sizes(prefix: Prefix, shards: int, entries: Sequence[Entry]) -> dict[int, int]:
    """Return the sizes of the data files that hold something."""
    sizes = {}
    for shard in sorted({entry.shard for entry in entries}):
        path = prefix.data(shard, shards)
        if shard >= shards:
            raise damaged(prefix.index, f"an entry is in data file {shard} of {shards}")
        if not path.is_symlink() and not path.exists():
            raise AnyrigError(
                "ANY-FORMAT-012",
                f"{path} is missing: {prefix.index.name} says that tensors are in it.",
                hint="copy all files of the checkpoint, whose names begin alike, into one folder",
            )
        sizes[shard] = size_of(path)
    return sizes


def _check(file: Path, entry: Entry, sizes: dict[int, int], entries: dict[bytes, Entry]) -> None:
    """Refuse an entry that cannot be what its data file holds."""
    name, count = _shown(entry.key), math.prod(entry.shape)
    if entry.slices:
        _check_slices(file, entry, entries)
    elif entry.start < 0 or entry.size < 0 or entry.start + entry.size > sizes[entry.shard]:
        raise damaged(file, f"{name} lies outside its data file of {sizes[entry.shard]} bytes (cut off?)")
    elif entry.item_bytes and count * entry.item_bytes != entry.size:
        raise damaged(file, f"{name}: {entry.size} bytes for {entry.dtype} of shape {entry.shape}")
    elif entry.dtype in (TEXT, _VARIANT) and entry.size < count:
        raise damaged(file, f"{name}: {entry.size} bytes for {count} elements")


def _check_slices(file: Path, entry: Entry, entries: dict[bytes, Entry]) -> None:
    name = _shown(entry.key)
    for part in entry.slices:
        region, stored = part.inside(entry.shape), entries.get(slice_key(entry.key, part))
        if region is None or stored is None or stored.slices or stored.dtype != entry.dtype or not entry.item_bytes:
            raise damaged(file, f"{name}: the slice {part.extents} is missing, or does not fit it")
        if stored.shape != tuple(extent.stop - extent.start for extent in region):
            raise damaged(file, f"{name}: the slice {part.extents} is stored in shape {stored.shape}")


def _check_apart(file: Path, entries: Sequence[Entry]) -> None:
    ranges = sorted((entry.shard, entry.start, entry.start + entry.size, entry.key) for entry in entries if entry.size)
    for (shard, _, end, one), (next_shard, start, _, other) in pairwise(ranges):
        if shard == next_shard and start < end:
            raise damaged(file, f"{_shown(one)} and {_shown(other)} share bytes")


def _text(file: Path, key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise damaged(file, f"the name {key!r} is not UTF-8 text") from None


def _shown(key: bytes) -> str:
    return key.decode(errors="backslashreplace")


def _read(file: Path, entry: Entry, budget: Budget) -> Iterator[np.ndarray[Any, Any]]:
    if entry.dtype == TEXT:
        return _read_text(file, entry, budget)
    return _read_numbers(file, entry)


def _read_numbers(file: Path, entry: Entry) -> Iterator[np.ndarray[Any, Any]]:
    """Yield elements of a fixed size; of an unknown type, bytes."""
    import numpy as np

    kind = numpy_dtype(entry.dtype) if entry.dtype in ITEM_BYTES else np.dtype(np.uint8)
    crc, end = 0, entry.start + entry.size
    for start in range(entry.start, end, _BLOCK_BYTES):
        data = read_bytes(file, start, min(_BLOCK_BYTES, end - start))
        crc = extend(crc, data)
        if start + len(data) == end and entry.item_bytes:  # a variant's checksum runs over more than its bytes
            _verify(file, entry, crc)
        yield np.frombuffer(data, kind)


def _read_text(file: Path, entry: Entry, budget: Budget) -> Iterator[np.ndarray[Any, Any]]:
    """Yield `bytes` objects. Before them lie their lengths and the checksum of these."""
    import numpy as np

    lengths, at = _lengths(file, entry, budget)
    crc = _crc_of_lengths(lengths)
    stored = read_bytes(file, entry.start + at - _CRC_BYTES, _CRC_BYTES)
    if masked(crc) != int.from_bytes(stored, "little"):
        raise damaged(file, f"the checksum of the lengths of {_shown(entry.key)} does not match")
    crc = extend(crc, stored)
    for first in range(0, lengths.size, BLOCK_ELEMENTS):
        ends = np.cumsum(lengths[first : first + BLOCK_ELEMENTS]).tolist()
        data = read_bytes(file, entry.start + at, ends[-1])
        at += len(data)
        crc = extend(crc, data)
        if at == entry.size and first + BLOCK_ELEMENTS >= lengths.size:
            _verify(file, entry, crc)
        block = np.empty(len(ends), object)
        block[:] = [data[start:end] for start, end in pairwise([0, *ends])]
        yield block


def _lengths(file: Path, entry: Entry, budget: Budget) -> tuple[np.ndarray[Any, Any], int]:
    """Return the lengths of text elements, and where, counted from the tensor's start, their characters begin."""
    import numpy as np

    count, most = math.prod(entry.shape), min(entry.size, 10 * math.prod(entry.shape))
    if most > budget.header_bytes:
        raise over_budget(file, f"{_shown(entry.key)} has {count} elements of text")
    data = read_bytes(file, entry.start, most)
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) < 0x80)[:count]
    used = int(ends[-1]) + 1 if ends.size else 0
    try:
        lengths = varints(data[:used])
    except ValueError as error:
        raise damaged(file, f"{_shown(entry.key)}: {error}") from None
    characters = entry.size - used - _CRC_BYTES
    # As floats first: numbers of 64 bits could add up past their end.
    if ends.size != count or lengths.sum(dtype=np.float64) > 2 * entry.size or int(lengths.sum()) != characters:
        raise damaged(file, f"{_shown(entry.key)}: its lengths do not add up to its {entry.size} bytes")
    return lengths.astype(np.int64), used + _CRC_BYTES


def _crc_of_lengths(lengths: np.ndarray[Any, Any]) -> int:
    """Return the checksum of lengths, each as 4 bytes, or as 8 if it needs them."""
    if not lengths.size or int(lengths.max()) < 2**32:
        return extend(0, lengths.astype("<u4").tobytes())
    return extend(0, b"".join(size.to_bytes(4 if size < 2**32 else 8, "little") for size in lengths.tolist()))


def _verify(file: Path, entry: Entry, crc: int) -> None:
    if masked(crc) != entry.crc:
        raise damaged(file, f"the checksum of {_shown(entry.key)} does not match its {entry.size} bytes")
