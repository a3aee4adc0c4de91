"""What a power cut leaves of the work of a store: a model of a disk whose cache is lost.

`PowerCut(root)` is a fault for `Faults` that makes each call and remembers it. Afterwards `leave` makes the folder as a
disk would have it that lost power after so many of the calls: files keep what was flushed; folders keep the names they
had at their last flush or, on a disk that writes names early, all names, with what was flushed of the files behind
them. It knows the methods of `anyrig.store.local.LocalFiles`, and needs Linux. No model shows a disk that says
"flushed" too early.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anyrig.testing.faults import Call


@dataclass
class _Node:
    """A file or a folder: `now` in the cache, `kept` on the disk."""

    now: bytes = b""
    kept: bytes = b""
    names: dict[str, _Node] = field(default_factory=dict)
    kept_names: dict[str, _Node] = field(default_factory=dict)
    is_folder: bool = False


class PowerCut:
    """Remembers the calls below `root`, whose content of now counts as flushed.

    with Faults(cut := PowerCut(root), times=None).on(LOCAL): save(root)
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._before = _on_disk(root)
        self._done: list[Callable[[_Node], None]] = []

    @property
    def calls(self) -> int:
        """How many calls had an effect."""
        return len(self._done)

    def __call__(self, call: Call) -> Any:
        """Make a call and remember what it did."""
        effect = getattr(self, f"_{call.kind}", None)
        data = bytes(call.arguments[1]) if call.kind == "write" else None
        paths = [self._path(given) for given in call.arguments if isinstance(given, Path | int)] if effect else []
        result = call.make()
        if effect is not None:
            self._done.append(effect(*paths) if data is None else effect(*paths, data))
        return result

    def leave(self, target: Path, *, after: int, names_early: bool) -> None:
        """Make the new folder `target` what is left of `root` when power is lost after the first `after` calls."""
        top = copy.deepcopy(self._before)
        for effect in self._done[:after]:
            effect(top)
        _put(top, target, names_early)

    def _path(self, given: Path | int) -> tuple[str, ...]:
        path = Path(os.readlink(f"/proc/self/fd/{given}")) if isinstance(given, int) else given
        return path.resolve().relative_to(self._root).parts

    def _make_folder(self, path: tuple[str, ...]) -> Callable[[_Node], None]:
        return lambda top: _add(top, path, is_folder=True)

    def _create(self, path: tuple[str, ...]) -> Callable[[_Node], None]:
        return lambda top: _add(top, path, is_folder=False)

    def _write(self, path: tuple[str, ...], data: bytes) -> Callable[[_Node], None]:
        def write(top: _Node) -> None:
            _at(top, path).now += data

        return write

    def _flush(self, path: tuple[str, ...]) -> Callable[[_Node], None]:
        def flush(top: _Node) -> None:
            node = _at(top, path)
            node.kept, node.kept_names = node.now, dict(node.names)

        return flush

    _flush_folder = _flush

    def _rename(self, old: tuple[str, ...], new: tuple[str, ...]) -> Callable[[_Node], None]:
        def rename(top: _Node) -> None:
            _at(top, new[:-1]).names[new[-1]] = _at(top, old[:-1]).names.pop(old[-1])

        return rename

    def _remove_file(self, path: tuple[str, ...]) -> Callable[[_Node], None]:
        return lambda top: _at(top, path[:-1]).names.__delitem__(path[-1])

    _remove_folder = _remove_file


def _on_disk(path: Path) -> _Node:
    if path.is_file():
        return _Node(path.read_bytes(), path.read_bytes())
    names = {name: _on_disk(path / name) for name in os.listdir(path)}
    return _Node(names=names, kept_names=dict(names), is_folder=True)


def _at(top: _Node, path: tuple[str, ...]) -> _Node:
    for part in path:
        top = top.names[part]
    return top


def _add(top: _Node, path: tuple[str, ...], *, is_folder: bool) -> None:
    _at(top, path[:-1]).names[path[-1]] = _Node(is_folder=is_folder)


def _put(node: _Node, path: Path, names_early: bool) -> None:
    if not node.is_folder:
        path.write_bytes(node.kept)
        return
    path.mkdir()
    for name, child in (node.names if names_early else node.kept_names).items():
        _put(child, path / name, names_early)
