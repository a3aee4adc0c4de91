"""Safetensors files and their indexes that lie: each lie is named before anything is made of it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from anyrig.formats.contents import Budget
from anyrig.formats.sniff import read_any
from tests.unit.hostile import refused

LIES = "ANY-LOAD-014"


def entry(start: int = 0, stop: int = 16, shape: Any = (4,), dtype: Any = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop], **more}


def written(path: Path, header: object, data: bytes = bytes(16), length: int | None = None) -> Path:
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


@pytest.mark.parametrize(
    "header",
    [
        {"w": entry(shape=[10**10])},
        {"w": entry(stop=4 * 10**10, shape=[10**10])},
        {"w": entry(shape=[-4])},
        {"w": entry(shape=[-2, -2])},
        {"w": entry(shape=[4.0])},
        {"w": entry(shape=[True, 4])},
        {"w": entry(shape="4")},
        {"w": entry(start=-16, stop=0)},
        {"w": entry(start=16, stop=0)},
        {"w": entry(stop=32, shape=[8])},
        {"w": entry(stop=8, shape=[2])},
        {"w": entry(), "v": entry()},
        {"w": entry(), "v": entry(8, 24)},
        {"w": entry(0, 4, [1]), "v": entry(8, 16, [2])},
        {"w": {"dtype": "F32", "shape": [4]}},
        {"w": [1]},
        {"w": entry(dtype=5)},
        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8, 16]}},
        {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, float("nan")]}},
        [1],
        "{" * 100_000,
        '{"w":' * 20_000,
        "{" + ", ".join(['"w": {"dtype":"F32","shape":[4],"data_offsets":[0,16]}'] * 2) + "}",
        '{"w": {"dtype":"F32","shape":[1' + "0" * 5000 + '],"data_offsets":[0,16]}}',
    ],
    ids=range(24),
)
def test_headers_that_lie(tmp_path: Path, header: object) -> None:
    refused(written(tmp_path / "w.safetensors", header), LIES)


@pytest.mark.parametrize("length", [0, 1, 2**31, 2**63, 2**64 - 1, 200])
def test_lengths_that_lie(tmp_path: Path, length: int) -> None:
    refused(written(tmp_path / "w.safetensors", {"w": entry()}, length=length), LIES)


def test_a_header_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with open(path, "wb") as file:  # as long as it says, though nothing is on the disk
        file.write(struct.pack("<Q", 2**30) + b"{")
        file.truncate(2**31)
    refused(path, LIES, "cannot have")


def test_more_tensors_than_the_budget(tmp_path: Path) -> None:
    header = {f"w{number}": entry(0, 0, [0]) for number in range(50)}
    refused(written(tmp_path / "w.safetensors", header, b""), "003", "50 tensors", Budget(tensors=40))


def test_types_of_other_programs_are_listed_as_bytes(tmp_path: Path) -> None:
    path = written(tmp_path / "w.safetensors", {"w": entry(dtype="F4_FUTURE", shape=[10**12])})
    (tensor,) = read_any(path).tensors
    assert (tensor.dtype, tensor.nbytes, tensor.array().nbytes) == ("F4_FUTURE", 16, 16)


def sharded(folder: Path, weight_map: object, **index: Any) -> Path:
    folder.mkdir(exist_ok=True)
    written(folder / "model-00001-of-00001.safetensors", {"w": entry()})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map, **index}))
    return folder


SHARD = "model-00001-of-00001.safetensors"


@pytest.mark.parametrize(
    ("weight_map", "code", "says"),
    [
        ({"w": "../secret.safetensors"}, "004", "leaves the folder"),
        ({"w": "/etc/x.safetensors"}, "004", "leaves the folder"),
        ({"w": "a/../../secret.safetensors"}, "004", "leaves the folder"),
        ({"w": "a\\..\\secret.safetensors"}, "004", "leaves the folder"),
        ({"w": "other.safetensors"}, "002", "missing"),
        ({"v": SHARD}, "002", "and it does not"),
        ({"w": SHARD, "v": ["x.safetensors"]}, "002", "missing"),
        ({"w": {"x.safetensors": 1}}, "002", "no files"),
        ([SHARD], "002", "no weight_map"),
    ],
)
def test_indexes_that_lie(tmp_path: Path, weight_map: object, code: str, says: str) -> None:
    written(tmp_path / "secret.safetensors", {"w": entry()})
    refused(sharded(tmp_path / "m", weight_map), code, says)


def test_a_shard_that_is_a_link(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m", {"w": SHARD})
    (folder / SHARD).rename(tmp_path / "secret")
    (folder / SHARD).symlink_to(tmp_path / "secret")
    refused(folder, "004", "link")


def test_an_index_that_is_nested(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "m", {"w": SHARD})
    text = '{"weight_map": {"w": "x.safetensors"}, "a": ' + "[" * 10**6
    (folder / "model.safetensors.index.json").write_text(text)
    refused(folder, "003", "nested")
