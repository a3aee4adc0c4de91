"""What a path given by a user is: a run directory, its checkpoints, one checkpoint, a data file; or not there at all.

Reads names only; what committed means is asked of `store.commit`, and which checkpoint is the best of `store.known`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anyrig.errors import UsageError
from anyrig.store.check import unreadable
from anyrig.store.commit import committed_steps, folders_with_steps
from anyrig.store.known import best_step
from anyrig.store.layout import DATA_SUFFIX, MANIFEST, leftover_of, step_name, step_of
from anyrig.store.read import Checkpoint
from anyrig.store.remote.url import RunUrl, cleaned, is_url

CHECKPOINTS = "checkpoints"
BEST = "best"
_GIVE = '--run DIR, in Python anyrig.Checkpoint("DIR")'
_STEP = re.compile(r"step-([0-9]+)")

Kind = Literal["run", "checkpoints", "checkpoint", "safetensors", "folder", "file"]
_WORDS = {
    "run": "a run directory",
    "checkpoints": "a folder of checkpoints",
    "checkpoint": "a checkpoint",
    "safetensors": "a safetensors file",
    "folder": "a folder that is neither a run directory nor a checkpoint",
    "file": "a file",
}


@dataclass(frozen=True, slots=True)
class Location:
    """A path that is there, and what it is; `folder` and `file` are things of other formats."""

    path: Path
    kind: Kind

    @property
    def words(self) -> str:
        """What it is, for a sentence."""
        return _WORDS[self.kind]


def local_directory(run: str | os.PathLike[str]) -> Path:
    """Return the folder of this machine in which a run is written: the run directory, or the spool of a URL."""
    return RunUrl.of(str(run)).spool if is_url(run) else Path(run)


def resolve(path: str | os.PathLike[str]) -> Location:
    """Say what `path` is (`~` is the home folder); raise when nothing is there.

    RUN/best and RUN/step-N mean a checkpoint of the run directory RUN, unless something has that very name.
    A URL is fetched: it means the checkpoint that it names, or the newest sound one of the run, in a local copy.
    """
    found = on_this_machine(path)
    try:
        if found.exists():
            return Location(found, _kind_of_folder(found) if found.is_dir() else _kind_of_file(found))
    except OSError as error:
        raise unreadable(found, error) from error
    raise UsageError(
        "ANY-LOAD-001", f"{found} does not exist{_nearest(found)}.", hint="check the path, for example with ls"
    )


def _nearest(path: Path) -> str:
    """Say what of the path is there, for somebody who mistyped the end."""
    there = next((parent for parent in path.absolute().parents if parent.is_dir()), None)
    return f" ({there} does)" if there else ""


def _kind_of_file(path: Path) -> Kind:
    return "safetensors" if path.name.endswith(DATA_SUFFIX) else "file"


def _kind_of_folder(path: Path) -> Kind:
    if (path / CHECKPOINTS).is_dir():
        return "run"
    if os.path.lexists(path / MANIFEST) or step_of(path.name) is not None or leftover_of(path.name):
        return "checkpoint"
    if path.name == CHECKPOINTS or any(step_of(name) is not None for name in os.listdir(path)):
        return "checkpoints"
    return "folder"


def checkpoints_folder(location: Location) -> Path:
    """Return the folder of checkpoints of a `run` or `checkpoints` location."""
    return location.path / CHECKPOINTS if location.kind == "run" else location.path


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Return the checkpoint that `path` means: itself, or the newest committed one of a run directory."""
    location = resolve(path)
    if location.kind == "checkpoint":
        return location.path
    if location.kind not in ("run", "checkpoints"):
        raise UsageError(
            "ANY-LOAD-002",
            f"{location.path} is {location.words}, not a checkpoint.",
            hint="give a run directory, RUN/best or RUN/step-N",
        )
    folder = checkpoints_folder(location)
    steps = committed_steps(folder)
    if not steps:
        raise UsageError(
            "ANY-LOAD-013",
            f"{location.path} has no committed checkpoint: {folder} holds {_listing(folder)}.",
            hint="train until the first save, or give another run directory",
        )
    return folder / step_name(steps[-1])


