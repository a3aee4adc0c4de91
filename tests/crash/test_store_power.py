"""Power loss at every call: what was not flushed is gone, and still the previous or the new checkpoint is there, whole.

A model of a file system with a cache stands in for the disk: files keep what was flushed, folders keep the names they
had at their last flush, or, on a disk that writes names early, all names with empty files behind them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from anyrig.store.commit import committed_steps, newest_sound
from anyrig.store.local import LocalFiles
from anyrig.store.read import open_checkpoint, verify_checkpoint
from anyrig.store.retain import remove_steps
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint

Call = Callable[["Disk"], None]


@dataclass
class Node:
    """A file or a folder: `now` in the cache, `kept` on the disk."""

    now: bytes = b""
    kept: bytes = b""
    names: dict[str, Node] = field(default_factory=dict)
    kept_names: dict[str, Node] = field(default_factory=dict)
    is_folder: bool = False


class Disk:
    """The model: a tree of nodes below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = self._read(root)

    def _read(self, path: Path) -> Node:
        if path.is_file():
            return Node(path.read_bytes(), path.read_bytes())
        names = {name: self._read(path / name) for name in os.listdir(path)}
        return Node(names=names, kept_names=dict(names), is_folder=True)

    def at(self, path: Path) -> Node:
        node = self.top
        for part in path.relative_to(self.root).parts:
            node = node.names[part]
        return node

    def add(self, path: Path, *, is_folder: bool) -> None:
        self.at(path.parent).names[path.name] = Node(is_folder=is_folder)

    def write(self, path: Path, data: bytes) -> None:
        self.at(path).now += data

    def flush(self, path: Path) -> None:
        node = self.at(path)
        node.kept, node.kept_names = node.now, dict(node.names)

    def rename(self, old: Path, new: Path) -> None:
        self.at(new.parent).names[new.name] = self.at(old.parent).names.pop(old.name)

    def remove(self, path: Path) -> None:
        del self.at(path.parent).names[path.name]

    def after_power_loss(self, target: Path, *, names_early: bool) -> None:
        self._put(self.top, target, names_early)

    def _put(self, node: Node, path: Path, names_early: bool) -> None:
        if not node.is_folder:
            path.write_bytes(node.kept)
            return
        path.mkdir()
        for name, child in (node.names if names_early else node.kept_names).items():
            self._put(child, path / name, names_early)


class Recording(LocalFiles):
    """Writes for real, and keeps each call for the model."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._paths: dict[int, Path] = {}

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self.calls.append(lambda disk: disk.add(path, is_folder=True))

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self._paths[descriptor] = path
        self.calls.append(lambda disk: disk.add(path, is_folder=False))
        return descriptor

    def write(self, descriptor: int, data: memoryview) -> None:
        super().write(descriptor, data)
        path, content = self._paths[descriptor], bytes(data)
        self.calls.append(lambda disk: disk.write(path, content))

    def flush(self, descriptor: int) -> None:
        super().flush(descriptor)
        path = self._paths[descriptor]
        self.calls.append(lambda disk: disk.flush(path))

    def flush_folder(self, path: Path) -> None:
        super().flush_folder(path)
        self.calls.append(lambda disk: disk.flush(path))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.calls.append(lambda disk: disk.rename(old, new))

    def remove_file(self, path: Path) -> None:
        super().remove_file(path)
        self.calls.append(lambda disk: disk.remove(path))

    def remove_folder(self, path: Path) -> None:
        super().remove_folder(path)
        self.calls.append(lambda disk: disk.remove(path))


def save(root: Path, step: int, files: LocalFiles) -> None:
    tensors = [
        StoredTensor(name="model/kernel", array=np.full((4, 8), step, np.float32)),
        StoredTensor(name="optimizer/iterations", array=np.array(step)),
    ]
    write_checkpoint(root, step, tensors, progress={"epoch": step}, assets={"a/b/v.txt": b"x"}, files=files)


def states(tmp_path: Path, act: Callable[[Path, LocalFiles], object], *, names_early: bool) -> list[list[int]]:
    """Return the committed steps after power loss at each call of `act`; each of them is whole."""
    root, files = tmp_path / "c", Recording()
    before = Disk(root)
    act(root, files)
    found = []
    for count in range(len(files.calls) + 1):
        target = tmp_path / f"after-{count}"
        before.after_power_loss(target, names_early=names_early)
        steps = committed_steps(target)
        for step in steps:
            assert verify_checkpoint(open_checkpoint(target / f"step-{step:09d}")) == [], count
        newest, _ = newest_sound(target)
        assert (newest.step if newest else None) == (steps[-1] if steps else None), count
        found.append(steps)
        if count < len(files.calls):
            files.calls[count](before)
    return found


@pytest.mark.parametrize("names_early", [False, True])
def test_power_loss_at_every_call_of_a_save(tmp_path: Path, names_early: bool) -> None:
    save(tmp_path / "c", 1, LocalFiles())
    found = states(tmp_path, lambda root, files: save(root, 2, files), names_early=names_early)
    assert found[0] == [1]
    assert found[-1] == [1, 2], "a save that returned is on the disk"
    assert all(steps in ([1], [1, 2]) for steps in found)


@pytest.mark.parametrize("names_early", [False, True])
def test_power_loss_at_every_call_of_a_removal(tmp_path: Path, names_early: bool) -> None:
    for step in (1, 2):
        save(tmp_path / "c", step, LocalFiles())
    found = states(tmp_path, lambda root, files: remove_steps(root, [1], files=files), names_early=names_early)
    assert found[0] == [1, 2]
    assert found[-1] == [2]
    assert all(steps in ([1, 2], [2]) for steps in found)


@pytest.mark.parametrize("names_early", [False, True])
def test_power_loss_at_every_call_of_the_first_save(tmp_path: Path, names_early: bool) -> None:
    (tmp_path / "c").mkdir()
    found = states(tmp_path, lambda root, files: save(root, 1, files), names_early=names_early)
    assert (found[0], found[-1]) == ([], [1])
