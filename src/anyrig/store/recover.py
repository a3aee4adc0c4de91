"""What to do with the folders that killed saves and removals left: decided per step from what verifies, then done.

For each step the sound folder that comes first bears the final name: the committed one, else a save that was complete
but for its rename, else one that was being replaced. A committed step is never deleted: what is damaged under a final
name stays, or is set aside when a sound folder needs its name. The caller holds the lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from anyrig.store.layout import leftover_name, step_name
from anyrig.store.local import LocalFiles, remove_tree
from anyrig.store.read import Checkpoint


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that bears a step; `kind` is "committed" for a final name, and `fault` says why it is not sound."""

    name: str
    step: int
    kind: str
    found: Checkpoint | None
    fault: str | None


@dataclass(frozen=True, slots=True)
class Mend:
    """One thing to do, and what it is in words."""

    words: str
    act: Callable[[LocalFiles], None]


_RANK = {"committed": 0, "partial": 1, "replaced": 2}


def bearer(folders: Sequence[Folder]) -> Folder | None:
    """Return which of one step's folders has to bear its final name; None when none is sound."""
    sound = [folder for folder in folders if folder.fault is None and folder.kind in _RANK]
    return min(sound, key=lambda folder: _RANK[folder.kind], default=None)


def mends(root: Path, folders: Sequence[Folder]) -> Iterator[Mend]:
    """Yield what has to be done about the folders of one step in `root`, in order."""
    chosen = bearer(folders)
    if chosen is not None and chosen.kind != "committed":
        for folder in folders:
            if folder.kind == "committed":
                yield _set_aside(root, folder)
        yield _give_name(root, chosen)
    for folder in folders:
        if folder is chosen or folder.kind in ("committed", "damaged"):
            continue
        if folder.kind == "replaced" and chosen is None:
            yield _set_aside(root, folder)
        else:
            yield Mend(f"removed {folder.name}: {_why(folder)}", partial(_remove, root / folder.name))


def _why(folder: Folder) -> str:
    if folder.kind == "partial":
        return (
            f"a save of step {folder.step} that was not finished"
            if folder.fault
            else "another one of its step is sound"
        )
    return "its removal had begun" if folder.kind == "removed" else f"step {folder.step} has replaced it"


def _set_aside(root: Path, folder: Folder) -> Mend:
    target = root / leftover_name(folder.step, "damaged")
    return Mend(
        f"set {folder.name} aside as {target.name}: {folder.fault}", partial(_rename, root / folder.name, target)
    )


def _give_name(root: Path, folder: Folder) -> Mend:
    was = (
        "complete and sound, but for its name"
        if folder.kind == "partial"
        else "sound, and what replaced it is not there"
    )
    final = root / step_name(folder.step)
    return Mend(f"gave {folder.name} the name {final.name}: it is {was}", partial(_commit, root / folder.name, final))


def _commit(folder: Path, final: Path, files: LocalFiles) -> None:
    """Flush everything before the rename: what verified may have been read from memory that is not on the disk yet."""
    for path, _, names in os.walk(folder, topdown=False):
        for name in names:
            descriptor = os.open(Path(path, name), os.O_RDONLY)
            try:
                files.flush(descriptor)
            finally:
                files.close(descriptor)
        files.flush_folder(Path(path))
    _rename(folder, final, files)


def _rename(old: Path, new: Path, files: LocalFiles) -> None:
    files.rename(old, new)
    files.flush_folder(new.parent)


def _remove(path: Path, files: LocalFiles) -> None:
    remove_tree(files, path)
