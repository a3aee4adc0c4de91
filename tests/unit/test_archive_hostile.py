"""Archives and folders that lie (.keras, .npz): names that leave them, members that swell, overlap, or are no files."""

from __future__ import annotations

import io
import json
import stat
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from anyrig.formats.contents import Budget
from anyrig.formats.sniff import read_any
from tests.unit.hostile import refused

METADATA, CONFIG = '{"keras_version": "3.15.1"}', '{"class_name": "Sequential", "config": {}}'


def weights() -> bytes:
    held = io.BytesIO()
    with h5py.File(held, "w") as file:
        file["layers/dense/vars/0"] = np.arange(64, dtype=np.float32)
    return held.getvalue()


def keras(path: Path, **others: bytes) -> Path:
    """Write a small `.keras` archive with further members, which may take the place of its own."""
    own = {"metadata.json": METADATA.encode(), "config.json": CONFIG.encode(), "model.weights.h5": weights()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (own | others).items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


def edited(path: Path, *changes: tuple[str, int, bytes]) -> Path:
    """Change bytes of the entries of members in the directory of an archive, at an offset in the entry."""
    data = bytearray(path.read_bytes())
    for name, offset, new in changes:
        at = data.rindex(b"PK\1\2", 0, data.rindex(name.encode()))
        data[at + offset : at + offset + len(new)] = new
    path.write_bytes(data)
    return path


# Offsets in an entry of the directory: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
FLAGS, METHOD, PACKED, SIZE, ATTRIBUTES, PLACE = 8, 10, 20, 24, 38, 42
LOCAL_NAME_BYTES = 26


def test_a_sound_one_opens(tmp_path: Path) -> None:
    (tensor,) = read_any(keras(tmp_path / "m.keras")).tensors
    assert tensor.array().tolist() == list(range(64))


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "assets/../../x",
        "a/./b",
        "a//b",
        "c:/x",
        "a\\..\\..\\x",
        "assets/..",
        "./x",
        "\\\\host\\x",
    ],
)
def test_CVE_2025_12638_and_2026_12479_names_that_leave_the_archive(tmp_path: Path, name: str) -> None:
    refused(keras(tmp_path / "m.keras", **{name: b"x"}), "004", "leaves the archive")
    assert [file.name for file in tmp_path.iterdir()] == ["m.keras"]


@pytest.mark.parametrize("where", [".", "/", "elsewhere"])
def test_GHSA_hqp4_names_are_judged_the_same_from_every_folder(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = keras(tmp_path / "m.keras", **{f"../{tmp_path.name}-evil/x": b"x"})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / where)
    refused(path, "004", "leaves the archive")


def test_a_name_with_a_zero_byte(tmp_path: Path) -> None:
    path = keras(tmp_path / "m.keras", **{"assets/aZb": b"x"})
    path.write_bytes(path.read_bytes().replace(b"aZb", b"a\0b"))
    refused(path, "004", "leaves the archive")


def test_links_in_an_archive(tmp_path: Path) -> None:
    path = keras(tmp_path / "m.keras", **{"assets/passwd": b"/etc/passwd"})
    edited(path, ("assets/passwd", ATTRIBUTES, struct.pack("<L", (stat.S_IFLNK | 0o777) << 16)))
    refused(path, "004", "is a link")


def test_a_name_that_occurs_twice(tmp_path: Path) -> None:
    path = keras(tmp_path / "m.keras", **{"assetX/x": b"1", "assetY/x": b"2"})
    path.write_bytes(path.read_bytes().replace(b"assetX", b"assetY"))
    refused(path, "002", "occurs twice")


def local_name(path: Path, name: str, new: str) -> Path:
    """Call a member by another name in its own header than in the directory."""
    data = path.read_bytes()
    path.write_bytes(data.replace(name.encode(), new.encode(), 1))
    return path


def test_a_member_is_what_the_directory_says(tmp_path: Path) -> None:
    path = local_name(keras(tmp_path / "m.keras"), "config.json", "../../x.jsn")
    assert read_any(path).config == json.loads(CONFIG)


def test_members_that_share_bytes(tmp_path: Path) -> None:
    path = keras(tmp_path / "m.keras", **{"assets/a": bytes(500), "assets/b": bytes(500)})
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("assets/a").header_offset
    refused(edited(path, ("assets/b", PLACE, struct.pack("<L", place))), "002", "those of another member")


def test_a_quine_of_members_that_swallow_each_other(tmp_path: Path) -> None:
    path = keras(tmp_path / "m.keras", **{"assets/a": bytes(500), "assets/b": bytes(500)})
    larger = struct.pack("<LL", 900, 900)
    refused(edited(path, ("assets/a", PACKED, larger)), "002", "those of another member")


