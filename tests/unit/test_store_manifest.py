"""A manifest that says anything impossible is refused with the key named, and without allocating by its numbers."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from anyrig.store.decode import decode
from anyrig.store.digest import hash_bytes
from anyrig.store.manifest import SEAL, FileEntry, Manifest, Piece, TensorEntry, encode
from anyrig.store.parse import ManifestError

HASH = "0123456789abcdef" * 2


def a_manifest() -> Manifest:
    return Manifest(
        step=7,
        files=(FileEntry("model-00001-of-00001.safetensors", 100, HASH), FileEntry("assets/a/b", 3, HASH)),
        tensors=(
            _tensor("model/a", (2, 3), 64, 88),
            _tensor("model/b", (), 88, 92),
            _tensor("model/c", (0, 5), 92, 92),
        ),
        progress={"epoch": 1, "loss": float("inf")},
        record={"seed": 0},
    )


def _tensor(name: str, shape: tuple[int, ...], start: int, stop: int) -> TensorEntry:
    checksums = (HASH,) if stop > start else ()
    piece = Piece((0,) * len(shape), shape, "model-00001-of-00001.safetensors", start, stop, checksums)
    return TensorEntry(name, ("old",), "F32", shape, HASH, None, (piece,))


def document() -> Any:
    parsed = json.loads(encode(a_manifest()))
    del parsed["manifest_checksum"]
    return parsed


def seal(body: bytes) -> bytes:
    return body[:-1] + SEAL % hash_bytes(body).encode()


def sealed(value: Any) -> bytes:
    return seal(json.dumps(value).encode())


def test_what_was_encoded_is_decoded() -> None:
    assert decode(encode(a_manifest())) == a_manifest()
    assert decode(sealed(document())) == a_manifest()


def at(*path: str | int, value: Any) -> Callable[[Any], None]:
    """Return a change that sets the value at `path`; ... removes it."""

    def change(target: Any) -> None:
        for key in path[:-1]:
            target = target[key]
        if value is ...:
            del target[path[-1]]
        else:
            target[path[-1]] = value

    return change


PIECE = ("tensors", 1, "pieces", 0)


@pytest.mark.parametrize(
    ("change", "where", "found"),
    [
        (at("format", value="zip"), "format", "expected 'anyrig-checkpoint'"),
        (at("step", value=-1), "step", "out of range"),
        (at("step", value=True), "step", "found bool"),
        (at("step", value=1.0), "step", "found float"),
        (at("step", value=2**63), "step", "out of range"),
        (at("step", value=...), "step", "the key is missing"),
        (at("extra", value=1), "extra", "the key is unknown"),
        (at("files", value={}), "files", "expected a list, found dict"),
        (at("files", 0, value=[]), r"files\[0\]", "expected an object, found list"),
        (at("files", 0, "size", value="1"), r"files\[0\].size", "found str"),
        (at("files", 0, "checksum", value=HASH.upper()), r"files\[0\].checksum", "hexadecimal digits"),
        (at("files", 0, "checksum", value="ab"), r"files\[0\].checksum", "hexadecimal digits"),
        (at("files", 1, "name", value="/etc/passwd"), r"files\[1\].name", "is absolute"),
        (at("files", 1, "name", value="../x"), r"files\[1\].name", r"has the part '\.\.'"),
        (at("files", 1, "name", value="a/../x"), r"files\[1\].name", r"has the part '\.\.'"),
        (at("files", 1, "name", value="a\\x"), r"files\[1\].name", "not every file system"),
        (at("files", 1, "name", value="c:x"), r"files\[1\].name", "not every file system"),
        (at("files", 1, "name", value=""), r"files\[1\].name", "has the part ''"),
        (at("files", 1, "name", value="manifest.json"), r"files\[1\].name", "names the manifest itself"),
        (at("files", 1, "name", value="model-00001-of-00001.safetensors"), "files", "listed twice"),
        (at("tensors", 1, "name", value="model/a"), "tensors", "'model/a' is listed twice"),
        (at("tensors", 1, "name", value=None), r"tensors\[1\].name", "found NoneType"),
        (at("tensors", 1, "aliases", value=[1]), r"tensors\[1\].aliases\[0\]", "found int"),
        (at("tensors", 1, "dtype", value="F31"), r"tensors\[1\].dtype", "the type 'F31' is unknown"),
        (at("tensors", 1, "shape", value=[1] * 65), r"tensors\[1\].shape", "65 dimensions"),
        (at("tensors", 1, "shape", value=[-1]), r"tensors\[1\].shape\[0\]", "out of range"),
        (at("tensors", 1, "shape", value=[1]), r"tensors\[1\].pieces", "one piece that is the whole"),
        (at("tensors", 1, "pieces", value=[]), r"tensors\[1\].pieces", "one piece that is the whole"),
        (at("tensors", 1, "place", value=3), r"tensors\[1\].place", "found int"),
        (at(*PIECE, "offset", value=[0]), r"tensors\[1\].pieces\[0\].offset", "differ in length"),
        (at("tensors", 0, "pieces", 0, "offset", value=[0, 1]), r"tensors\[0\].pieces", "one piece"),
        (at(*PIECE, "file", value="other.safetensors"), r"tensors\[1\].pieces\[0\].file", "not a data file"),
        (at(*PIECE, "file", value="assets/a/b"), r"tensors\[1\].pieces\[0\].file", "not a data file"),
        (at(*PIECE, "stop", value=101), r"tensors\[1\].pieces\[0\].stop", "bytes 88 to 101 are not in"),
        (at(*PIECE, "start", value=93), r"tensors\[1\].pieces\[0\].stop", "bytes 93 to 92 are not in"),
        (at(*PIECE, "stop", value=96), r"tensors\[1\].pieces\[0\].shape", "does not fill"),
        (at(*PIECE, "checksums", value=[HASH] * 2), r"tensors\[1\].pieces\[0\].checksums", "one checksum per"),
        (at(*PIECE, "checksums", value=[]), r"tensors\[1\].pieces\[0\].checksums", "one checksum per"),
        (at(*PIECE, "checksums", value=[1]), r"tensors\[1\].pieces\[0\].checksums\[0\]", "found int"),
        (
            at("tensors", 2, "pieces", 0, "shape", value=[0, 2**62]),
            r"tensors\[2\].pieces\[0\].shape",
            "larger than any",
        ),
        (at("progress", value=[]), "progress", "expected an object, found list"),
        (at("record", value=None), "record", "expected an object, found NoneType"),
    ],
)
def test_impossible_manifests(change: Callable[[Any], None], where: str, found: str) -> None:
    changed = document()
    change(changed)
    with pytest.raises(ManifestError, match=rf"{found}.*, in '{where}'") as caught:
        decode(sealed(changed))
    assert caught.value.code == "ANY-LOAD-007"


def test_ranges_that_overlap() -> None:
    changed = document()
    changed["tensors"][1]["pieces"][0] |= {"start": 84, "stop": 88}
    with pytest.raises(ManifestError, match="'model/a' and 'model/b' share bytes"):
        decode(sealed(changed))


@pytest.mark.parametrize("version", [0, 2, "1", None, True, 1.5])
def test_another_schema_version_is_a_named_error(version: Any) -> None:
    with pytest.raises(ManifestError, match="schema version") as caught:
        decode(sealed({"format": "anyrig-checkpoint", "schema_version": version, "unknown": "keys"}))
    assert caught.value.code == "ANY-LOAD-006"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"step":1,"step":2}', "the key 'step' occurs twice"),
        (b'{"progress":{"a":{"b":1,"b":1}}}', "the key 'b' occurs twice"),
        (b'{"step":NaN}', "it holds NaN"),
        (b'{"step":-Infinity}', "it holds -Infinity"),
        (b'{"a":' * 50000 + b"}" * 50000, "nested too deeply"),
        (b'{"step":' + b"9" * 5000 + b"}", "Exceeds the limit"),
        (b'{"step":}', "it is not JSON"),
        (b'{"\xff":1}', "it is not JSON"),
    ],
)
def test_json_on_which_parsers_differ(text: bytes, found: str) -> None:
    with pytest.raises(ManifestError, match=found) as caught:
        decode(seal(text))
    assert caught.value.code == "ANY-LOAD-005"


def test_a_wrong_checksum_is_damage() -> None:
    raw = encode(a_manifest()).replace(b'"seed":0', b'"seed":1')
    with pytest.raises(ManifestError, match="its checksum does not match") as caught:
        decode(raw)
    assert caught.value.code == "ANY-LOAD-005"


def test_ten_billion_elements_are_parsed_without_allocating() -> None:
    changed = document()
    changed["files"][0]["size"] = 92 + 4 * 10**10
    changed["tensors"][2] |= {"shape": [10**10]}
    piece = {"shape": [10**10], "offset": [0], "stop": 92 + 4 * 10**10, "checksums": [HASH] * 597}
    changed["tensors"][2]["pieces"][0] |= piece
    raw = sealed(changed)
    tracemalloc.start()
    try:
        assert decode(raw).tensors[2].nbytes == 4 * 10**10
        assert tracemalloc.get_traced_memory()[1] < 10 * len(raw) + 2**20
    finally:
        tracemalloc.stop()
