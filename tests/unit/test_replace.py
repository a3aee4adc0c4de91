"""Files and folders that take their place at one moment, killed at every call of it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from anyrig.exchange.replace import put_in_place, work_folder
from anyrig.store.local import LOCAL
from anyrig.testing.faults import Faults, fail, in_child, kill, walk

CAN_EXCHANGE, CANNOT = "at one moment", "by two renames"


def write(path: Path, text: str) -> None:
    """Write a folder (a name without suffix) or a file of `text`, and put it in its place."""
    with work_folder(path) as work:
        written = work / path.name
        if path.suffix:
            written.write_text(text)
        else:
            written.mkdir()
            (written / "data").write_text(text)
        put_in_place(written, path, work)


def read(path: Path) -> str:
    return (path if path.suffix else path / "data").read_text()


@pytest.fixture(params=[CAN_EXCHANGE, CANNOT])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == CANNOT:
        monkeypatch.setattr("anyrig.store.local._renameat2", None)
    return str(request.param)


@pytest.mark.parametrize("name", ["model", "model.keras", "x" * 250, "ä" * 120])
def test_one_or_the_other_after_a_kill_at_any_call(name: str, system: str, tmp_path: Path) -> None:
    """By two renames there is a moment without either; the next save ends it, whatever becomes of its own file."""
    path, gone = tmp_path / name, 0
    write(path, "one")
    for faults in walk(kill):

        def act(faults: Faults = faults) -> None:
            with faults.on(LOCAL):
                write(path, "two")

        assert in_child(act) in (-9, 0)
        gone += not path.exists()
        with suppress(ZeroDivisionError), work_folder(path):
            raise ZeroDivisionError
        assert read(path) in ("one", "two")
        assert os.listdir(tmp_path) == [name]
    assert read(path) == "two"
    assert gone == (system == CANNOT and not path.suffix)


@pytest.mark.parametrize("name", ["model", "model.keras"])
def test_a_disk_that_refuses_at_any_call(name: str, system: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write(path, "one")
    for faults in walk(fail(28)):
        with suppress(OSError), faults.on(LOCAL):
            write(path, "two")
        assert read(path) in ("one", "two")
    with work_folder(path):
        pass
    assert os.listdir(tmp_path) == [name]


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with work_folder(path) as first:
        (first / "data").write_text("mine")
        assert in_child(lambda: write(path, "other")) == 0
        assert (first / "data").read_text() == "mine"
    assert read(path) == "other"
    assert os.listdir(tmp_path) == ["model"]


def test_what_took_the_place_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A former folder that was moved away is put back only where nothing is."""
    monkeypatch.setattr("anyrig.store.local._renameat2", None)
    path = tmp_path / "model"
    write(path, "one")

    def act() -> None:
        with Faults(kill, at=2, kinds=["rename"]).on(LOCAL):
            write(path, "two")

    assert in_child(act) == -9
    assert not path.exists()
    path.mkdir()
    (path / "data").write_text("three")
    with work_folder(path):
        pass
    assert read(path) == "three"
