"""Checkpoints of TensorFlow that lie: each lie is named before anything is made of it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from anyrig.errors import AnyrigError
from anyrig.formats import snappy
from anyrig.formats.contents import Budget
from anyrig.formats.tf_checkpoint import read
from anyrig.formats.tf_slices import slice_key
from anyrig.formats.tf_types import Slice
from tests.unit.tensorflow_files import (
    block,
    entry,
    field,
    fixed32,
    node,
    sealed,
    shape,
    table,
    text_data,
    variable,
    varint,
    write_bundle,
    write_objects,
)

DATA = np.arange(6, dtype="<f4").tobytes()
GOOD = entry(1, [6], 0, DATA)


def read_whole(prefix: Path, budget: Budget) -> None:
    for tensor in read(prefix, budget).tensors:
        tensor.array()


def refused(prefix: Path, says: str, code: str = "ANY-FORMAT-002", budget: Budget = Budget()) -> None:  # noqa: B008
    tracemalloc.start()
    with pytest.raises(AnyrigError, match=says) as caught:
        read_whole(prefix, budget)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.code == code
    assert peak < 30e6


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({b"w": entry(1, [2**40], 0, DATA)}, "24 bytes for F32"),
        ({b"w": entry(1, [2**40], 0, DATA, size=2**42)}, "outside its data file"),
        ({b"w": entry(1, [6], 4, DATA)}, "outside its data file"),
        ({b"w": entry(1, [6], -4, DATA)}, "outside its data file"),
        ({b"w": entry(1, [-6], 0, DATA, size=-24)}, "negative sizes|outside"),
        ({b"w": GOOD, b"x": entry(1, [1], 20, DATA[20:])}, "share bytes"),
        ({b"w": entry(1, [6], 0, DATA, shard=1)}, "data file 1 of 1"),
        ({b"w": entry(7, [2**40], 0, DATA)}, "24 bytes for 1099511627776 elements"),
        ({b"w": entry(7, [2], 0, DATA)}, "do not add up"),
        ({b"\xff": GOOD}, "not UTF-8"),
        ({b"w": entry(1, [6], 0, DATA[::-1])}, "checksum of w does not match"),
        ({b"w": field(1, 1) + field(2, shape(6))[:-1]}, "longer than its message"),
        ({b"w": field(1, b"x")}, "should be a number"),
        ({b"w": b"\x0b"}, "unknown kind"),
    ],
)
def test_entries_that_cannot_be(tmp_path: Path, entries: dict[bytes, bytes], says: str) -> None:
    refused(write_bundle(tmp_path / "ckpt", entries, DATA), says)


def test_big_endian_files_are_refused_by_name(tmp_path: Path) -> None:
    prefix = write_bundle(tmp_path / "ckpt", {b"w": GOOD}, DATA, header=field(1, 1) + field(2, 1))
    refused(prefix, "highest byte", "ANY-FORMAT-010")


def test_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    prefix = write_bundle(tmp_path / "ckpt", {b"w": GOOD}, DATA, header=field(1, 1) + field(3, field(2, 9)))
    refused(prefix, "version 9", "ANY-FORMAT-011")


def test_a_changed_index_is_found_by_its_checksum(tmp_path: Path) -> None:
    prefix = write_bundle(tmp_path / "ckpt", {b"w": GOOD}, DATA)
    index = prefix.with_name("ckpt.index")
    changed = bytearray(index.read_bytes())
    changed[12] ^= 1
    index.write_bytes(changed)
    refused(prefix, "the checksum does not match")


def rewrite(prefix: Path, *blocks: bytes, last_keys: list[bytes]) -> Path:
    prefix.with_name(prefix.name + ".index").write_bytes(table(*blocks, last_keys=last_keys))
    return prefix


@pytest.mark.parametrize(
    ("blocks", "last_keys", "says"),
    [
        ([block([(b"", field(1, 1)), (b"w", GOOD), (b"w", GOOD)])], [b"w"], "keys that do not rise"),
        ([block([(b"w", GOOD)])], [b"w"], "not the header"),
        ([sealed(b"\0\0\0" + bytes(4) + b"\xff\xff\xff\xff")], [b""], "more restarts"),
        ([sealed(b"\5\1\1aa" + bytes(4) + b"\1\0\0\0")], [b""], "longer than its block"),
        ([block([], packed=7)], [b""], "unknown way 7"),
        ([sealed(varint(20) + b"\x05\x01", packed=1)], [b""], "from before"),
        ([], [], "not the header"),
    ],
)
def test_tables_that_cannot_be(tmp_path: Path, blocks: list[bytes], last_keys: list[bytes], says: str) -> None:
    prefix = write_bundle(tmp_path / "ckpt", {b"w": GOOD}, DATA)
    refused(rewrite(prefix, *blocks, last_keys=last_keys), says)


def test_budgets(tmp_path: Path) -> None:
    prefix = write_bundle(tmp_path / "ckpt", {b"%d" % n: entry(1, [0], 0, b"") for n in range(9)}, DATA)
    refused(prefix, "more than 8 tensors", "ANY-FORMAT-003", Budget(tensors=8))
    refused(prefix, "more than 5 fields", "ANY-FORMAT-003", Budget(tensors=5))
    refused(prefix, "more than 50 bytes", "ANY-FORMAT-003", Budget(header_bytes=50))
    bomb = rewrite(prefix, sealed(varint(2**40) + b"\0a", packed=1), last_keys=[b""])
    refused(bomb, "asks for 1099511627776", "ANY-FORMAT-003")


def test_names_that_repeat_their_beginnings_are_bounded(tmp_path: Path) -> None:
    long = b"a" * 10_000
    entries = b"\0\0" + varint(2) + field(1, 1) + b"\0" + varint(10_000) + b"\0" + long
    entries += b"".join(varint(10_000) + b"\1\0" + bytes([number]) for number in range(1, 127))
    prefix = write_bundle(tmp_path / "ckpt", {b"w": GOOD}, DATA)
    rewrite(prefix, sealed(entries + bytes(4) + b"\1\0\0\0"), last_keys=[long + b"\x7f"])
    refused(prefix, "names come to more", "ANY-FORMAT-003", Budget(header_bytes=500_000))


def sliced(parts: list[Slice], sizes: list[list[int]], whole: list[int]) -> dict[bytes, bytes]:
    found, start = {}, 0
    for part, size in zip(parts, sizes, strict=True):
        data = DATA[start : start + 4 * int(np.prod(size))]
        found[slice_key(b"w", part)] = entry(1, size, start, data)
        start += len(data)
    extents = [
        b"".join(field(1, field(1, first) + (b"" if length is None else field(2, length))) for first, length in part[0])
        for part in parts
    ]
    found[b"w"] = field(1, 1) + field(2, shape(*whole)) + b"".join(field(7, one) for one in extents)
    return found


ROW, ROWS = (0, None), [[1, 3], [1, 3]]


@pytest.mark.parametrize(
    ("parts", "sizes", "whole", "says"),
    [
        ([Slice(((0, 1), ROW)), Slice(((0, 1), ROW))], ROWS, [2, 3], "overlap"),
        ([Slice(((0, 1), ROW)), Slice(((2, 1), ROW))], ROWS, [2, 3], "does not fit"),
        ([Slice(((0, 1), ROW))], [[1, 3]], [2, 3], "slices of 3 elements"),
        ([Slice(((0, 1), ROW)), Slice(((1, 1), ROW))], [[1, 3], [3, 1]], [2, 3], "stored in shape"),
        ([Slice((ROW,))], [[6]], [2, 3], "does not fit"),
    ],
)
def test_slices_that_do_not_make_a_tensor(
    tmp_path: Path, parts: list[Slice], sizes: list[list[int]], whole: list[int], says: str
) -> None:
    refused(write_bundle(tmp_path / "ckpt", sliced(parts, sizes, whole), DATA), says)


def test_slices_in_any_order_and_along_any_dimension_make_the_whole(tmp_path: Path) -> None:
    parts = [Slice(((1, 1), ROW)), Slice(((0, 1), ROW))]
    (tensor,) = read(write_bundle(tmp_path / "rows", sliced(parts, ROWS, [2, 3]), DATA), Budget()).tensors
    np.testing.assert_array_equal(tensor.array(), [[3, 4, 5], [0, 1, 2]])
    parts = [Slice((ROW, (0, 1))), Slice((ROW, (1, 2)))]
    prefix = write_bundle(tmp_path / "columns", sliced(parts, [[2, 1], [2, 2]], [2, 3]), DATA)
    (tensor,) = read(prefix, Budget()).tensors
    np.testing.assert_array_equal(tensor.array(), [[0, 2, 3], [1, 4, 5]])


def test_large_slices_have_the_keys_that_tensorflow_gives_them() -> None:
    encoded = slice_key(b"w", Slice(((63, 64), (8191, 8192), (2**31, None))))
    numbers = b"\xbf\xc0\x40\xdf\xff\xe0\x20\x00\x80\x7f"
    assert encoded == b"\0w\0\1\1\3" + numbers


def test_text_with_a_wrong_checksum_of_lengths(tmp_path: Path) -> None:
    data, crc = text_data(b"one", b"")
    stored = field(1, 7) + field(2, shape(2)) + field(5, len(data)) + fixed32(6, crc)
    good = read(write_bundle(tmp_path / "good", {b"w": stored}, data), Budget()).tensors[0]
    assert (good.array().tolist(), good.nbytes) == ([b"one", b""], 3)
    changed = data[:2] + bytes([data[2] ^ 1]) + data[3:]
    refused(write_bundle(tmp_path / "lengths", {b"w": stored}, changed), "checksum of the lengths")
    refused(write_bundle(tmp_path / "text", {b"w": stored}, data[:-1] + b"x"), "checksum of w does not match")


def test_a_cycle_of_objects_ends(tmp_path: Path) -> None:
    key = "a/b"
    nodes = [node({"a": 1, "me": 0}), node({"b": 2, "up": 0, "again": 1}), variable(key)]
    prefix = write_objects(tmp_path / "ckpt", nodes, {key + "/.ATTRIBUTES/VARIABLE_VALUE": DATA})
    assert [tensor.name for tensor in read(prefix, Budget()).tensors] == [key]


def test_a_ladder_of_objects_has_few_aliases_and_takes_no_time(tmp_path: Path) -> None:
    rungs = 60  # 2**60 paths lead to the end
    nodes = [node({"l": 2 * n + 1, "r": 2 * n + 2}) for n in (0,)]
    for rung in range(rungs):
        below = 2 * rung + 3 if rung < rungs - 1 else 2 * rungs + 1
        nodes += [node({"l": below, "r": below + (rung < rungs - 1)})] * 2
    nodes.append(variable("v"))
    prefix = write_objects(tmp_path / "ckpt", nodes, {"v/.ATTRIBUTES/VARIABLE_VALUE": DATA})
    (tensor,) = read(prefix, Budget()).tensors
    assert 1 <= len(tensor.aliases) <= 4


def test_an_object_that_is_not_there(tmp_path: Path) -> None:
    refused(write_objects(tmp_path / "ckpt", [node({"a": 9})], {}), "one that is not there")


@pytest.mark.parametrize(
    "data",
    [b"\4\xfcabc", b"\4\xffabc", b"\4\x01", b"\4\x0cabcd\x09\x00", b"\4\x0cabcd\x00e", b"\xff" * 11, b""],
)
def test_packed_blocks_that_cannot_be(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        snappy.unpack(data)


def test_a_packed_block_copies_from_itself() -> None:
    assert (
        snappy.unpack(b"\x0a\x04ab" + bytes([(4 - 4) << 2 | 1, 2]) + bytes([(4 - 1) << 2 | 2, 3, 0]))
        == b"abababbabb"[:10]
    )
