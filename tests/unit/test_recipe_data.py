"""Opening the arrays that a recipe names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyrig.errors import UsageError
from anyrig.train.recipe.data import load_data
from anyrig.train.recipe.schema import DataSource


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Arrays that fit each other, and files that are damaged in one way each."""
    objects = np.array([{}, {}, {}], dtype=object)
    arrays: dict[str, Any] = {
        "x": np.arange(6.0).reshape(3, 2),
        "y": np.arange(3),
        "w": np.ones(3),
        "four": np.zeros(4),
    }
    arrays |= {"none": np.zeros((0, 2)), "one": np.float32(1), "objects": objects}
    np.savez(tmp_path / "a.npz", **arrays)
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(3, 2))
    np.save(tmp_path / "y.npy", np.arange(3))
    np.save(tmp_path / "objects.npy", objects)
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "empty.npz").touch()
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    flipped = bytearray(whole)
    flipped[150] ^= 1
    (tmp_path / "flipped.npz").write_bytes(flipped)
    (tmp_path / "folder").mkdir()
    return tmp_path


def _source(**keys: Any) -> DataSource:
    return DataSource.model_validate(keys)


def test_npz_with_default_and_named_keys(folder: Path) -> None:
    x, y, weight = load_data(_source(npz="a.npz"), folder)
    assert (x.tolist(), y.tolist(), weight) == ([[0, 1], [2, 3], [4, 5]], [0, 1, 2], None)  # type: ignore[union-attr]
    x, y, weight = load_data(_source(npz="a.npz", x={"left": "x", "right": "y"}, y=["w"], sample_weight="w"), folder)
    assert isinstance(x, dict)
    assert list(x) == ["left", "right"]
    assert isinstance(y, dict)
    assert y["w"].tolist() == [1, 1, 1]
    assert weight is not None


def test_npy_files_are_mapped(folder: Path) -> None:
    x, y, _ = load_data(_source(arrays={"x": {"a": "x.npy", "b": "x.npy"}, "y": "y.npy"}), folder)
    assert isinstance(x, dict)
    assert all(isinstance(array, np.memmap) and not array.flags.writeable for array in x.values())
    assert isinstance(y, np.memmap)


@pytest.mark.parametrize(
    ("source", "code", "message"),
    [
        ({"npz": "a.npz", "y": "four"}, "018", "data.train: the rows do not match: x has 3 rows, y has 4 rows"),
        ({"npz": "a.npz", "y": "one"}, "018", "x has 3 rows, y is one value"),
        ({"npz": "a.npz", "sample_weight": "four"}, "018", "sample_weight has 4 rows"),
        ({"npz": "a.npz", "x": "none", "y": "none"}, "019", "data.train: there are no rows"),
        ({"npz": "a.npz", "x": "xx"}, "016", "a.npz has no array xx; did you mean x?"),
        ({"npz": "a.npz", "x": "objects"}, "015", "holds Python objects, which are never loaded"),
        ({"npz": "no.npz"}, "015", "no.npz: there is no such file"),
        ({"npz": "folder"}, "015", "this is a folder"),
        ({"npz": "x.npy"}, "015", "it holds a single array"),
        ({"npz": "text.npz"}, "015", "it is no file of plain NumPy arrays"),
        ({"npz": "empty.npz"}, "015", "it is no file of NumPy arrays, or it is damaged"),
        ({"npz": "cut.npz"}, "015", "it is no file of NumPy arrays, or it is damaged"),
        ({"npz": "flipped.npz"}, "015", "it is damaged (Bad CRC-32"),
        ({"arrays": {"x": "objects.npy"}}, "015", "holds Python objects, which are never loaded"),
        ({"arrays": {"x": "a.npz"}}, "015", "data.train.arrays.x: "),
        ({"arrays": {"x": {"a": "no.npy"}}}, "015", "data.train.arrays.x.a: "),
    ],
)
def test_data_that_cannot_be_used(folder: Path, source: dict[str, Any], code: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_data(_source(**source), folder)
    assert caught.value.code == f"ANY-RECIPE-{code}"
    assert message in caught.value.message


def test_a_missing_key_lists_those_there_are(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_data(_source(npz="a.npz", y="labels"), folder)
    assert caught.value.hint == "the file holds: x, y, w, four, none, one, objects"


def test_arrays_of_records_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "records.npy", np.zeros(3, dtype=[("a", "f4")]))
    with pytest.raises(UsageError, match="expected numbers, booleans or text") as caught:
        load_data(_source(arrays={"x": "records.npy"}), tmp_path)
    assert caught.value.code == "ANY-RECIPE-017"
