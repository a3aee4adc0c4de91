"""Statistics and comparisons of stored tensors: every stored type, odd numbers, sizes around a block."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anyrig
from anyrig.diagnose.diff import Diff, TensorChange
from anyrig.diagnose.inspect import inspect
from anyrig.diagnose.leaves import NOTHING, LeafChange, leaf_changes
from anyrig.diagnose.stats import TensorStats, stats_of
from anyrig.errors import AnyrigError, UsageError
from anyrig.formats.checkpoint import contents_of
from anyrig.formats.contents import BLOCK_ELEMENTS, FileTensor
from anyrig.store.read import Checkpoint
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint

Array = np.ndarray[Any, Any]
_SPECIAL = np.array([-1.5, 0.0, np.nan, 2.0, np.inf, -np.inf])


def _write(folder: Path, arrays: dict[str, Array], *, step: int = 1, **more: Any) -> Checkpoint:
    tensors = [StoredTensor(name=name, array=array) for name, array in arrays.items()]
    return write_checkpoint(folder / "checkpoints", step, tensors, **{"progress": {}, **more})


def _one(folder: Path, array: Array) -> FileTensor:
    (tensor,) = contents_of(_write(folder, {"model/x": array})).tensors
    return tensor


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_odd_numbers_are_counted_and_left_out(tmp_path: Path, dtype: Any) -> None:
    stats = stats_of(_one(tmp_path, _SPECIAL.astype(dtype)))
    assert stats is not None
    assert (stats.min, stats.max, stats.zeros, stats.nan, stats.inf) == (-1.5, 2.0, 1, 1, 2)
    assert stats.mean == pytest.approx(0.5 / 3)
    assert stats.norm == 2.5


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([2**64 - 1, 2**64 - 2, 0], np.uint64), (0, 2**64 - 1, 1)),
        (np.array([-(2**63), 5], np.int64), (-(2**63), 5, 0)),
        (np.array([True, False, False]), (0, 1, 2)),
        (np.array([3 + 4j, 0], np.complex64), (0, 5, 1)),
        (np.array(7.0, np.float32), (7, 7, 0)),
        (np.ones(3, ml_dtypes.float8_e8m0fnu), (1, 1, 0)),
        (np.zeros((0, 4), np.float32), (None, None, 0)),
        (np.full(2, np.nan, np.float32), (None, None, 0)),
    ],
)
def test_every_kind_of_element(tmp_path: Path, array: Array, expected: tuple[Any, ...]) -> None:
    stats = stats_of(_one(tmp_path, array))
    assert stats is not None
    assert (stats.min, stats.max, stats.zeros) == expected


def test_no_square_overflows_or_vanishes(tmp_path: Path) -> None:
    for scale in (1e300, 1e-300):
        stats = stats_of(_one(tmp_path / str(scale), np.array([3.0, -4.0]) * scale))
        assert stats is not None
        assert stats.norm == pytest.approx(5 * scale)
        assert stats.mean == pytest.approx(-0.5 * scale)


def test_blocks_are_put_together_in_little_memory(tmp_path: Path) -> None:
    array = np.random.default_rng(0).normal(size=8 * BLOCK_ELEMENTS + 1).astype(np.float32)
    array[[3, -1]] = 0, np.nan
    tensor = _one(tmp_path, array)
    tracemalloc.start()
    stats = stats_of(tensor)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert stats is not None
    finite = array[:-1].astype(np.float64)
    assert (stats.min, stats.max, stats.zeros, stats.nan) == (finite.min(), finite.max(), 1, 1)
    assert stats.mean == pytest.approx(finite.mean(), rel=1e-12)
    assert stats.norm == pytest.approx(np.linalg.norm(finite), rel=1e-12)
    assert used < 10 * 2**20 < array.nbytes + 2**21


def test_inspect_gives_statistics_of_checkpoints_and_files(tmp_path: Path) -> None:
    found = _write(tmp_path, {"model/x": np.arange(4, dtype=np.float32), "optimizer/i": np.array(3)})
    read: list[int] = []
    with_stats = inspect(found.path, stats=True, watch=_watching(read))
    assert [line.stats and line.stats.max for line in with_stats.tensors] == [3.0, 3]
    assert (read[0], sum(read[1:])) == (24, 24)
    file = inspect(found.path / "model-00001-of-00001.safetensors", stats=True)
    assert [line.stats for line in file.tensors] == [with_stats.tensors[0].stats]
    assert isinstance(file.tensors[0].stats, TensorStats)
    assert inspect(found.path, tensors=True).tensors[0].stats is None


def _watching(read: list[int]) -> Any:
    from contextlib import nullcontext

    def watch(total: int) -> Any:
        read.append(total)
        return nullcontext(read.append)

    return watch


def _change(tmp_path: Path, a: Array, b: Array) -> TensorChange:
    one, other = _write(tmp_path / "a", {"model/x": a}), _write(tmp_path / "b", {"model/x": b})
    (changed,) = anyrig.diff(one.path, other.path).changed
    return changed


def test_the_first_difference_and_the_largest_ones(tmp_path: Path) -> None:
    a = np.zeros((2, BLOCK_ELEMENTS), np.float32)
    b = a.copy()
    a[1, 5], b[1, 5] = 2.0, 1.5
    a[1, 9] = -1.0
    values = _change(tmp_path, a, b).values
    assert values is not None
    assert (values.first, values.differing, values.elements) == ((1, 5), 2, 2 * BLOCK_ELEMENTS)
    assert (values.max_abs, values.max_rel, values.not_finite) == (1.0, 1.0, 0)


@pytest.mark.parametrize(
    ("a", "b", "largest", "not_finite"),
    [
        (np.array([2**53, 1]), np.array([2**53 + 1, 1]), 1.0, 0),
        (np.array([-(2**63)]), np.array([2**63 - 1]), 2.0**64 - 1, 0),
        (np.array([0, 5], np.uint8), np.array([255, 5], np.uint8), 255.0, 0),
        (np.array([0.0, 1.0]), np.array([-0.0, 1.0]), 0.0, 0),
        (np.array([np.nan, np.inf, 1.0]), np.array([1.0, -np.inf, 2.0]), 1.0, 2),
        (np.array([np.nan]), np.array([0.0]), None, 1),
        (np.array([True, False]), np.array([False, False]), 1.0, 0),
        (np.array([3 + 4j], np.complex64), np.array([0], np.complex64), 5.0, 0),
        (np.array([1.0], ml_dtypes.bfloat16), np.array([2.0], ml_dtypes.bfloat16), 1.0, 0),
    ],
)
def test_differences_of_every_kind(tmp_path: Path, a: Array, b: Array, largest: float | None, not_finite: int) -> None:
    values = _change(tmp_path, a, b).values
    assert values is not None
    assert (values.max_abs, values.not_finite, values.first) == (largest, not_finite, (0,))


def test_other_types_are_compared_as_numbers_and_other_shapes_not_at_all(tmp_path: Path) -> None:
    exact = np.array([0.5, -2.0, np.nan], np.float32)
    cast = _change(tmp_path / "1", exact, exact.astype(ml_dtypes.bfloat16))
    assert ((cast.a.dtype, cast.b.dtype), cast.values) == (("F32", "BF16"), None)
    rounded = _change(tmp_path / "2", np.array([0.1]), np.array([0.1], np.float32))
    assert rounded.values is not None
    assert rounded.values.max_abs == pytest.approx(1.5e-9, rel=0.1)
    assert _change(tmp_path / "3", np.zeros((2, 3)), np.zeros((3, 2))).values is None


def test_equal_checksums_are_not_read(tmp_path: Path) -> None:
    arrays = {"model/x": np.arange(1000.0), "model/y": np.zeros(7)}
    a = _write(tmp_path / "a", arrays)
    b = _write(tmp_path / "b", arrays | {"model/y": np.ones(7)})
    read: list[int] = []
    found = anyrig.diff(a.path, b.path, watch=_watching(read))
    assert (found.equal_tensors, [change.name for change in found.changed]) == (1, ["model/y"])
    assert (read[0], sum(read[1:])) == (112, 112)


def test_files_without_checksums_are_read(tmp_path: Path) -> None:
    a = _write(tmp_path / "a", {"model/x": np.arange(5.0), "model/y": np.ones(2)}).path
    file = next(a.glob("model-*"))
    assert anyrig.diff(a, file).equal
    assert anyrig.diff(file, file).equal_tensors == 2
    other = _write(tmp_path / "b", {"model/x": np.arange(5.0) + 1, "model/y": np.ones(2)}).path
    assert [change.name for change in anyrig.diff(other, file).changed] == ["model/x"]


def test_damage_is_no_difference(tmp_path: Path) -> None:
    a = _write(tmp_path / "a", {"model/x": np.zeros(100)})
    b = _write(tmp_path / "b", {"model/x": np.ones(100)})
    file = next(b.path.glob("model-*"))
    file.chmod(0o600)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(AnyrigError, match=r"model/x of .*b.*step-000000001 is damaged") as caught:
        anyrig.diff(a.path, b.path)
    assert caught.value.code == "ANY-DIFF-001"
    file.write_bytes(content[:-1])
    with pytest.raises(AnyrigError, match="bytes instead of") as caught:
        anyrig.diff(a.path, b.path)
    assert caught.value.code == "ANY-LOAD-008"


def _documented(folder: Path, config: bytes, **more: Any) -> Path:
    return _write(folder, {"model/x": np.ones(1)}, documents={"model.json": config}, **more).path


def test_files_configuration_progress_and_record(tmp_path: Path) -> None:
    a = _documented(tmp_path / "a", b'{"units": 3, "name": "dense"}', progress={"epoch": 1, "loss": [0.5]})
    b = _documented(
        tmp_path / "b",
        b'{"units": 4, "name": "dense_7"}',
        progress={"epoch": 1, "loss": [0.5, math.nan]},
        assets={"words.txt": b"cat"},
        record={"keras": "3.15"},
        step=2,
    )
    found = anyrig.diff(a, b)
    assert not found.equal
    assert found.config == (LeafChange("units", 3, 4),)
    assert [change.where for change in found.files] == ["assets/words.txt"]
    assert [change.where for change in found.progress] == ["step", "loss[1]"]
    assert found.bookkeeping == ()
    assert found.record == (LeafChange("keras", NOTHING, "3.15"),)


def test_where_it_was_made_is_no_difference(tmp_path: Path) -> None:
    a = _documented(tmp_path / "a", b'{"name": "dense"}', record={"keras": "3.14"})
    b = _documented(tmp_path / "b", b'{"name": "dense_2"}', record={"keras": "3.15"})
    found: Diff = anyrig.diff(a.parent.parent, b)
    assert found.equal
    assert found.record == (LeafChange("keras", "3.14", "3.15"),)
    assert (found.a, found.b) == (a, b)


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    with pytest.raises(UsageError, match="of no format that is known here") as caught:
        anyrig.diff(tmp_path / "text", tmp_path)
    assert caught.value.code == "ANY-FORMAT-001"


def test_leaves() -> None:
    a = {"x": [1, {"y": 2}], "same": math.nan, "number": 1}
    b = {"x": [1, {"y": 3}, 4], "same": math.nan, "number": 1.0}
    assert [(change.where, change.a, change.b) for change in leaf_changes(a, b)] == [
        ("x[1].y", 2, 3),
        ("x[2]", NOTHING, 4),
        ("number", 1, 1.0),
    ]
