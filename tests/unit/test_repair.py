"""repair: what killed saves, removals and writers leave behind, and that no committed step is ever lost by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from anyrig.diagnose.repair import repair
from anyrig.errors import AnyrigError, CheckFailed, UsageError
from anyrig.locations import prepare_run_directory
from anyrig.store.commit import committed_steps, newest_sound, sweep_partials
from anyrig.store.local import LocalFiles
from anyrig.store.lock import RunLock
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint

RECORD: dict[str, dict[str, object]] = {
    "numeric": {"onednn": True, "intra_op_threads": 2},
    "environment": {"keras": "3.15.1", "cpu": "one"},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = prepare_run_directory(tmp_path / "run")
    for step in (10, 20):
        _save(run, step)
    (run / "environment.json").write_text("{}")
    return run


def _save(run: Path, step: int, value: float = 0.0) -> Path:
    tensors = [StoredTensor(name="model/kernel", array=np.full(16, step + value, np.float32))]
    return write_checkpoint(run / "checkpoints", step, tensors, progress={}, record=RECORD, assets={"a/b": b"c"}).path


def _leave(path: Path, kind: str, mark: str = "0123abcd") -> Path:
    return path.rename(path.with_name(f".{path.name}.{kind}-{mark}"))


def _damage(folder: Path) -> None:
    file = next(folder.glob("model-*"))
    file.chmod(0o600)
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")


def _value(run: Path, step: int) -> float:
    newest, _ = newest_sound(run / "checkpoints")
    assert newest is not None
    assert newest.step == step
    return float(newest.tensor("model/kernel")[0])


def _files(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_a_sound_run_is_left_as_it_is(run: Path) -> None:
    (run / "checkpoints" / "step-000000010.pin").write_text("best")
    before = _files(run)
    report = repair(run)
    assert (report.done, report.sound, report.damaged, report.newest) == ((), (10, 20), {}, 20)
    assert _files(run) == before


def test_a_save_that_lacks_only_its_name_gets_it(run: Path) -> None:
    partial = _leave(_save(run, 30), "partial")
    report = repair(run)
    assert report.done == (f"gave {partial.name} the name step-000000030: it is complete and sound, but for its name",)
    assert report.newest == 30
    assert _value(run, 30) == 30


@pytest.mark.parametrize("fault", ["damage", "no manifest", "empty", "another step"])
def test_a_save_that_was_not_finished_is_swept_away(run: Path, fault: str) -> None:
    partial = _leave(_save(run, 30), "partial")
    if fault == "damage":
        _damage(partial)
    elif fault == "no manifest":
        (partial / "manifest.json").unlink()
    elif fault == "empty":
        partial = partial.rename(partial.with_name(".step-000000040.partial-0123abcd"))
        subprocess.run(["rm", "-rf", partial], check=True)
        partial.mkdir()
    else:
        partial = partial.rename(partial.with_name(".step-000000040.partial-0123abcd"))
    report = repair(run)
    assert len(report.done) == 1
    assert report.done[0].startswith(f"removed {partial.name}: a save of step")
    assert committed_steps(run / "checkpoints") == [10, 20]
    assert not partial.exists()


def test_what_was_being_replaced_comes_back(run: Path) -> None:
    _leave(run / "checkpoints" / "step-000000020", "replaced")
    report = repair(run)
    assert "gave .step-000000020.replaced-0123abcd the name step-000000020" in report.done[0]
    assert _value(run, 20) == 20


def test_of_two_sound_ones_the_newer_save_gets_the_name(run: Path) -> None:
    former = _leave(run / "checkpoints" / "step-000000020", "replaced")
    _leave(_save(run, 20, value=0.5), "partial")
    report = repair(run)
    assert [line.split()[0] for line in report.done] == ["gave", "removed"]
    assert f"removed {former.name}: step 20 has replaced it" in report.done
    assert _value(run, 20) == 20.5


def test_a_replaced_one_stays_gone_where_its_replacement_is_sound(run: Path) -> None:
    _leave(run / "checkpoints" / "step-000000020", "replaced")
    _save(run, 20, value=0.5)
    assert len(repair(run).done) == 1
    assert _value(run, 20) == 20.5


@pytest.mark.parametrize("kind", ["partial", "replaced"])
def test_a_sound_folder_takes_the_name_of_a_damaged_one(run: Path, kind: str) -> None:
    _leave(run / "checkpoints" / "step-000000020", kind)
    _damage(_save(run, 20, value=0.5))
    report = repair(run)
    assert [line.split()[0] for line in report.done] == ["set", "gave"]
    assert "its bytes" in report.done[0]
    assert _value(run, 20) == 20
    (aside,) = (run / "checkpoints").glob(".step-000000020.damaged-*")
    assert np.frombuffer(next(aside.glob("model-*")).read_bytes()[-64:-4], np.float32)[0] == 20.5


def test_damaged_checkpoints_are_listed_and_left(run: Path) -> None:
    _damage(run / "checkpoints" / "step-000000020")
    before = _files(run)
    report = repair(run)
    assert (report.sound, report.newest) == ((10,), 10)
    assert list(report.damaged) == ["step-000000020"]
    report.require_resumable()
    assert _files(run) == before


def test_a_run_without_a_sound_checkpoint_cannot_be_carried_on(run: Path) -> None:
    for step in (10, 20):
        _damage(run / "checkpoints" / f"step-{step:09d}")
    report = repair(run)
    with pytest.raises(CheckFailed, match="none of its checkpoints is sound") as caught:
        report.require_resumable()
    assert caught.value.code == "ANY-REPAIR-001"
    assert committed_steps(run / "checkpoints") == [10, 20]


def test_a_damaged_replaced_one_is_kept_for_a_person(run: Path) -> None:
    _damage(_leave(run / "checkpoints" / "step-000000020", "replaced"))
    assert "set .step-000000020.replaced-0123abcd aside" in repair(run).done[0]
    (aside,) = repair(run).aside
    assert aside.startswith(".step-000000020.damaged-")


def test_an_interrupted_removal_is_finished(run: Path) -> None:
    _leave(run / "checkpoints" / "step-000000010", "removed")
    assert "its removal had begun" in repair(run).done[0]
    assert sorted(os.listdir(run / "checkpoints")) == ["step-000000020"]


@pytest.mark.parametrize("left", [None, b"", b'{"numeric": {"one', b"\0\0\0", b"[1]"])
def test_the_environment_is_written_anew_from_the_newest_checkpoint(run: Path, left: bytes | None) -> None:
    (run / "environment.json").unlink()
    if left is not None:
        (run / "environment.json").write_bytes(left)
    assert repair(run).done == ("made environment.json anew, from what step 20 records",)
    expected = {"numeric": RECORD["numeric"], **RECORD["environment"]}
    assert json.loads((run / "environment.json").read_text()) == expected


def test_a_torn_end_of_the_event_log_is_cut_off(run: Path) -> None:
    whole = b'{"kind": "start"}\n{"kind": "epoch"}\n'
    for torn in (b'{"kind": "sa', b"\0\0\0\0"):
        (run / "events.jsonl").write_bytes(whole + torn)
        assert repair(run).done == (f"cut {len(torn)} bytes of an unfinished line off the end of events.jsonl",)
        assert (run / "events.jsonl").read_bytes() == whole
        assert repair(run).done == ()


def test_what_a_killed_process_left_of_lock_and_probes_is_removed(run: Path) -> None:
    for name in (".lock.0123", ".write-probe-01", "checkpoints/.write-probe-02"):
        (run / name).touch()
    assert len(repair(run).done) == 2  # the lock's are removed by whoever takes it
    assert sorted(path.name for path in run.iterdir()) == ["checkpoints", "environment.json"]


def _damage_all_over(run: Path) -> None:
    _leave(run / "checkpoints" / "step-000000010", "removed")
    _leave(run / "checkpoints" / "step-000000020", "replaced")
    _leave(_save(run, 20, value=0.5), "partial")
    _damage(_leave(_save(run, 30), "partial"))
    (run / "environment.json").write_text("")
    (run / "events.jsonl").write_text('{"a": 1}\n{"b"')


def test_a_dry_run_says_the_same_and_changes_nothing(run: Path) -> None:
    _damage_all_over(run)
    before = _files(run)
    said = repair(run, dry_run=True)
    assert _files(run) == before
    done = repair(run)
    assert (said.done, said.sound, said.newest) == (done.done, done.sound, done.newest)
    assert len(done.done) == 6


class _FailsAt(LocalFiles):
    """Raises at the n-th effect on the disk."""

    def __init__(self, count: int) -> None:
        self.left = count

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "Input/output error")

    def rename(self, old: Path, new: Path) -> None:
        self._count()
        super().rename(old, new)

    def remove_file(self, path: Path) -> None:
        self._count()
        super().remove_file(path)

    def flush_folder(self, path: Path) -> None:
        self._count()
        super().flush_folder(path)

    def flush(self, descriptor: int) -> None:
        self._count()
        super().flush(descriptor)


def test_an_interrupted_repair_is_finished_by_the_next(tmp_path: Path) -> None:
    for count in range(100):
        run = prepare_run_directory(tmp_path / str(count))
        for step in (10, 20):
            _save(run, step)
        _damage_all_over(run)
        failing = _FailsAt(count)
        with suppress(AnyrigError):
            repair(run, files=failing)
        if failing.left >= 0:
            break
        assert repair(run).newest == 20
        assert _value(run, 20) == 20.5
        assert sweep_partials(run / "checkpoints") == []
    assert count > 15


def test_what_the_disk_refuses_is_named(run: Path) -> None:
    _leave(_save(run, 30), "partial")
    with pytest.raises(AnyrigError, match=r"Input/output error.*gave \.step-000000030") as caught:
        repair(run, files=_FailsAt(0))
    assert caught.value.code == "ANY-REPAIR-003"


def test_a_run_that_is_alive_is_refused_with_its_owner(run: Path) -> None:
    partial = _leave(_save(run, 30), "partial")
    with RunLock(run):
        for dry_run in (False, True):
            with pytest.raises(AnyrigError, match=rf"is in use: process {os.getpid()} on \S+ holds it") as caught:
                repair(run, dry_run=dry_run)
            assert caught.value.code == "ANY-LOCK-001"
        assert partial.exists()
    assert not (run / ".lock").exists()


def test_a_lock_of_a_dead_process_is_no_hindrance(run: Path) -> None:
    code = f"import os; from anyrig.store.lock import RunLock; RunLock({str(run)!r}).__enter__(); os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (run / ".lock").exists()
    assert repair(run, dry_run=True).newest == 20
    assert (run / ".lock").exists()
    assert repair(run).newest == 20
    assert not (run / ".lock").exists()


def test_what_is_no_run_is_refused(run: Path) -> None:
    with pytest.raises(UsageError, match="is a checkpoint, not a run directory") as caught:
        repair(run / "checkpoints" / "step-000000010")
    assert caught.value.code == "ANY-REPAIR-002"
