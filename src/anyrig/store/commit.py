"""The one place that says which checkpoints are committed.

Committed means: a real folder under its final name, with a valid manifest. Load, list, retention and resume ask here.
What cannot be read for lack of permission is an error, never "not there": a run must not start anew because of it.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anyrig.errors import AnyrigError
from anyrig.store.check import unreadable
from anyrig.store.layout import leftover_name, leftover_of, step_name, step_of
from anyrig.store.local import LOCAL, LocalFiles, folder_names, remove_tree
from anyrig.store.parse import ManifestError
from anyrig.store.pins import sweep_pins
from anyrig.store.read import Checkpoint, open_checkpoint, verify_checkpoint


@dataclass(frozen=True, slots=True)
class Rejected:
    """A folder that looks like a checkpoint but cannot be used; `reason` says why in words."""

    name: str
    step: int | None
    reason: str


def committed_steps(checkpoints: str | os.PathLike[str]) -> list[int]:
    """Return the committed steps, sorted; anything else in the folder is ignored."""
    found = folders_with_steps(Path(checkpoints))
    return sorted(candidate.step for candidate in found if isinstance(candidate, Checkpoint))


def newest_committed(checkpoints: str | os.PathLike[str]) -> Checkpoint | None:
    """Return the newest committed checkpoint, opened; its data are not looked at."""
    found = folders_with_steps(Path(checkpoints))
    return next((candidate for candidate in found if isinstance(candidate, Checkpoint)), None)


def newest_sound(checkpoints: str | os.PathLike[str]) -> tuple[Checkpoint | None, list[Rejected]]:
    """Return the newest committed checkpoint that verifies in full, and what was newer but could not be used."""
    rejected: list[Rejected] = []
    for candidate in folders_with_steps(Path(checkpoints)):
        if isinstance(candidate, Rejected):
            rejected.append(candidate)
            continue
        damage = verify_checkpoint(candidate)
        if not damage:
            return candidate, rejected
        rejected.append(Rejected(candidate.path.name, candidate.step, "; ".join(str(part) for part in damage[:3])))
    return None, rejected


def folders_with_steps(root: Path, without: Container[str] = ()) -> Iterator[Checkpoint | Rejected]:
    """Yield what bears a step, newest first: opened when committed, else with the reason (unfinished saves too).

    Folders named in `without` are left out, unread.
    """
    named = [(step, name) for name in _names(root) if name not in without and (step := _step_in(name)) is not None]
    for step, name in sorted(named, key=lambda item: (-item[0], item[1])):
        folder = root / name
        if folder.is_symlink():
            yield Rejected(name, step, f"{folder} is a link")
            continue
        try:
            yield open_checkpoint(folder)
        except ManifestError as error:
            if folder.exists():  # else it was removed while we looked
                yield Rejected(name, step, error.message)


def _names(root: Path) -> list[str]:
    try:
        return os.listdir(root)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(root, error) from error


def _step_in(name: str) -> int | None:
    unfinished = leftover_of(name)
    return unfinished[0] if unfinished and unfinished[1] == "partial" else step_of(name)


def set_aside(checkpoints: str | os.PathLike[str], rejected: Rejected, *, files: LocalFiles = LOCAL) -> None:
    """Hide a damaged checkpoint from retention and later saves without deleting it (the caller holds the lock)."""
    root = Path(checkpoints)
    step = step_of(rejected.name)
    if step is not None:
        with _named_errors(root):
            files.rename(root / rejected.name, root / leftover_name(step, "damaged"))
            files.flush_folder(root)


def sweep_partials(checkpoints: str | os.PathLike[str], *, files: LocalFiles = LOCAL) -> list[str]:
    """Remove what earlier saves and removals left unfinished (the caller holds the lock); return the names.

    A checkpoint that was being replaced, and whose successor never took its place, gets its name back.
    """
    root = Path(checkpoints)
    with _named_errors(root):
        names = [(name, kind) for name in folder_names(root) if (kind := leftover_of(name)) and kind[1] != "damaged"]
        for name, (step, state) in names:
            if state == "replaced" and not os.path.lexists(root / step_name(step)):
                files.rename(root / name, root / step_name(step))
                files.flush_folder(root)
            else:
                remove_tree(files, root / name)
        return [name for name, _ in names] + sweep_pins(root, files=files)


@contextmanager
def _named_errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise AnyrigError(
            "ANY-STORE-020",
            f"What an earlier process left in {root} could not be cleared away: {error}. Checkpoints are as they were.",
            hint="check the folder's permissions and its disk, and start again",
        ) from error
