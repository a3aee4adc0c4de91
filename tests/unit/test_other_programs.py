"""ONNX, TFLite and Orbax: what other programs wrote is read byte for byte, and lies are named."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from anyrig.diagnose.verify import verify
from anyrig.errors import AnyrigError
from anyrig.formats.contents import FileTensor
from anyrig.formats.sniff import read_any
from tests.unit.hostile import refused
from tests.unit.tensorflow_files import field

HERE = Path(__file__).parents[1] / "corpus" / "others"
EXPECTED = np.load(HERE / "expected.npz")


def by_name(path: Path) -> dict[str, FileTensor]:
    return {tensor.name: tensor for tensor in read_any(path).tensors}


def under(prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): EXPECTED[name] for name in EXPECTED.files if name.startswith(prefix)}


def test_initialisers_of_every_type_however_they_are_written() -> None:
    contents, found = read_any(HERE / "all_types.onnx"), by_name(HERE / "all_types.onnx")
    for name, array in under("onnx/").items():
        for way in ("raw", "plain"):
            read = found[f"{way}/{name}"].array()
            assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, array.shape, array.tobytes()), (way, name)
    assert found["text"].array().tolist() == [b"one", "ü".encode()]
    assert found["plain/bf16"].array().astype(float).tolist() == [1.5, -2.0]
    assert (contents.format, contents.written_by, contents.metadata["ir_version"] > 0) == (
        "onnx",
        {"a writer": "1.2"},
        True,
    )
    (signature,) = contents.signatures
    assert [(end.name, end.dtype, end.shape) for end in signature.inputs] == [("x", "F32", (None, 2))]


def test_initialisers_in_a_file_beside_the_model(tmp_path: Path) -> None:
    for name in ("outside.onnx", "outside.data"):
        shutil.copy(HERE / name, tmp_path)
    (tensor,) = read_any(tmp_path / "outside.onnx").tensors
    assert (tensor.file, tensor.array().tobytes()) == ("outside.data", EXPECTED["outside"].tobytes())
    data = (tmp_path / "outside.onnx").read_bytes()
    for place in (b"../side.data", b"/etc/passwd0"):
        hostile = data.replace(b"outside.data", place)
        (tmp_path / "outside.onnx").write_bytes(hostile)
        refused(tmp_path / "outside.onnx", "004", "leaves the folder")
    (tmp_path / "outside.onnx").write_bytes(data)
    (tmp_path / "outside.data").rename(tmp_path / "secret")
    refused(tmp_path / "outside.onnx", "002", "missing")
    (tmp_path / "outside.data").symlink_to("/etc/hostname")
    refused(tmp_path / "outside.onnx", "004", "link")


def model(*tensors: bytes) -> bytes:
    graph = b"".join(field(5, tensor) for tensor in tensors)
    return field(1, 8) + field(7, graph) + field(8, field(2, 17))


def initialiser(name: str, kind: int, shape: list[int], *rest: bytes) -> bytes:
    return b"".join(field(1, size) for size in shape) + field(2, kind) + b"".join(rest) + field(8, name)


OUTSIDE = field(13, field(1, "location") + field(2, "w.data")) + field(14, 1)


@pytest.mark.parametrize(
    ("raw", "code", "says"),
    [
        (model(initialiser("w", 1, [10**10], field(9, bytes(16)))), "002", "has 16 bytes"),
        (model(initialiser("w", 1, [-4], field(9, bytes(16)))), "002", "shape"),
        (model(initialiser("w", 1, [10**10])), "003", "stored in"),
        (model(initialiser("w", 8, [10**10])), "003", "stored in"),
        (model(initialiser("w", 1, [3], field(4, bytes(8)))), "002", "2 values for the shape"),
        (model(initialiser("w", 1, [4], field(9, bytes(16))), initialiser("w", 6, [])), "002", "the same name"),
        (model(initialiser("w", 1, [4], field(9, 5))), "002", "should be bytes"),
        (model(initialiser("w", 1, [99], OUTSIDE)), "002", "has 24 bytes"),
        (model(initialiser("w", 1, [4], OUTSIDE, field(13, field(1, "offset") + field(2, "-8")))), "002", "outside"),
        (model(initialiser("w", 1, [4], OUTSIDE, field(13, field(1, "length") + field(2, "99")))), "002", "outside"),
        (model(initialiser("w", 1, [4], OUTSIDE, field(13, field(1, "length") + field(2, "x")))), "002", "no number"),
        (model(initialiser("w", 1, [4], field(9, bytes(16))))[:-20], "002", "longer than"),
    ],
)
def test_models_of_onnx_that_lie(tmp_path: Path, raw: bytes, code: str, says: str) -> None:
    (tmp_path / "w.data").write_bytes(bytes(24))
    (tmp_path / "m.bin").write_bytes(raw)
    refused(tmp_path / "m.bin", code, says)


def test_tensors_of_tflite() -> None:
    contents = read_any(HERE / "float.tflite")
    weights = under("weight/")
    held = {tensor.array().tobytes() for tensor in contents.tensors}
    assert {
        np.ascontiguousarray(weights[f"sequential/{name}/kernel"].T).tobytes() for name in ("first", "last")
    } <= held
    (signature,) = contents.signatures
    assert (signature.name, signature.inputs[0].shape) == ("serving_default", (None, 4))


def test_quantised_tensors_of_tflite_are_given_as_they_are_stored() -> None:
    contents = read_any(HERE / "quantised.tflite")
    (tensor,) = [tensor for tensor in contents.tensors if tensor.dtype == "I8"]
    assert tensor.role == "weight"
    assert "1 tensors are quantised" in contents.notes[0]
    scale = np.abs(EXPECTED["quantised"]).max(axis=0) / 127  # one for each unit
    assert (np.abs(tensor.array().T * scale - EXPECTED["quantised"]) < scale).all()


def test_a_folder_of_orbax_is_the_newest_step_with_names_roles_slots_and_architecture(tmp_path: Path) -> None:
    contents = read_any(HERE / "orbax")
    found = {alias: tensor for tensor in contents.tensors for alias in tensor.aliases}
    assert (contents.format, contents.path.name) == ("orbax", "1")
    assert contents.config is not None
    assert contents.config["class_name"] == "Sequential"
    assert contents.compile_config is not None
    wanted = under("weight/") | under("optimizer/")
    for name, array in wanted.items():
        assert found[name].array().astype(array.dtype).tobytes() == array.tobytes(), name
    slot = found["adam/sequential_first_kernel_velocity"]
    assert (slot.role, slot.of, slot.slot) == ("optimizer", "trainable_variables/sequential/first/kernel", "velocity")
    assert read_any(HERE / "orbax" / "0").path.name == "0"
    assert verify(HERE / "orbax").sound


def test_damage_in_a_folder_of_orbax_is_found_or_changes_nothing(tmp_path: Path) -> None:
    step = tmp_path / "1"
    shutil.copytree(HERE / "orbax" / "1", step)
    sound = {name: tensor.array().tobytes() for name, tensor in by_name(step).items()}
    data = sorted(file for file in step.rglob("*") if file.is_file() and file.parent.name == "d")
    found = 0
    for file in data:
        kept = file.read_bytes()
        for at in range(0, len(kept), 41):
            file.write_bytes(kept[:at] + bytes([kept[at] ^ 255]) + kept[at + 1 :])
            if verify(step).sound:
                assert {name: tensor.array().tobytes() for name, tensor in by_name(step).items()} == sound, file
            else:
                found += 1
        file.write_bytes(kept)
    assert found > 20
    shutil.copytree(step, tmp_path / "incomplete")
    for file in (tmp_path / "incomplete" / "pytree" / "d").iterdir():
        file.unlink()
    assert not verify(tmp_path / "incomplete").sound
    data[0].unlink()
    data[0].symlink_to(HERE / "orbax" / "1" / "pytree" / "_METADATA")
    refused(step, "004", "link")


def test_orbax_without_its_package_is_recognised_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(AnyrigError, match="is a folder of Orbax") as caught:
        read_any(HERE / "orbax")
    assert (caught.value.code, caught.value.hint) == ("ANY-FORMAT-040", "pip install 'anyrig[orbax]'")
