"""verify of files of other formats: every byte is read, checksums are compared, and what has none is said."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from safetensors.numpy import save_file

from anyrig.diagnose.verify import verify
from anyrig.diagnose.verify_file import FileVerdict
from anyrig.errors import CheckFailed
from tests.corpus.artefacts import unpacked
from tests.unit.tensorflow_files import entry, write_bundle

Make = Callable[[Path], Path]
ARRAYS = {"a/kernel": np.arange(40, dtype=np.float32), "b/kernel": np.arange(40, 80, dtype=np.float32)}
MARK = ARRAYS["b/kernel"].tobytes()


def bundle(folder: Path) -> Path:
    data = b"".join(array.tobytes() for array in ARRAYS.values())
    starts = zip(ARRAYS.items(), (0, 160), strict=True)
    entries = {name.encode(): entry(1, [40], start, array.tobytes()) for (name, array), start in starts}
    return write_bundle(folder / "ckpt", entries, data).with_name("ckpt.data-00000-of-00001")


def hdf5(folder: Path, *, summed: bool = False) -> Path:
    with h5py.File(folder / "w.h5", "w") as file:
        for name, array in ARRAYS.items():
            file.create_dataset(name, data=array, fletcher32=summed)
    return folder / "w.h5"


def keras(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "m.keras", "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.15.1"}')
        archive.writestr("config.json", '{"class_name": "Sequential"}')
        archive.write(hdf5(folder), "model.weights.h5")
    return folder / "m.keras"


def npz(folder: Path) -> Path:
    arrays: dict[str, Any] = {name.replace("/", "."): array for name, array in ARRAYS.items()}
    np.savez(folder / "w.npz", **arrays)
    return folder / "w.npz"


def safetensors(folder: Path) -> Path:
    save_file(dict(ARRAYS), folder / "w.safetensors")
    return folder / "w.safetensors"


def verdict(path: Path) -> FileVerdict:
    found = verify(path).file
    assert found is not None
    return found


def flip(path: Path, mark: bytes = MARK) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(mark) + 5] ^= 64
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("make", "checked", "names"),
    [
        (bundle, "CRC-32C of each tensor", ("b/kernel",)),
        (lambda folder: hdf5(folder, summed=True), "Fletcher-32 of each chunk of 2 tensors", ("b/kernel",)),
        (keras, "CRC-32 of each file", ("a/kernel", "b/kernel")),
        (npz, "CRC-32 of each file", ("b.kernel",)),
    ],
    ids=["bundle", "hdf5", "keras", "npz"],
)
def test_a_changed_byte_is_found_and_its_tensors_named(
    tmp_path: Path, make: Make, checked: str, names: tuple[str, ...]
) -> None:
    path = make(tmp_path)
    sound = verdict(path)
    assert (len(sound.damage + sound.unread), sound.tensors, sound.nbytes) == (0, 2, 320)
    assert checked in sound.checked[0]
    flip(path)
    report = verify(path)
    assert report.file is not None
    (fault,) = report.file.damage
    assert fault.tensors == names
    with pytest.raises(CheckFailed, match=f"{names[0]}.*: .* is damaged") as caught:
        report.require_sound()
    assert caught.value.exit_code == 3
    assert "download it again" in caught.value.hint


@pytest.mark.parametrize("make", [hdf5, safetensors])
def test_what_has_no_checksum_is_said(tmp_path: Path, make: Make) -> None:
    path = make(tmp_path)
    flip(path)
    found = verdict(path)
    assert not found.damage
    assert not found.checked
    assert "checksum" in found.unchecked[0]


@pytest.mark.parametrize("make", [bundle, hdf5, keras, npz, safetensors])
def test_a_file_that_was_cut_off_is_damaged_and_not_an_error_of_use(tmp_path: Path, make: Make) -> None:
    path = make(tmp_path)
    path.write_bytes(path.read_bytes()[:-200])
    report = verify(path)
    assert not report.sound
    assert report.file is not None
    assert str(tmp_path) in report.file.damage[0].message


def test_an_index_that_was_cut_off_is_damaged(tmp_path: Path) -> None:
    index = bundle(tmp_path).with_name("ckpt.index")
    for size in (index.stat().st_size - 1, 0):
        index.write_bytes(index.read_bytes()[:size])
        for path in (tmp_path, index, tmp_path / "ckpt"):
            (fault,) = verdict(path).damage
            assert str(index) in fault.message


def test_what_is_not_read_here_is_no_damage(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", objects=np.array([{}], object), allow_pickle=True)
    found = verdict(tmp_path / "w.npz")
    assert found.damage == ()
    assert found.unread[0].tensors == ("objects",)
    assert "pickle" in found.unread[0].message


@pytest.mark.parametrize("name", ["MSD_musicnn", "MSD_vgg", "MTT_musicnn", "MTT_vgg"])
def test_published_checkpoints_whose_author_has_another_disk_read_to_the_last_byte(name: str) -> None:
    folder = unpacked("musicnn") / "musicnn" / name
    found = verdict(folder)
    assert len(found.damage + found.unread) + len(found.unchecked) == 0
    assert found.nbytes == sum(file.stat().st_size for file in folder.glob("*.data-*"))


@pytest.mark.parametrize("package", ["spliceai", "fer", "guesslang", "mhcnuggets"])
def test_other_published_files_read_to_the_last_byte(package: str) -> None:
    files = [*unpacked(package).rglob("*.h5"), *unpacked(package).rglob("*.hdf5"), *unpacked(package).rglob("*.pb")]
    assert files
    for file in files:
        found = verdict(file)
        assert found.damage == found.unread == ()
        assert found.tensors