@pytest.mark.parametrize("size", [2**32 - 2, 10_000])
def test_sizes_that_are_not_stored(tmp_path: Path, size: int) -> None:
    path = keras(tmp_path / "m.keras", **{"assets/a": bytes(500)})
    refused(edited(path, ("assets/a", SIZE, struct.pack("<L", size))), "003", "claims")
    refused(edited(path, ("assets/a", PACKED, struct.pack("<L", size))), "002", "another member|ends after the file")


def deflated(path: Path, name: str, data: bytes) -> Path:
    keras(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return path


def test_a_bomb_that_hides_its_size(tmp_path: Path) -> None:
    path = deflated(tmp_path / "m.keras", "assets/a", bytes(2**28))
    edited(path, ("assets/a", SIZE, struct.pack("<L", 100)))
    refused(path, "002", "does not unpack to its 100 bytes")


def test_a_bomb_that_shows_its_size(tmp_path: Path) -> None:
    path = deflated(tmp_path / "m.keras", "assets/a", bytes(2**28))
    refused(path, "003", "claims", Budget(ratio=500))
    edited(path, ("assets/a", SIZE, struct.pack("<L", 2**31)))
    refused(path, "003", "claims")


def test_archives_in_archives_stay_closed(tmp_path: Path) -> None:
    inner = deflated(tmp_path / "inner.keras", "assets/a", bytes(2**28)).read_bytes()
    contents = read_any(keras(tmp_path / "m.keras", **{"assets/inner.keras": inner}))
    assert contents.assets["inner.keras"]() == inner


def test_encrypted_members(tmp_path: Path) -> None:
    refused(edited(keras(tmp_path / "m.keras"), ("config.json", FLAGS, b"\1")), "004", "encrypted")


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, 99])
def test_packings_that_are_not_read(tmp_path: Path, method: int) -> None:
    path = edited(keras(tmp_path / "m.keras"), ("config.json", METHOD, struct.pack("<H", method)))
    refused(path, "032", f"number {method}")


def test_more_members_than_the_budget(tmp_path: Path) -> None:
    path = keras(tmp_path / "m.keras", **{f"assets/{number}": b"" for number in range(50)})
    refused(path, "003", "53 members", Budget(tensors=50))


@pytest.mark.parametrize("text", ["[" * 10**6, '{"a":' * 10**5 + "1" + "}" * 10**5])
def test_configurations_that_are_too_deep(tmp_path: Path, text: str) -> None:
    refused(keras(tmp_path / "m.keras", **{"config.json": text.encode()}), "003", "nested")


@pytest.mark.parametrize("text", ["", "[]", "null", "{'a': 1}", '{"a": 1, "a": 2}', "\ufffd", '{"a": 1} {}'])
def test_configurations_that_are_none(tmp_path: Path, text: str) -> None:
    refused(keras(tmp_path / "m.keras", **{"config.json": text.encode("utf-16")}), "002", "config.json")
    refused(keras(tmp_path / "m.keras", **{"config.json": text.encode()}), "002", "config.json")


def test_large_configurations(tmp_path: Path) -> None:
    path = keras(tmp_path / "m.keras", **{"config.json": json.dumps({"a": "x" * 10_000}).encode()})
    refused(path, "003", "config.json in it has", Budget(header_bytes=5_000))


def test_CVE_2025_1550_and_2026_1462_a_configuration_is_data_and_imports_nothing(tmp_path: Path) -> None:
    config = {
        "module": "antigravity",
        "class_name": "get_file",
        "config": {"filepath": "/etc/passwd", "layers": [{"class_name": "TFSMLayer", "module": "keras.layers"}]},
    }
    contents = read_any(keras(tmp_path / "m.keras", **{"config.json": json.dumps(config).encode()}))
    assert contents.config == config
    assert "antigravity" not in sys.modules


def test_CVE_2025_12058_a_vocabulary_is_one_of_the_archive(tmp_path: Path) -> None:
    config = {"class_name": "StringLookup", "config": {"vocabulary": "/etc/passwd"}}
    contents = read_any(keras(tmp_path / "m.keras", **{"config.json": json.dumps(config).encode()}))
    assert contents.assets == {}


INDEX = "model.weights.json"


def index(names: object, size: object = 256) -> bytes:
    return json.dumps({"metadata": {"total_size": size}, "weight_map": {"/layers/dense/vars": names}}).encode()


def sharded(folder: Path, text: bytes) -> Path:
    folder.mkdir()
    for name, data in (("metadata.json", METADATA.encode()), ("config.json", CONFIG.encode()), (INDEX, text)):
        (folder / name).write_bytes(data)
    (folder / "model_00000.weights.h5").write_bytes(weights())
    return folder


