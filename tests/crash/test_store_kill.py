"""kill -9 at every call to the file system, and a full disk: the previous or the new checkpoint is there, whole."""

from __future__ import annotations

import os
import resource
import signal
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from anyrig.errors import AnyrigError
from anyrig.store.commit import committed_steps, newest_sound, sweep_partials
from anyrig.store.local import LocalFiles
from anyrig.store.read import open_checkpoint, verify_checkpoint
from anyrig.store.retain import remove_steps
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint


class Dying(LocalFiles):
    """Kills its own process at the `at`-th call: before the call, or in the middle of a write."""

    def __init__(self, at: int, *, middle: bool) -> None:
        self.left, self.middle = at, middle

    def _count(self) -> bool:
        self.left -= 1
        if self.left == 0 and not self.middle:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.left == 0

    def make_folder(self, path: Path) -> None:
        self._count()
        super().make_folder(path)

    def create(self, path: Path) -> int:
        self._count()
        return super().create(path)

    def write(self, descriptor: int, data: memoryview) -> None:
        if self._count():
            super().write(descriptor, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        super().write(descriptor, data)

    def protect(self, path: Path) -> None:
        self._count()
        super().protect(path)

    def flush(self, descriptor: int) -> None:
        self._count()
        super().flush(descriptor)

    def flush_folder(self, path: Path) -> None:
        self._count()
        super().flush_folder(path)

    def rename(self, old: Path, new: Path) -> None:
        self._count()
        super().rename(old, new)

    def remove_file(self, path: Path) -> None:
        self._count()
        super().remove_file(path)

    def remove_folder(self, path: Path) -> None:
        self._count()
        super().remove_folder(path)


def in_child(act: Callable[[], object]) -> int:
    """Run `act` in a forked process; return its exit code, or minus the signal that ended it. 1: an AnyrigError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads that the child never uses
        child = os.fork()
    if child == 0:
        code = 2
        try:
            act()
            code = 0
        except AnyrigError:
            code = 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def save(root: Path, step: int, files: LocalFiles | None = None) -> None:
    tensors = [
        StoredTensor(name="model/kernel", array=np.full((4, 8), step, np.float32)),
        StoredTensor(name="optimizer/iterations", array=np.array(step)),
    ]
    write_checkpoint(
        root, step, tensors, progress={"epoch": step}, assets={"a/v.txt": b"x"}, files=files or LocalFiles()
    )


def whole(root: Path, step: int) -> bool:
    """Whether the step verifies and holds its own values."""
    checkpoint = open_checkpoint(root / f"step-{step:09d}")
    return verify_checkpoint(checkpoint) == [] and bool((checkpoint.tensor("model/kernel") == step).all())


def newest(root: Path) -> int | None:
    """The step that a resume would take."""
    found, _ = newest_sound(root)
    return found.step if found else None


def calls_of_a_save(root: Path) -> int:
    """How many calls to the file system a save makes."""
    files = Dying(10**9, middle=False)
    save(root, 2, files)
    return 10**9 - files.left


@pytest.mark.parametrize("middle", [False, True])
def test_U05_kill_at_every_call_of_a_save(tmp_path: Path, middle: bool) -> None:
    (tmp_path / "counted").mkdir()
    count = calls_of_a_save(tmp_path / "counted")
    assert count > 25
    seen: set[tuple[int, ...]] = set()
    for at in range(1, count + 1):
        root = tmp_path / str(at)
        save(root, 1)
        code = in_child(lambda at=at, root=root: save(root, 2, Dying(at, middle=middle)))  # type: ignore[misc]
        assert code == -signal.SIGKILL or middle, at
        steps = committed_steps(root)
        seen.add(tuple(steps))
        assert steps in ([1], [1, 2]), at
        assert all(whole(root, step) for step in steps), at
        assert newest(root) == steps[-1], at
        assert len(sweep_partials(root)) <= 1
        assert sorted(os.listdir(root)) == [f"step-{step:09d}" for step in steps]
        save(root, 2)
        assert committed_steps(root) == [1, 2]
    assert seen == {(1,), (1, 2)}


def test_U05_kill_at_every_call_of_the_first_save(tmp_path: Path) -> None:
    for at in range(1, 200):
        root = tmp_path / str(at) / "run" / "checkpoints"
        code = in_child(lambda at=at, root=root: save(root, 1, Dying(at, middle=False)))  # type: ignore[misc]
        assert committed_steps(root) == ([] if newest(root) is None else [newest(root)])
        if code == 0:
            break
    assert at > 25
    assert committed_steps(root) == [1]


def replace(root: Path, value: int, files: LocalFiles | None = None) -> None:
    """Save step 1 with another state in place of the one that is there."""
    tensor = StoredTensor(name="model/kernel", array=np.full((4, 8), value, np.float32))
    write_checkpoint(root, 1, [tensor], progress={}, replace=True, files=files or LocalFiles())


def test_U05_kill_at_every_call_of_a_replacement(tmp_path: Path) -> None:
    values = []
    for at in range(1, 100):
        root = tmp_path / str(at)
        replace(root, 1)
        code = in_child(lambda at=at, root=root: replace(root, 2, Dying(at, middle=False)))  # type: ignore[misc]
        sweep_partials(root)
        assert os.listdir(root) == ["step-000000001"], at
        checkpoint = open_checkpoint(root / "step-000000001")
        assert verify_checkpoint(checkpoint) == []
        values.append(float(checkpoint.tensor("model/kernel")[0, 0]))
        if code == 0:
            break
        assert code == -signal.SIGKILL, at
    assert at > 15
    assert values == sorted(values)
    assert set(values) == {1.0, 2.0}


def test_another_state_of_a_step_is_refused_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(AnyrigError, match="already holds another state of step 1"):
        write_checkpoint(tmp_path, 1, [StoredTensor(name="model/a", array=np.zeros(3))], progress={})
    assert whole(tmp_path, 1)


def test_kill_at_every_call_of_a_removal(tmp_path: Path) -> None:
    for at in range(1, 100):
        root = tmp_path / str(at)
        for step in (1, 2):
            save(root, step)
        code = in_child(lambda at=at, root=root: remove_steps(root, [1], files=Dying(at, middle=False)))  # type: ignore[misc]
        steps = committed_steps(root)
        assert steps in ([1, 2], [2]), at
        assert all(whole(root, step) for step in steps), at
        sweep_partials(root)
        assert sorted(os.listdir(root)) == [f"step-{step:09d}" for step in steps]
        if code == 0:
            break
        assert code == -signal.SIGKILL, at
    assert at > 8
    assert steps == [2]


def test_kill_at_every_call_of_a_sweep(tmp_path: Path) -> None:
    for at in range(1, 100):
        root = tmp_path / str(at)
        save(root, 1)
        in_child(lambda root=root: save(root, 2, Dying(20, middle=False)))  # type: ignore[misc]
        assert len(os.listdir(root)) == 2
        code = in_child(lambda at=at, root=root: sweep_partials(root, files=Dying(at, middle=False)))  # type: ignore[misc]
        assert committed_steps(root) == [1]
        sweep_partials(root)
        assert os.listdir(root) == ["step-000000001"]
        if code == 0:
            break
    assert at > 3


@pytest.mark.parametrize("limit", [0, 1, 100, 300, 1000, 2500])
def test_B156_a_full_disk_is_a_named_error_and_leaves_nothing(tmp_path: Path, limit: int) -> None:
    save(tmp_path, 1)

    def starved() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        tensor = StoredTensor(name="model/large", array=np.zeros(4000, np.uint8))
        write_checkpoint(tmp_path, 2, [tensor], progress={})

    assert in_child(starved) == 1
    assert os.listdir(tmp_path) == ["step-000000001"]
    assert newest(tmp_path) == 1


def test_B156_the_message_of_a_full_disk(tmp_path: Path) -> None:
    reading, writing = os.pipe()

    def starved() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            write_checkpoint(tmp_path, 2, [StoredTensor(name="model/a", array=np.zeros(4000))], progress={})
        except AnyrigError as error:
            os.write(writing, str(error).encode())

    in_child(starved)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    assert "Step 2 was not saved" in text
    assert "File too large" in text
    assert "free some space" in text
