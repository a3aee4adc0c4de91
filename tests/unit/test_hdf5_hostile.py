"""HDF5 files that reach out of themselves, or promise more than they hold: refused by name, and nothing is followed."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from anyrig.formats.contents import Budget
from anyrig.formats.sniff import read_any
from tests.unit.hostile import refused

SECRET = b"only the owner of this machine may read this"
Write = Callable[[h5py.File], object]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that no other file may make readable."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(SECRET)
    with h5py.File(folder / "secret.h5", "w") as file:
        file["w"] = np.ones(3, np.float32)
    return folder


def written(path: Path, write: Write, **options: Any) -> Path:
    with h5py.File(path, "w", **options) as file:
        write(file)
    return path


def keras_weights(file: h5py.File) -> None:
    file["layers/dense/vars/0"] = np.ones((2, 2), np.float32)


def external_storage(file: h5py.File, outside: Path) -> None:
    file.create_dataset("layers/dense/vars/0", (len(SECRET),), "u1", external=[(str(outside / "secret"), 0, 44)])


def external_storage_beside(file: h5py.File, outside: Path) -> None:
    file.create_dataset("w", (44,), "u1", external=[("outside/secret", 0, h5py.h5f.UNLIMITED)])


def virtual(file: h5py.File, outside: Path) -> None:
    layout = h5py.VirtualLayout((3,), "f4")
    layout[:] = h5py.VirtualSource(str(outside / "secret.h5"), "w", (3,))
    file.create_virtual_dataset("layers/dense/vars/0", layout)


def virtual_of_itself(file: h5py.File, outside: Path) -> None:
    file["w"] = np.ones(3, np.float32)
    layout = h5py.VirtualLayout((3,), "f4")
    layout[:] = h5py.VirtualSource(".", "w", (3,))
    file.create_virtual_dataset("v", layout)


def linked(place: str, link: Callable[[Path], object]) -> Callable[[h5py.File, Path], None]:
    def write(file: h5py.File, outside: Path) -> None:
        file[place] = link(outside)

    return write


EXTERNAL = [
    linked("layers/dense/vars/0", lambda outside: h5py.ExternalLink(str(outside / "secret.h5"), "/w")),
    linked("layers/dense/vars", lambda outside: h5py.ExternalLink(str(outside / "secret.h5"), "/")),
    linked("layers", lambda outside: h5py.ExternalLink("outside/secret.h5", "/")),
    linked("layers/dense/vars/0", lambda _: h5py.SoftLink("/layers")),
    linked("layers/dense", lambda _: h5py.SoftLink("/")),
    linked("w", lambda _: h5py.SoftLink("/nowhere")),
    external_storage,
    external_storage_beside,
    virtual,
    virtual_of_itself,
]


@pytest.mark.parametrize("suffix", [".h5", ".weights.h5", ".keras-like"])
@pytest.mark.parametrize("write", EXTERNAL, ids=range(len(EXTERNAL)))
def test_CVE_2026_1669_nothing_outside_the_file_is_read_at_any_step_of_a_path(
    tmp_path: Path, outside: Path, write: Callable[[h5py.File, Path], None], suffix: str
) -> None:
    path = written(tmp_path / f"w{suffix}", lambda file: write(file, outside))
    error = refused(path, "004", "link to another place|lies in another file")
    assert SECRET.decode() not in str(error)


def test_links_in_the_lists_of_an_older_layout_are_refused(tmp_path: Path, outside: Path) -> None:
    def write(file: h5py.File) -> None:
        file.attrs["layer_names"] = [b"dense"]
        file.create_group("dense").attrs["weight_names"] = [b"kernel:0"]
        file["dense/kernel:0"] = h5py.ExternalLink(str(outside / "secret.h5"), "/w")

    refused(written(tmp_path / "w.h5", write), "004", "link to another place")


def legacy(layers: list[str], weights: list[str]) -> Write:
    def write(file: h5py.File) -> None:
        file.attrs["layer_names"] = [name.encode() for name in layers]
        group = file.create_group("dense")
        group.attrs["weight_names"] = [name.encode() for name in weights]
        group["kernel:0"] = np.ones(3, np.float32)

    return write


@pytest.mark.parametrize(
    ("layers", "weights", "says"),
    [
        (["dense", "../../etc"], ["kernel:0"], "lists the layer '../../etc', which is not there"),
        (["dense"], ["kernel:0", "../dense/kernel:0"], "which is not there"),
        (["dense"], ["kernel:0", "kernel:0"], "twice"),
        (["dense", "dense"], ["kernel:0"], "twice"),
        (["dense"], ["/etc/passwd"], "which is not there"),
    ],
)
def test_lists_that_name_what_is_not_there(tmp_path: Path, layers: list[str], weights: list[str], says: str) -> None:
    refused(written(tmp_path / "w.h5", legacy(layers, weights)), "002", says)


def never_written(shape: tuple[int, ...], **options: Any) -> Write:
    return lambda file: file.create_dataset("layers/dense/vars/0", shape, "f4", **options)


@pytest.mark.parametrize(
    "write",
    [
        never_written((10**10,)),
        never_written((10**10,), chunks=(1000,)),
        never_written((2**40, 2**20), chunks=(64, 64), fillvalue=1.0),
        never_written((10**10,), chunks=(2**28,), compression="gzip"),
        never_written((4,), chunks=(2**29,), maxshape=(None,), compression="lzf"),
    ],
    ids=range(5),
)
def test_CVE_2026_0897_shapes_without_data_are_refused_before_anything_is_made_of_them(
    tmp_path: Path, write: Write
) -> None:
    refused(written(tmp_path / "w.h5", write), "003", "claims")


def chunk(raw: bytes, shape: tuple[int, ...] = (1000,), mask: int = 0, **options: Any) -> Write:
    def write(file: h5py.File) -> None:
        options.setdefault("compression", "gzip")
        found = file.create_dataset("w", shape, "f4", chunks=shape, **options)
        found.id.write_direct_chunk((0,) * len(shape), raw, filter_mask=mask)

    return write


def summed(raw: bytes) -> bytes:
    """Add the checksum that HDF5 finds for zeros."""
    return raw + bytes(4)


@pytest.mark.parametrize(
    ("write", "code", "says"),
    [
        (chunk(zlib.compress(bytes(2**26))), "003", "unpacks to more than its 4000 bytes"),
        (chunk(bytes(2**22)), "002", "larger packed than unpacked"),
        (chunk(b"not deflated at all"), "002", "cannot be unpacked"),
        (chunk(zlib.compress(bytes(400))), "002", "unpacks to 400 of its 4000"),
        (chunk(zlib.compress(bytes(4000))[:-9]), "002", "of its 4000|library"),
        (chunk(bytes(400), mask=1), "002", "400 of its 4000"),
        (chunk(bytes(400), compression=None, shuffle=True), "003", "400 are stored"),
        (chunk(summed(bytes(400)), compression=None, fletcher32=True), "003", "404 are stored"),
        (chunk(summed(bytes(3998)), compression=None, fletcher32=True), "002", "3998 of its 4000"),
        (chunk(bytes(4000) + b"\1\2\3\4", compression=None, fletcher32=True), "002", ": w: .*filter"),
        (chunk(b"\xff" * 50, compression="lzf"), "003", "unpacks to more"),
        (chunk(b"\x03abcd\x20\x00", compression="lzf"), "002", "unpacks to 7 of its 4000"),
    ],
    ids=range(12),
)
def test_chunks_that_unpack_to_something_else(tmp_path: Path, write: Write, code: str, says: str) -> None:
    refused(written(tmp_path / "w.h5", write), code, says)


@pytest.mark.parametrize("packed", ["gzip", "lzf", None])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("fletcher32", [False, True])
@pytest.mark.parametrize("random", [False, True])
def test_sound_chunks_of_every_packing_are_read(
    tmp_path: Path, packed: str | None, shuffle: bool, fletcher32: bool, random: bool
) -> None:
    values = np.arange(7 * 300, dtype="<f4").reshape(7, 300) // 50
    if random:  # which lzf cannot make smaller: such chunks are stored as they are
        values = np.random.default_rng(0).standard_normal(values.shape).astype("<f4")
    options = {"compression": packed, "shuffle": shuffle, "fletcher32": fletcher32, "chunks": (3, 70)}
    path = written(tmp_path / "w.h5", lambda file: file.create_dataset("w", data=values, **options))
    (tensor,) = read_any(path).tensors
    assert tensor.array().tobytes() == values.tobytes()


def test_an_unknown_filter_is_named(tmp_path: Path) -> None:
    def write(file: h5py.File) -> None:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((4,))
        plan.set_filter(305, h5py.h5z.FLAG_OPTIONAL, ())
        h5py.h5d.create(file.id, b"w", h5py.h5t.NATIVE_FLOAT, h5py.h5s.create_simple((4,)), plan)
        file["w"].id.write_direct_chunk((0,), bytes(16))

    refused(written(tmp_path / "w.h5", write), "030", "number 305")


def test_groups_inside_themselves_end(tmp_path: Path) -> None:
    def write(file: h5py.File) -> None:
        keras_weights(file)
        file["layers/dense/again"] = file["layers"]

    refused(written(tmp_path / "w.h5", write), "002", "twice")


def test_groups_that_double_at_each_level_end(tmp_path: Path) -> None:
    def write(file: h5py.File) -> None:
        group = file.create_group("end")
        for level in range(60):  # 2**60 paths lead to the end
            above = file.create_group(f"level{level}")
            above["l"] = above["r"] = group
            group = above

    refused(written(tmp_path / "w.h5", write), "002", "twice")


def test_budgets(tmp_path: Path) -> None:
    deep = written(tmp_path / "deep.h5", lambda file: file.create_group("/".join("a" * 200)))
    refused(deep, "003", "more than 100 deep")
    many = written(tmp_path / "many.h5", lambda file: [file.create_group(f"g{n}") for n in range(50)])
    refused(many, "003", "more than 40 groups", Budget(tensors=40))

    def attributes(file: h5py.File) -> None:
        for number in range(50):
            file.attrs[f"a{number}"] = number

    refused(written(tmp_path / "attributes.h5", attributes), "003", "more than 40 groups", Budget(tensors=40))

    def long(file: h5py.File) -> None:
        keras_weights(file)
        file["layers"].attrs.create("text", "x" * 60_000, dtype="S60000")

    refused(written(tmp_path / "text.h5", long), "003", "more than 50000 bytes", Budget(header_bytes=50_000))


def test_data_that_would_end_after_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "w.h5", lambda file: file.create_dataset("b", data=np.ones(999)))
    data = bytearray(path.read_bytes())
    with h5py.File(path) as file:
        place = file["b"].id.get_offset()
    at = data.index(place.to_bytes(8, "little") + (999 * 8).to_bytes(8, "little"))
    data[at : at + 8] = (len(data) - 100).to_bytes(8, "little")
    path.write_bytes(data)
    refused(path, "002", "end after the file|invalid dataset size")


def shared_text(path: Path, count: int, length: int) -> Path:
    """Write a list of texts of which each is a reference to the same one."""
    written(
        path,
        lambda file: file.create_dataset("w", data=["x" * length] + ["y"] * (count - 1), dtype=h5py.string_dtype()),
    )
    with h5py.File(path) as file:
        start, size = file["w"].id.get_offset(), 16
    data = bytearray(path.read_bytes())
    data[start : start + count * size] = data[start : start + size] * count
    path.write_bytes(data)
    return path


def test_texts_that_are_repeated_by_reference_are_bounded(tmp_path: Path) -> None:
    refused(shared_text(tmp_path / "w.h5", 100_000, 1_000_000), "003", "repeats texts to 100000000000 bytes")


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("place", ["attribute", "dataset"])
@pytest.mark.parametrize(
    ("offset", "new", "says"),
    [
        (0, b"\xff\xff\xff\x7f", "a text of 2147483647 bytes is referred to"),
        (4, b"\1\0\0\0\0\0\0\0", "no collection of texts at byte 1"),
        (4, b"\xff\xff\xff\xff\xff\xff\xff\x7f", "no collection of texts"),
    ],
)
def test_references_to_texts_that_are_not_there(
    tmp_path: Path, place: str, libver: str, offset: int, new: bytes, says: str
) -> None:
    def write(file: h5py.File) -> None:
        file.create_group("layers").attrs["name"] = "a text of 23 characters"
        file["w"] = "a text of 25 characters!!"

    path = written(tmp_path / "w.h5", write, libver=libver)
    data = bytearray(path.read_bytes())
    collection = data.index(b"GCOL").to_bytes(8, "little")
    at = data.index((23 if place == "attribute" else 25).to_bytes(4, "little") + collection)
    data[at + offset : at + offset + len(new)] = new
    if libver == "latest" and place == "attribute":  # its header has a checksum, which h5py compares first
        says = f"{says}|checksum"
    path.write_bytes(data)
    refused(path, "002", says)


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_texts_of_variable_length_are_read(tmp_path: Path, libver: str) -> None:
    def write(file: h5py.File) -> None:
        for number in range(7):
            file.attrs[f"a{number}"] = "x" * number * 5000
        file.attrs["list"] = ["one", "", "three"]
        file.create_dataset("w", data=[["a", "bc"], ["", "d" * 9000]], dtype=h5py.string_dtype())
        file["chunked"] = np.zeros(1)

    contents = read_any(written(tmp_path / "w.h5", write, libver=libver, userblock_size=512))
    assert contents.metadata["list"] == ("one", "", "three")
    assert [contents.metadata[f"a{number}"] for number in range(7)] == ["x" * number * 5000 for number in range(7)]
    tensor = next(tensor for tensor in contents.tensors if tensor.name == "w")
    assert tensor.nbytes == 9003
    assert tensor.array().tolist() == [[b"a", b"bc"], [b"", b"d" * 9000]]


def test_a_collection_of_texts_that_leads_in_circles_ends(tmp_path: Path) -> None:
    path = written(tmp_path / "w.h5", lambda file: file.attrs.update(name="one"))
    data = bytearray(path.read_bytes())
    at = data.index(b"GCOL") + 16
    data[at + 24 + 8 : at + 24 + 16] = bytes(8)  # the free rest, of no bytes
    path.write_bytes(data)
    refused(path, "002", "/: the collection of texts at byte 2048 holds one of 0 bytes")


def test_types_that_are_no_numbers_are_listed_and_not_read(tmp_path: Path) -> None:
    def write(file: h5py.File) -> None:
        file["w"] = np.zeros(3, [("a", "f4"), ("b", "i8")])
        file["r"] = np.array([file["w"].ref], h5py.ref_dtype)

    path = written(tmp_path / "w.h5", write)
    assert {tensor.name for tensor in read_any(path).tensors} == {"w", "r"}
    refused(path, "031", "type that is not read here")


@pytest.mark.parametrize(
    "text", ["[" * 60_000, '{"a": 1, "a": 2}', "nonsense", "[]", '{"a":' * 5000 + "1" + "}" * 5000]
)
def test_configurations_that_are_none(tmp_path: Path, text: str) -> None:
    def write(file: h5py.File) -> None:
        legacy(["dense"], ["kernel:0"])(file)
        file.attrs["model_config"] = np.bytes_(text)

    path = written(tmp_path / "w.h5", write)
    refused(path, "003" if len(text) > 10_000 else "002", "model_config")


def test_GHSA_configurations_are_data_and_nothing_they_name_is_imported(tmp_path: Path) -> None:
    config = {
        "class_name": "Sequential",
        "module": "antigravity",
        "config": {"layers": [{"class_name": "Lambda", "config": {"function": "os.system"}}]},
    }

    def write(file: h5py.File) -> None:
        legacy(["dense"], ["kernel:0"])(file)
        file.attrs["model_config"] = json.dumps(config)

    import sys

    assert read_any(written(tmp_path / "w.h5", write)).config == config
    assert "antigravity" not in sys.modules
