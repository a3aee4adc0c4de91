"""Many small tensors and one of 4 GiB: stored and read exactly, and what each costs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anyrig.store.local import LOCAL
from anyrig.store.read import Checkpoint, open_checkpoint, verify_checkpoint
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint
from anyrig.testing.faults import Call, Faults
from tests.crash.conftest import Measured

MANY, GIB = 10_000, 2**30


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = act()
    return time.perf_counter() - began, result


def costs(root: Path, tensors: list[StoredTensor], *, verify: bool) -> tuple[dict[str, float], Checkpoint]:
    """Save and load; return the seconds of each part."""
    saved, made = timed(lambda: write_checkpoint(root, 1, tensors, progress={}))
    opened, found = timed(lambda: open_checkpoint(made.path))
    mapped, _ = timed(lambda: found.tensors(found.names))
    seconds = {"save": saved, "open": opened, "load, not verified": mapped}
    if verify:
        seconds["load, verified"], _ = timed(lambda: found.tensors(found.names, verify="full"))
        seconds["verify"], damage = timed(lambda: verify_checkpoint(found))
        assert damage == []
    return {name: round(value, 4) for name, value in seconds.items()}, found


def test_ten_thousand_small_tensors(tmp_path: Path, measured: Measured) -> None:
    names = [f"model/layer_{number}/kernel" for number in range(MANY)]
    tensors = [StoredTensor(name=name, array=np.full(16, i, np.float32)) for i, name in enumerate(names)]
    seconds, found = costs(tmp_path, tensors, verify=True)
    assert found.names == tuple(names)
    loaded = found.tensors(names)
    assert all((loaded[name] == number).all() for number, name in enumerate(names))
    manifest = (found.path / "manifest.json").stat().st_size
    measured("sizes", what=f"{MANY:,} tensors of 64 bytes", count=MANY, bytes=64 * MANY, manifest=manifest, **seconds)


def hole(call: Call) -> None:
    """Leave a hole in the file in place of writing zeros."""
    descriptor, data = call.arguments
    if len(data) < 2**16:
        call.make()
    else:
        os.ftruncate(descriptor, os.lseek(descriptor, len(data), os.SEEK_CUR))


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Path]:
    """A folder that is emptied at once: pytest keeps those of the last sessions."""
    yield tmp_path / "large"
    for path in (tmp_path / "large").rglob("*"):
        if path.is_file():
            path.unlink()


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.full)], ids=["sparse", "real"])
def test_one_tensor_of_four_gib(large: Path, real: bool, measured: Measured) -> None:
    array = np.zeros(4 * GIB // 4, np.float32)
    with nullcontext() if real else Faults(hole, kinds={"write"}, times=None).on(LOCAL):
        seconds, found = costs(large, [StoredTensor(name="model/large", array=array)], verify=real)
    (data,) = found.path.glob("*.safetensors")
    assert data.stat().st_size > 4 * GIB
    assert real or data.stat().st_blocks * 512 < GIB
    assert found.tensor("model/large", slice(-3, None)).tolist() == [0, 0, 0]
    manifest = (found.path / "manifest.json").stat().st_size
    what = "one tensor of 4 GiB" if real else "one tensor of 4 GiB as holes in a file"
    measured("sizes", what=what, count=1, bytes=array.nbytes, manifest=manifest, **seconds)
