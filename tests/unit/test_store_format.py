"""The bytes on the disk: pinned, described by the published schema, and readable by the official safetensors reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import ml_dtypes
import numpy as np
import pytest
import safetensors
import xxhash

from anyrig.store import digest
from anyrig.store.dtypes import ITEM_BYTES, numpy_dtype, spelling_of
from anyrig.store.header import TensorSpec, build_header, read_header
from anyrig.store.plan import Shards, plan_data_files
from anyrig.store.read import Checkpoint, verify_checkpoint
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint

SCHEMA = Path(__file__).parents[2] / "docs" / "manifest.schema.json"


def golden(root: Path) -> Checkpoint:
    tensors = [
        StoredTensor(name="model/a", array=np.array([1, 2, 3], np.int16), aliases=("old/a",), place="ff"),
        StoredTensor(name="model/b", array=np.arange(16, dtype=np.float32).reshape(2, 8)),
        StoredTensor(name="metrics/none", array=np.zeros((0, 2), np.bool_)),
    ]
    return write_checkpoint(root, 3, tensors, progress={"loss": 0.1, "best": np.inf}, documents={"model.json": b"{}"})


def test_golden_bytes_of_schema_version_1(tmp_path: Path) -> None:
    """If this fails, released readers cannot read what you write: raise SCHEMA_VERSION instead of editing it."""
    path = golden(tmp_path).path
    header = (
        b'{"__metadata__":{"format":"np"},"model/b":{"dtype":"F32","shape":[2,8],"data_offsets":[0,64]},'
        b'"model/a":{"dtype":"I16","shape":[3],"data_offsets":[64,70]}}'
    )
    data = np.arange(16, dtype="<f4").tobytes() + b"\x01\x00\x02\x00\x03\x00"
    assert (path / "model-00001-of-00001.safetensors").read_bytes() == (184).to_bytes(8, "little") + header.ljust(
        184
    ) + data
    assert (path / "manifest.json").read_bytes() == GOLDEN_MANIFEST


GOLDEN_MANIFEST = (
    b'{"files":[{"checksum":"1f9d081e08b9d9c615f687e80cdaa486","name":"model-00001-of-00001.safetensors","'
    b'size":262},{"checksum":"bca655dda9807c15e03b1451c2df8cdc","name":"metrics-00001-of-00001.safetensors'
    b'","size":128},{"checksum":"dc7048f8f8747f561349cde127705c16","name":"model.json","size":2}],"format"'
    b':"anyrig-checkpoint","progress":{"best":{"$float":"inf"},"loss":0.1},"record":{},"schema_version":1,'
    b'"step":3,"tensors":[{"aliases":["old/a"],"checksum":"26121f4bc95d869c5e03b39ffd128642","dtype":"I16"'
    b',"name":"model/a","pieces":[{"checksums":["26121f4bc95d869c5e03b39ffd128642"],"file":"model-00001-of'
    b'-00001.safetensors","offset":[0],"shape":[3],"start":256,"stop":262}],"place":"ff","shape":[3]},{"al'
    b'iases":[],"checksum":"20a0508a7cc22b4bf9634f0841efb85d","dtype":"F32","name":"model/b","pieces":[{"c'
    b'hecksums":["20a0508a7cc22b4bf9634f0841efb85d"],"file":"model-00001-of-00001.safetensors","offset":[0'
    b',0],"shape":[2,8],"start":192,"stop":256}],"place":null,"shape":[2,8]},{"aliases":[],"checksum":"99a'
    b'a06d3014798d86001c324468d497f","dtype":"BOOL","name":"metrics/none","pieces":[{"checksums":[],"file"'
    b':"metrics-00001-of-00001.safetensors","offset":[0,0],"shape":[0,2],"start":128,"stop":128}],"place":'
    b'null,"shape":[0,2]}],"manifest_checksum":"cc2b0e4df8a5bc12f52a31906e3296ea"}\n'
)


def test_the_checksum_can_be_checked_by_other_tools(tmp_path: Path) -> None:
    document = json.loads((golden(tmp_path).path / "manifest.json").read_bytes())
    checksum = document.pop("manifest_checksum")
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    assert xxhash.xxh3_128_hexdigest(canonical.encode()) == checksum


def test_the_manifest_fits_the_published_schema(tmp_path: Path) -> None:
    schema = json.loads(SCHEMA.read_text())
    document = json.loads((golden(tmp_path).path / "manifest.json").read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)
    assert set(schema["properties"]["tensors"]["items"]["properties"]["dtype"]["enum"]) == set(ITEM_BYTES)
    del document["tensors"][0]["pieces"][0]["file"]
    with pytest.raises(jsonschema.ValidationError, match="'file' is a required property"):
        jsonschema.validate(document, schema)


@pytest.mark.parametrize("spelling", sorted(ITEM_BYTES))
def test_every_type_has_one_spelling_and_its_size(spelling: str) -> None:
    dtype = numpy_dtype(spelling)
    assert spelling_of(dtype) == spelling
    assert dtype.itemsize == ITEM_BYTES[spelling]


OFFICIAL: list[Any] = [
    np.float32, np.float64, np.float16, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32,
    np.uint64, np.bool_, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz,
]  # fmt: skip


@pytest.mark.parametrize("dtype", OFFICIAL, ids=lambda dtype: np.dtype(dtype).name)
def test_the_official_reader_gets_the_same_bytes(tmp_path: Path, dtype: Any) -> None:
    arrays = {
        "model/vector": np.arange(1, 6).astype(dtype),
        "model/scalar": np.array(1).astype(dtype),
        "model/empty": np.zeros((3, 0, 2), dtype),
        "model/lines": np.ones((4, 64), dtype),
    }
    tensors = [StoredTensor(name=name, array=array) for name, array in arrays.items()]
    path = write_checkpoint(tmp_path, 1, tensors, progress={}).path / "model-00001-of-00001.safetensors"
    found = dict(safetensors.deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name]["dtype"] == spelling_of(np.dtype(dtype))
        assert tuple(found[name]["shape"]) == array.shape
        assert bytes(found[name]["data"]) == array.tobytes()


def test_the_official_numpy_loader_opens_a_file(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    found = load_file(golden(tmp_path).path / "model-00001-of-00001.safetensors")
    np.testing.assert_array_equal(found["model/b"], np.arange(16, dtype=np.float32).reshape(2, 8))
    np.testing.assert_array_equal(found["model/a"], [1, 2, 3])


def test_our_header_reader_reads_what_the_official_writer_wrote(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.int8)}, tmp_path / "x.safetensors")
    specs = {spec.name: (spec.dtype, spec.shape, spec.nbytes) for spec in read_header(tmp_path / "x.safetensors")}
    assert specs == {"w": ("F32", (2, 3), 24), "b": ("I8", (3,), 3)}


def spec(name: str, nbytes: int, dtype: str = "U8") -> TensorSpec:
    return TensorSpec(name, dtype, (nbytes // ITEM_BYTES[dtype],), nbytes)


def test_whole_lines_come_first_then_large_items() -> None:
    specs = [spec("m/a", 3), spec("m/b", 64), spec("m/c", 12, "F32"), spec("m/d", 24, "F64"), spec("m/e", 128)]
    (file,) = plan_data_files(specs, Shards(1000))
    assert [tensor.name for tensor in file.tensors] == ["m/b", "m/e", "m/d", "m/c", "m/a"]
    assert len(file.header) % 64 == 0
    assert file.size == len(file.header) + 231


def test_a_group_is_cut_before_the_file_grows_too_large() -> None:
    specs = [spec("m/a", 60), spec("o/x", 1), spec("m/b", 40), spec("m/c", 1), spec("m/d", 500), spec("m/e", 100)]
    files = list(plan_data_files(specs, Shards(100)))
    assert {file.name: [tensor.name for tensor in file.tensors] for file in files} == {
        "m-00001-of-00004.safetensors": ["m/a", "m/b"],
        "m-00002-of-00004.safetensors": ["m/c"],
        "m-00003-of-00004.safetensors": ["m/d"],
        "m-00004-of-00004.safetensors": ["m/e"],
        "o-00001-of-00001.safetensors": ["o/x"],
    }


def test_a_first_tensor_that_is_too_large_makes_no_empty_file() -> None:
    files = list(plan_data_files([spec("m/a", 500), spec("m/b", 1)], Shards(100)))
    assert [[tensor.name for tensor in file.tensors] for file in files] == [["m/a"], ["m/b"]]


def test_S2_10_layers_have_files_of_their_own_and_large_ones_several() -> None:
    names = ("model/a/kernel", "model/b/kernel", "model/a/bias", "model/b/inner/bias", "optimizer/main/a/kernel/m")
    files = plan_data_files([spec(name, 60) for name in names], Shards(120, by_layer=True))
    assert {file.name: [tensor.name for tensor in file.tensors] for file in files} == {
        "model-00001-of-00002.safetensors": ["model/a/kernel", "model/a/bias"],
        "model-00002-of-00002.safetensors": ["model/b/kernel", "model/b/inner/bias"],
        "optimizer-00001-of-00001.safetensors": ["optimizer/main/a/kernel/m"],
    }
    files = plan_data_files([spec(name, 60) for name in names], Shards(100, by_layer=True))
    assert [len(file.tensors) for file in files] == [1, 1, 1, 1, 1]


def test_shards_read_back(tmp_path: Path) -> None:
    arrays = {f"model/{index}": np.full(30 + index, index, np.int32) for index in range(9)}
    tensors = [StoredTensor(name=name, array=array) for name, array in arrays.items()]
    checkpoint = write_checkpoint(tmp_path, 1, tensors, progress={}, shards=Shards(300))
    assert sum(entry.name.endswith("-of-00005.safetensors") for entry in checkpoint.manifest.files) == 5
    assert checkpoint.names == tuple(arrays)
    assert verify_checkpoint(checkpoint) == []
    for name, array in arrays.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), array)


def test_one_checksum_per_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anyrig.store import check, decode

    for module in (digest, check, decode):
        monkeypatch.setattr(module, "CHUNK_BYTES", 64)
    monkeypatch.setattr(digest, "BLOCK_BYTES", 32)
    monkeypatch.setattr(check, "BLOCK_BYTES", 32)
    array = np.arange(150, dtype=np.uint8)
    checkpoint = write_checkpoint(tmp_path, 1, [StoredTensor(name="model/a", array=array)], progress={})
    entry = checkpoint.entry("model/a")
    raw = array.tobytes()
    assert entry.pieces[0].checksums == tuple(digest.hash_bytes(raw[start : start + 64]) for start in (0, 64, 128))
    assert entry.checksum == digest.tensor_hash(array)
    path = checkpoint.path / entry.pieces[0].file
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    content[entry.pieces[0].start + 100] ^= 1
    path.write_bytes(content)
    start = entry.pieces[0].start
    (damage,) = verify_checkpoint(checkpoint)
    assert (damage.tensor, damage.what) == ("model/a", f"its bytes {start + 64} to {start + 128} have changed")


def test_a_chunk_is_a_whole_number_of_blocks() -> None:
    assert digest.CHUNK_BYTES == 64 * 2**20
    assert digest.CHUNK_BYTES % digest.BLOCK_BYTES == 0


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        (b"[]", "its header is not an object"),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', "starts at byte 1 instead of 0"),
        (b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', "it has 2 bytes of data, its header lists 1"),
        (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,2]}}', "the shape and the bytes of 'a' do not fit"),
        (b'{"a":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}}', "entry of 'a' is not valid"),
        (b'{"a":{"dtype":"U8","shape":[2]}}', "entry of 'a' is not valid"),
        (b'{"a":1,"a":2}', "the key 'a' occurs twice"),
        (b'{"a":NaN}', "it holds NaN"),
        (b'{"a"', "it is not JSON"),
        (b"[" * 100000, "nested too deeply"),
    ],
)
def test_bad_safetensors_headers(tmp_path: Path, header: bytes, fault: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    with pytest.raises(Exception, match=fault) as caught:
        read_header(path)
    assert getattr(caught.value, "code", None) == "ANY-LOAD-014"


@pytest.mark.parametrize("raw", [b"", b"\0" * 8, b"\xff" * 8, b"\xff" * 20])
def test_header_lengths_that_do_not_fit_the_file(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(raw)
    with pytest.raises(Exception, match="its header cannot have"):
        read_header(tmp_path / "x.safetensors")


def test_header_is_what_the_specification_says() -> None:
    header = build_header([spec("m/ä", 5)])
    length = int.from_bytes(header[:8], "little")
    assert len(header) == 8 + length
    assert json.loads(header[8:])["m/ä"] == {"dtype": "U8", "shape": [5], "data_offsets": [0, 5]}