SHARD = "model_00000.weights.h5"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (index([SHARD], float("nan")), "002", "promises nan bytes"),
        (index([SHARD], float("inf")), "002", "promises inf bytes"),
        (index([SHARD], -1), "002", "promises -1 bytes"),
        (index([SHARD], 10**30), "002", "promises 1"),
        (index(["model_00001.weights.h5"]), "002", "missing"),
        (index([]), "002", "no files"),
        (index([5]), "002", "no files"),
        (index({"a": 1}), "002", "no files"),
        (b'{"weight_map": []}', "002", "no weight_map"),
        (b'{"weight_map": {"/layers/other": ["model_00000.weights.h5"]}}', "002", "and it does not"),
    ],
)
def test_indexes_that_lie(tmp_path: Path, text: bytes, code: str, says: str) -> None:
    refused(sharded(tmp_path / "m", text), code, says)


@pytest.mark.parametrize("name", ["../secret.weights.h5", "/etc/passwd", "a/../../secret.weights.h5", "a\\b"])
@pytest.mark.parametrize("folder", ["m", "w"])
def test_indexes_that_name_files_outside(tmp_path: Path, name: str, folder: str) -> None:
    (tmp_path / "secret.weights.h5").write_bytes(weights())
    path = sharded(tmp_path / folder, index([name, "x.weights.h5"]))
    if folder == "w":  # not a whole model: the shards alone
        (path / "config.json").unlink()
        (path / "metadata.json").unlink()
    refused(path, "002" if folder == "m" else "004", "missing" if folder == "m" else "leaves the folder")


@pytest.mark.parametrize("name", [SHARD, "config.json", INDEX])
def test_links_in_a_folder(tmp_path: Path, name: str) -> None:
    path = sharded(tmp_path / "m", index([SHARD]))
    (path / name).rename(tmp_path / "secret")
    (path / name).symlink_to(tmp_path / "secret")
    refused(path, "004", "link")


def test_a_folder_of_links_to_folders_ends(tmp_path: Path) -> None:
    path = sharded(tmp_path / "m", index([SHARD]))
    (path / "again").symlink_to(path)
    assert len(read_any(path).tensors) == 1


def npy(header: str, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY" + version + struct.pack("<H" if version == b"\1\0" else "<L", len(text)) + text + data


def described(shape: str, dtype: str = "'<f4'", order: str = "False") -> str:
    return f"{{'descr': {dtype}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (npy(described("(10000000000,)"), bytes(40)), "002"),
        (npy(described("(-10,)"), bytes(40)), "002"),
        (npy(described("(-2, -5)"), bytes(40)), "002"),
        (npy(described("(10.0,)"), bytes(40)), "002"),
        (npy(described("(True,)"), bytes(4)), "002"),
        (npy(described("(5,)"), bytes(40)), "002"),
        (npy(described("(10,)", "'<f4'", "'no'"), bytes(40)), "002"),
        (npy(described("(10,)", "'|S0'")), "002"),
        (npy(described("(1000000000000,)", "'|S0'")), "002"),
        (npy(described("(1000000000000,)", "'<U0'")), "002"),
        (npy(described("(1000000000000,)", "'|V0'")), "002"),
        (npy(described("(1,)", "'|V1000000000'"), bytes(40)), "002"),
        (npy(described("(1,)", "'|O'"), b"cos\nsystem\n(S'true'\ntR."), "034"),
        (npy(described("(1,)", "[('a', '<f4'), ('b', '|O')]"), b"x"), "034"),
        (npy(described("(1,)", "[('a', '<f4', (1000000, 100000))]"), b"x"), "002"),
        (npy(described("(" * 150 + ")" * 150)), "002"),
        (npy("__import__('os').system('true')"), "002"),
        (npy("{" * 15_000), "002"),
        (npy(described("(1,)"), bytes(4), b"\x09\0"), "002"),
        (b"\x93NUMPY\2\0" + struct.pack("<L", 2**32 - 1) + b"{", "002"),
        (b"\x93NUMPY", "002"),
    ],
    ids=range(21),
)
@pytest.mark.parametrize("packed", [False, True])
def test_headers_of_numpy_that_lie(tmp_path: Path, raw: bytes, code: str, packed: bool) -> None:
    path = tmp_path / "w.npy"
    if packed:
        path = tmp_path / "w.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("w.npy", raw)
    else:
        path.write_bytes(raw)
    refused(path, code)


@pytest.mark.parametrize("shape", ["(0, 10000000000)", "(0, 100000000000000000000000000)", f"({'1,' * 100})"])
def test_shapes_that_numpy_cannot_make(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "w.npy"
    path.write_bytes(npy(described(shape), b"" if shape.startswith("(0") else bytes(4)))
    contents = read_any(path)
    assert [sum(part.size for part in tensor.read()) for tensor in contents.tensors] == [int("1," in shape)]
    if shape != "(0, 10000000000)":
        refused_array(contents.tensors[0].array)


def refused_array(read: Callable[[], object]) -> None:
    from anyrig.errors import AnyrigError

    with pytest.raises(AnyrigError) as caught:
        read()
    assert caught.value.code == "ANY-FORMAT-002"
