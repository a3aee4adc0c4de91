"""Any tensors under any names come back: same bytes, types, shapes, digests; and so does any progress."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anyrig import names
from anyrig.store.decode import decode
from anyrig.store.digest import model_digest_of, state_digest_of, tree_digest
from anyrig.store.dtypes import ITEM_BYTES, numpy_dtype
from anyrig.store.header import read_header
from anyrig.store.manifest import Manifest, encode
from anyrig.store.parse import ManifestError
from anyrig.store.plan import Shards
from anyrig.store.read import open_checkpoint, verify_checkpoint
from anyrig.store.retain import Keep, StepInfo, to_remove
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint

GROUPS = st.sampled_from(["model", "optimizer", "ema", "metrics", "callbacks"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = st.builds(lambda group, parts: names.join(group, *parts), GROUPS, st.lists(TEXTS, min_size=1, max_size=3))


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Any type, any bytes (NaNs with payloads too), 0 to 4 dimensions, any of them empty, any order in memory."""
    dtype = numpy_dtype(draw(st.sampled_from(sorted(ITEM_BYTES))))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7))
    raw = draw(st.binary(min_size=8, max_size=64))
    count = math.prod(shape) * dtype.itemsize
    flat = np.frombuffer((raw * (count // len(raw) + 1))[:count], np.uint8)
    array = (flat % 2).view(bool) if dtype.kind == "b" else flat.view(dtype)
    array = array.reshape(shape)
    return draw(st.sampled_from([array, array.T, array[..., ::-1] if shape else array]))


TENSORS = st.dictionaries(NAMES, arrays(), max_size=6).map(
    lambda found: [StoredTensor(name=name, array=array) for name, array in found.items()]
)


@settings(max_examples=80, deadline=None)
@given(tensors=TENSORS, step=st.integers(0, 10**18 - 1), shard=st.sampled_from([1, 100, 10**9]))
def test_any_tensors(tensors: list[StoredTensor], step: int, shard: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        path = write_checkpoint(root, step, tensors, progress={}, shards=Shards(shard)).path
        checkpoint = open_checkpoint(path)
        assert verify_checkpoint(checkpoint) == []
        assert checkpoint.names == tuple(tensor.name for tensor in tensors)
        for tensor in tensors:
            found = checkpoint.tensor(tensor.name)
            assert (found.dtype, found.shape) == (tensor.array.dtype, tensor.array.shape)
            assert found.tobytes() == tensor.array.tobytes()
            piece = checkpoint.entry(tensor.name).pieces[0]
            assert piece.start % 64 == 0 or tensor.array.nbytes % 64
            assert piece.start % tensor.array.dtype.itemsize == 0
        assert checkpoint.state_digest == state_digest_of(tensors, step)
        assert checkpoint.model_digest == model_digest_of(tensors)
        for entry in checkpoint.manifest.files:
            listed = safetensors.deserialize((path / entry.name).read_bytes())  # type: ignore[no-untyped-call]
            official = {name: bytes(item["data"]) for name, item in listed}
            assert official.items() <= {tensor.name: tensor.array.tobytes() for tensor in tensors}.items()
            assert {spec.name for spec in read_header(path / entry.name)} == official.keys()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXTS.filter(lambda key: key != "$float"), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(progress=st.dictionaries(TEXTS.filter(lambda key: key != "$float"), JSON, max_size=5))
def test_any_progress(progress: dict[str, Any]) -> None:
    found = decode(encode(Manifest(step=0, files=(), tensors=(), progress=progress))).progress
    assert found == progress
    assert json.dumps(found, sort_keys=True) == json.dumps(progress, sort_keys=True)


@settings(max_examples=300)
@given(raw=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_other_bytes_are_no_manifest(raw: bytes) -> None:
    try:
        decode(raw)
    except ManifestError:
        return
    raise AssertionError(raw)


LEAVES = st.lists(
    st.tuples(TEXTS, st.sampled_from(["F32", "I8"]), st.lists(st.integers(0, 9), max_size=3).map(tuple), TEXTS),
    max_size=5,
    unique_by=lambda leaf: leaf[0],
)


@given(first=LEAVES, second=LEAVES)
def test_digests_are_equal_when_the_entries_are(first: list[Any], second: list[Any]) -> None:
    assert tree_digest(first) == tree_digest(first[::-1])
    assert (tree_digest(first) == tree_digest(second)) == (sorted(first) == sorted(second))


INFOS = st.lists(
    st.builds(StepInfo, st.integers(0, 50), st.none() | st.floats(), st.booleans()), unique_by=lambda info: info.step
)
KEEPS = st.builds(
    Keep,
    last=st.none() | st.integers(1, 5),
    best=st.integers(0, 4),
    monitor=st.just("loss"),
    mode=st.sampled_from(["min", "max"]),
    every=st.none() | st.integers(1, 9),
)


@given(infos=INFOS, keep=KEEPS)
def test_retention_keeps_what_it_promises(infos: list[StepInfo], keep: Keep) -> None:
    removed = set(to_remove(infos, keep))
    steps = sorted(info.step for info in infos)
    assert removed <= set(steps)
    assert not removed & set(steps[-(keep.last or len(steps)) :] if steps else [])
    assert not removed & {info.step for info in infos if info.pinned}
    assert not removed & {step for step in steps if keep.every and step % keep.every == 0}
    metrics = [info.metric for info in infos if info.metric is not None and not math.isnan(info.metric)]
    if metrics and keep.best:
        best = min(metrics) if keep.mode == "min" else max(metrics)
        assert [info for info in infos if info.metric == best and info.step not in removed]
    survivors = [info for info in infos if info.step not in removed]
    assert to_remove(survivors, keep) == []


@given(name=TEXTS)
def test_paths_stay_inside(name: str) -> None:
    from anyrig.store.layout import fault_of_path

    if fault_of_path(name) is None:
        folder = Path("/folder")
        assert folder in (folder / name).parents
        assert ".." not in Path(name).parts