def _listing(folder: Path) -> str:
    names = sorted(os.listdir(folder))
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "nothing"


def on_this_machine(path: str | os.PathLike[str]) -> Path:
    """Return `path` as a path of this machine: of a URL, a copy of the checkpoint that it means is made.

    RUN/best and RUN/step-N become the folder of that checkpoint.
    """
    if is_url(path):
        from anyrig.store.remote.reading import local_copy

        return local_copy(str(path))
    here = Path(path).expanduser()
    return _named_in_run(here) or here


def _named_in_run(path: Path) -> Path | None:
    """Return the checkpoint that RUN/best or RUN/step-N means; None for any other path."""
    numbered = _STEP.fullmatch(path.name)
    try:
        if not (numbered or path.name == BEST) or os.path.lexists(path) or not path.parent.is_dir():
            return None
        location = Location(path.parent, _kind_of_folder(path.parent))
    except OSError:
        return None  # whoever opens the path says why it cannot be read
    if location.kind not in ("run", "checkpoints"):
        return None
    folder = checkpoints_folder(location)
    committed = [found for found in folders_with_steps(folder) if isinstance(found, Checkpoint)]
    steps = [found.step for found in committed]
    step = int(numbered[1]) if numbered else best_step(committed) if committed else None
    if step not in steps:
        raise UsageError(
            "ANY-LOAD-013",
            f"{location.path} has no committed checkpoint{'' if step is None else f' of step {step}'}: the committed "
            f"steps are {', '.join(map(str, sorted(steps))) or 'none'}.",
            hint=f"anyrig ls {location.path} lists what is there",
        )
    return folder / step_name(step)


def refuse_url(path: str | os.PathLike[str]) -> None:
    """Raise for a URL: what is to be done can only be done to a run on this machine."""
    if is_url(path):
        raise UsageError(
            "ANY-REMOTE-009",
            f"{cleaned(str(path))} is a URL; this works on a run directory of this machine.",
            hint=f"if the run was trained here, give its folder: {local_directory(path)}",
        )


def prepare_run_directory(path: str | os.PathLike[str]) -> Path:
    """Make `path` a run directory that can be written to, or find that it is one; return it.

    Whatever else is there is left alone: a file, or a folder with other things in it, is an error. Of a URL it is the
    spool that is made and returned.
    """
    run = local_directory(path).expanduser()
    try:
        _refuse_other_things(run)
        (run / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        for folder in (run, run / CHECKPOINTS):
            _try_to_write(folder)
    except OSError as error:
        raise UsageError(
            "ANY-STORE-011",
            f"The run directory {run} cannot be written to: {error.strerror} ({error.filename}).",
            hint=f"give a directory on a disk that you may write to: {_GIVE}",
        ) from error
    return run


def _refuse_other_things(run: Path) -> None:
    if os.path.lexists(run) and not run.is_dir():
        raise UsageError("ANY-STORE-010", f"The run directory {run} is a file.", hint=f"give another one: {_GIVE}")
    if run.is_dir() and not (run / CHECKPOINTS).is_dir() and (others := _listing(run)) != "nothing":
        problem = f"not a run directory and is not empty: it holds {others}"
        if _kind_of_folder(run) == "checkpoint":
            problem = "a checkpoint, not a run directory"
        raise UsageError("ANY-STORE-012", f"{run} is {problem}.", hint=f"give a new or empty directory: {_GIVE}")


def _try_to_write(folder: Path) -> None:
    """Create and remove a file: permissions, quotas and read-only mounts show only when tried."""
    (folder / f".write-probe-{os.urandom(4).hex()}").touch(exist_ok=False)
    for probe in folder.glob(".write-probe-*"):  # those of killed processes, too
        probe.unlink(missing_ok=True)
