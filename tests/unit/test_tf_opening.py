"""Which checkpoint of TensorFlow a path means: every file of one, its prefix and its folder mean the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anyrig.errors import AnyrigError
from anyrig.formats.contents import Contents
from anyrig.formats.sniff import read_any
from tests.unit.tensorflow_files import entry, write_bundle


def saved(folder: Path, name: str, value: float = 1.0) -> Path:
    folder.mkdir(exist_ok=True)
    data = np.array([value, 2], "<f4").tobytes()
    return write_bundle(folder / name, {b"w": entry(1, [2], 0, data)}, data)


def first(contents: Contents) -> float:
    return float(contents.tensors[0].array()[0])


def point(folder: Path, target: str) -> None:
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{target}"\nall_model_checkpoint_paths: "other"\n')


@pytest.mark.parametrize("name", ["model.ckpt-7", ""])
def test_every_file_of_a_checkpoint_opens_the_same(tmp_path: Path, name: str) -> None:
    prefix = saved(tmp_path / "run", name) if name else saved(tmp_path / "run", "x")
    if not name:  # a Saver that was given a folder as its prefix
        for file in sorted(prefix.parent.iterdir()):
            file.rename(file.with_name(file.name.removeprefix("x")))
    folder = tmp_path / "run"
    point(folder, name)
    (folder / f"{name}.meta").write_bytes(b"a graph")
    given = [folder, folder / "checkpoint", *(folder / f"{name}{end}" for end in (".index", ".meta"))]
    given += [folder / f"{name}.data-00000-of-00001", folder / name]
    assert [read_any(path) for path in given] == [read_any(folder)] * len(given)
    assert read_any(folder).path == folder / name
    assert read_any(folder).notes == ()


def test_the_checkpoint_file_names_the_newest(tmp_path: Path) -> None:
    saved(tmp_path / "run", "ckpt-1", 1.0)
    saved(tmp_path / "run", "ckpt-2", 2.0)
    point(tmp_path / "run", "ckpt-1")
    assert first(read_any(tmp_path / "run")) == 1.0


@pytest.mark.parametrize("target", ["/home/author/run/ckpt-1", "C:\\\\runs\\\\ckpt-1", "../../elsewhere/ckpt-1"])
def test_a_checkpoint_file_that_names_another_disk_opens_what_is_beside_it(tmp_path: Path, target: str) -> None:
    saved(tmp_path / "run", "ckpt-1", 1.0)
    saved(tmp_path / "run", "ckpt-9", 9.0)
    point(tmp_path / "run", target)
    found = read_any(tmp_path / "run")
    assert first(found) == 1.0
    assert "which is elsewhere; ckpt-1.index beside it was opened" in found.notes[0]


def test_a_checkpoint_file_never_leads_out_of_its_folder(tmp_path: Path) -> None:
    saved(tmp_path / "outside", "ckpt-1")
    (tmp_path / "run").mkdir()
    for target in ("../outside/ckpt-1", str(tmp_path / "outside" / "ckpt-1"), "link/ckpt-1"):
        (tmp_path / "run" / "link").unlink(missing_ok=True)
        (tmp_path / "run" / "link").symlink_to(tmp_path / "outside")
        point(tmp_path / "run", target)
        with pytest.raises(AnyrigError, match="does not hold it") as caught:
            read_any(tmp_path / "run")
        assert caught.value.code == "ANY-FORMAT-013"


def test_a_checkpoint_file_may_name_what_lies_below(tmp_path: Path) -> None:
    saved(tmp_path / "run", "ckpt-1", 1.0)
    saved(tmp_path / "run" / "deep", "ckpt-1", 5.0)
    point(tmp_path / "run", "deep/ckpt-1")
    assert first(read_any(tmp_path / "run")) == 5.0


def test_without_a_checkpoint_file_the_highest_number_is_opened_and_the_others_named(tmp_path: Path) -> None:
    for step in (100, 20, 3):
        saved(tmp_path / "run", f"ckpt-{step}", step)
    found = read_any(tmp_path / "run")
    assert first(found) == 100.0
    assert found.notes[0].endswith("The others: ckpt-3, ckpt-20.")


def test_a_missing_checkpoint_names_those_that_are_there(tmp_path: Path) -> None:
    saved(tmp_path / "run", "ckpt-1")
    point(tmp_path / "run", "ckpt-2")
    with pytest.raises(AnyrigError) as caught:
        read_any(tmp_path / "run")
    assert str(tmp_path / "run" / "ckpt-1") in str(caught.value.hint)


def test_a_prefix_beside_a_folder_of_its_name(tmp_path: Path) -> None:
    saved(tmp_path, "ckpt", 4.0)
    (tmp_path / "ckpt").mkdir()
    assert first(read_any(tmp_path / "ckpt")) == 4.0


def test_escapes_of_the_text_format_are_read(tmp_path: Path) -> None:
    saved(tmp_path / "run", 'a "b" ü', 3.0)
    point(tmp_path / "run", '/x/a \\"b\\" \\303\\xbc')
    assert first(read_any(tmp_path / "run")) == 3.0


@pytest.mark.parametrize("end", [".index", ".data-00000-of-00001"])
def test_links_are_refused(tmp_path: Path, end: str) -> None:
    prefix = saved(tmp_path / "run", "ckpt")
    file = prefix.with_name(prefix.name + end)
    file.rename(tmp_path / "secret")
    file.symlink_to(tmp_path / "secret")
    with pytest.raises(AnyrigError, match="link") as caught:
        read_any(tmp_path / "run")
    assert caught.value.code == "ANY-FORMAT-004"


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    prefix = saved(tmp_path / "run", "ckpt")
    data = prefix.with_name("ckpt.data-00000-of-00001")
    data.unlink()
    with pytest.raises(AnyrigError, match=str(data)) as caught:
        read_any(prefix)
    assert caught.value.code == "ANY-FORMAT-012"
