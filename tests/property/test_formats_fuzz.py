"""Any bytes, in a file of any format: opening and reading ends soon, in little memory, and only in errors of ours."""

from __future__ import annotations

import contextlib
import io
import json
import resource
import struct
import tempfile
import time
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import h5py
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from anyrig.errors import AnyrigError
from tests.unit.hostile import read_whole
from tests.unit.tensorflow_files import entry, field, node, shape, variable, write_bundle, write_objects

SECONDS = 10.0
GROWTH_KIB = 400_000
LOUD = [b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7, b"\0\0\0\x80", b"\xff\xff\xff\x7f", b"../", b"/", b"[" * 8]


def legacy_h5() -> bytes:
    held = io.BytesIO()
    with h5py.File(held, "w") as file:
        file.attrs["layer_names"] = [b"dense", b"text"]
        file.attrs["model_config"] = json.dumps({"class_name": "Sequential", "config": {"layers": []}})
        group = file.create_group("dense")
        group.attrs["weight_names"] = [b"kernel:0", b"bias:0"]
        group["kernel:0"] = np.arange(12, dtype=np.float32).reshape(3, 4)
        group.create_dataset("bias:0", data=np.arange(40.0), chunks=(16,), compression="gzip", shuffle=True)
        file.create_group("text").attrs["weight_names"] = [b"words"]
        file.create_dataset("text/words", data=["one", "two", "three"], dtype=h5py.string_dtype())
    return held.getvalue()


def newest_h5() -> bytes:
    held = io.BytesIO()
    with h5py.File(held, "w", libver="latest") as file:
        file["layers/dense/vars/0"] = np.arange(12, dtype=np.float32)
        file["layers/dense/vars"].attrs["name"] = "dense"
        packed = {"chunks": (8,), "compression": "lzf", "fletcher32": True}
        file.create_dataset("layers/dense/vars/1", data=np.arange(30, dtype=np.int16), **packed)
    return held.getvalue()


def keras_archive() -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.15.1"}')
        archive.writestr("config.json", '{"class_name": "Sequential", "config": {"layers": []}}')
        archive.writestr("model.weights.h5", newest_h5())
        archive.writestr("assets/vocabulary.txt", "a\nb\n" * 50, zipfile.ZIP_DEFLATED)
    return held.getvalue()


def npz() -> bytes:
    held = io.BytesIO()
    np.savez_compressed(held, a=np.zeros((20, 3)), b=np.asfortranarray(np.arange(6).reshape(2, 3)), c=np.array("text"))
    return held.getvalue()


def npy() -> bytes:
    held = io.BytesIO()
    np.save(held, np.arange(12, dtype=np.float32).reshape(3, 4))
    return held.getvalue()


def safetensors() -> bytes:
    header = {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {"format": "np"}}
    header["v"] = {"dtype": "BOOL", "shape": [4], "data_offsets": [24, 28]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(28)


def graph() -> bytes:
    constant = field(1, 1) + field(2, shape(2, 2)) + field(4, np.arange(4, dtype="<f4").tobytes())
    attribute = field(5, field(1, "value") + field(2, field(8, constant)))
    return field(1, field(1, "w") + field(2, "Const") + attribute) * 1 + field(4, field(1, 27))


def index_of_a_bundle() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        data = bytes(24)
        prefix = write_bundle(Path(folder, "x"), {b"w": entry(1, [6], 0, data)}, data)
        return prefix.with_name("x.index").read_bytes()


def index_of_objects() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        nodes = [node({"dense": 1}), node({"kernel": 2}), variable("dense/kernel")]
        prefix = write_objects(Path(folder, "x"), nodes, {"dense/kernel/.ATTRIBUTES/VARIABLE_VALUE": bytes(24)})
        return prefix.with_name("x.index").read_bytes()


OTHERS = Path(__file__).parents[1] / "corpus" / "others"
SOUND: dict[str, Callable[[], bytes]] = {
    "legacy.h5": legacy_h5,
    "newest.weights.h5": newest_h5,
    "m.keras": keras_archive,
    "w.npz": npz,
    "w.npy": npy,
    "w.safetensors": safetensors,
    "g.pb": graph,
    "x.index": index_of_a_bundle,
    "o.index": index_of_objects,
    "m.onnx": (OTHERS / "all_types.onnx").read_bytes,
    "m.tflite": (OTHERS / "float.tflite").read_bytes,
}
sound = cache(lambda name: SOUND[name]())


@st.composite
def broken(draw: st.DrawFn, name: str) -> bytes:
    """Draw a file that was sound until bytes were changed, cut off, moved, or taken from a file of another kind."""
    data = bytearray(sound(name))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["flip", "set", "loud", "cut", "copy", "foreign", "drop"])):
            case "flip":
                data[at : at + 1] = bytes([(data[at] if at < len(data) else 0) ^ 1 << draw(st.integers(0, 7))])
            case "set":
                data[at : at + 1] = bytes([draw(st.integers(0, 255))])
            case "loud":
                new = draw(st.sampled_from(LOUD))
                data[at : at + len(new)] = new
            case "cut":
                del data[at:]
            case "copy":
                start, size = draw(st.integers(0, len(data))), draw(st.integers(1, 200))
                data[at : at + size] = data[start : start + size]
            case "foreign":
                other = sound(draw(st.sampled_from(sorted(SOUND))))
                start, size = draw(st.integers(0, len(other))), draw(st.integers(1, 200))
                data[at : at + size] = other[start : start + size]
            case "drop":
                del data[at : at + draw(st.integers(1, 20))]
    return bytes(data)


def read_as(folder: Path, name: str, data: bytes) -> None:
    """Read a file, and of a checkpoint also the folder that it is in; only errors of ours may come of it."""
    path = folder / name
    path.write_bytes(data)
    if name.endswith(".index"):
        path.with_name(f"{path.stem}.data-00000-of-00001").write_bytes(bytes(24) + data[:200])
    started = time.monotonic()
    with contextlib.suppress(AnyrigError):
        read_whole(path)
    assert time.monotonic() - started < SECONDS
    assert [file.name for file in folder.parent.iterdir()] == [folder.name], "nothing was written beside it"


@pytest.mark.parametrize("name", sorted(SOUND))
def test_any_change_of_a_file_ends_in_a_result_or_in_an_error_of_ours(tmp_path: Path, name: str, full: bool) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    read_as(folder, name, sound(name))  # what the libraries need once
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @hypothesis.settings(max_examples=5000 if full else 150, deadline=None, database=None)
    @hypothesis.given(broken(name))
    def check(data: bytes) -> None:
        read_as(folder, name, data)

    check()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KIB


@pytest.mark.parametrize("name", ["legacy.h5", "w.npz", "x.index", "w.safetensors"])
def test_every_length_and_every_flipped_bit_of_small_files(tmp_path: Path, name: str, full: bool) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    data = sound(name)
    for size in range(0, len(data), 1 if full else max(1, len(data) // 60)):
        read_as(folder, name, data[:size])
    for at in range(0, len(data), 1 if full else max(1, len(data) // 250)):
        read_as(folder, name, data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
