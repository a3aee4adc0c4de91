"""Bring a run directory into the state in which a run goes on: what to do is found out first, then done under the lock.

Rebuilt are: names of checkpoints whose rename was interrupted, `environment.json` (versions, processor and numeric
settings, from the newest sound checkpoint), and the end of `events.jsonl`. What was in a damaged data file cannot be
rebuilt, nor a lost manifest: only it knows the checksums. No committed step is ever deleted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from anyrig.diagnose.verify import Watch, unwatched, verdicts_on
from anyrig.errors import AnyrigError, CheckFailed, UsageError
from anyrig.locations import checkpoints_folder, refuse_url, resolve
from anyrig.store.layout import leftover_of, step_of
from anyrig.store.local import LOCAL, LocalFiles, folder_names
from anyrig.store.lock import RunLock, refuse_if_in_use
from anyrig.store.parse import ManifestError
from anyrig.store.read import Checkpoint, open_unfinished
from anyrig.store.recover import Folder, Mend, bearer, mends

_LITTER = (
    ".write-probe-*",
    "checkpoints/.write-probe-*",
    "checkpoints/.step-*.pin-*",
    ".environment.json.*",
)


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What was done (in a dry run: would be), and what the run has after it.

    `sound` are the steps that verify in full; `damaged` the others under a final name, `aside` those that were set
    aside earlier, both by name with the reason.
    """

    path: Path
    dry_run: bool
    done: tuple[str, ...]
    sound: tuple[int, ...]
    damaged: dict[str, str]
    aside: tuple[str, ...]

    @property
    def newest(self) -> int | None:
        """The step from which the run goes on; None when it begins anew."""
        return max(self.sound, default=None)

    def require_resumable(self) -> None:
        """Raise `CheckFailed` if there are checkpoints and none of them is sound."""
        if self.damaged and not self.sound:
            raise CheckFailed(
                "ANY-REPAIR-001",
                f"{self.path} cannot be carried on: none of its checkpoints is sound.",
                hint="copy a checkpoint back from somewhere else, or begin another run directory",
            )


def repair(
    run: str | os.PathLike[str], *, dry_run: bool = False, watch: Watch = unwatched, files: LocalFiles = LOCAL
) -> RepairReport:
    """Repair the run directory `run`, or say what would be done; raise ANY-LOCK-001 while it is in use."""
    refuse_url(run)
    location = resolve(run)
    if location.kind != "run":
        raise UsageError(
            "ANY-REPAIR-002", f"{location.path} is {location.words}, not a run directory.", hint="give the --run folder"
        )
    if dry_run:
        refuse_if_in_use(location.path)
    with nullcontext() if dry_run else RunLock(location.path):
        folders = _folders(checkpoints_folder(location), watch)
        plan = list(_plan(location.path, checkpoints_folder(location), folders))
        for mend in () if dry_run else plan:
            _do(mend, files)
    return _report(location.path, dry_run, plan, folders)


def _do(mend: Mend, files: LocalFiles) -> None:
    try:
        mend.act(files)
    except OSError as error:
        raise AnyrigError(
            "ANY-REPAIR-003",
            f"The repair stopped: {error}. It could not be done that: {mend.words}.",
            hint="check permissions and the disk, and start it again: it goes on from where it is",
        ) from error


def _report(path: Path, dry_run: bool, plan: list[Mend], folders: list[Folder]) -> RepairReport:
    chosen = {folder.step for _, group in _by_step(folders) if (folder := bearer(group))}
    committed = [folder for folder in folders if folder.kind == "committed" and folder.fault]
    return RepairReport(
        path=path,
        dry_run=dry_run,
        done=tuple(mend.words for mend in plan),
        sound=tuple(sorted(chosen)),
        damaged={folder.name: str(folder.fault) for folder in committed if folder.step not in chosen},
        aside=tuple(folder.name for folder in folders if folder.kind == "damaged"),
    )


def _by_step(folders: list[Folder]) -> Iterator[tuple[int, list[Folder]]]:
    ordered = sorted(folders, key=lambda folder: folder.step)
    return ((step, list(group)) for step, group in groupby(ordered, key=lambda folder: folder.step))


def _folders(root: Path, watch: Watch) -> list[Folder]:
    """Return every folder that bears a step, verified in full where it has a manifest."""
    named = [(name, _kind(name)) for name in folder_names(root)]
    opened = {name: _open(root / name, kind[0]) for name, kind in named if kind and kind[1] in _WORTH_READING}
    checkpoints = [found for found in opened.values() if isinstance(found, Checkpoint)]
    damage = {verdict.path.name: verdict.damage for verdict in verdicts_on(checkpoints, watch=watch)}
    folders = []
    for name, kind in named:
        if kind:
            found = opened.get(name, "not looked at")
            fault = found if isinstance(found, str) else "; ".join(str(part) for part in damage[name][:3])
            folders.append(Folder(name, *kind, None if isinstance(found, str) else found, fault or None))
    return folders


_WORTH_READING = ("committed", "partial", "replaced")


def _kind(name: str) -> tuple[int, str] | None:
    step = step_of(name)
    return leftover_of(name) if step is None else (step, "committed")


def _open(folder: Path, step: int) -> Checkpoint | str:
    try:
        return open_unfinished(folder, step)
    except ManifestError as error:
        return error.message


def _plan(run: Path, root: Path, folders: list[Folder]) -> Iterator[Mend]:
    newest: Checkpoint | None = None
    for _, group in _by_step(folders):
        yield from mends(root, group)
        chosen = bearer(group)
        newest = chosen.found if chosen is not None else newest
    yield from _environment(run / "environment.json", newest)
    yield from _events(run / "events.jsonl")
    for pattern in _LITTER:
        for path in sorted(run.glob(pattern)):
            yield Mend(f"removed {path.name}: left by a process that was killed", _removal(path))


def _removal(path: Path) -> Callable[[LocalFiles], None]:
    return lambda files: files.remove_file(path)


def _environment(path: Path, newest: Checkpoint | None) -> Iterator[Mend]:
    if newest is None or _is_object(path):
        return
    known = {key: newest.record[key] for key in ("numeric", "environment") if isinstance(newest.record.get(key), dict)}
    if len(known) == 2:
        content = {"numeric": known["numeric"], **known["environment"]}
        text = json.dumps(content, indent=1) + "\n"
        yield Mend(
            f"made {path.name} anew, from what step {newest.step} records", lambda files: _write(path, text, files)
        )


def _is_object(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (FileNotFoundError, ValueError):
        return False


def _write(path: Path, text: str, files: LocalFiles) -> None:
    new = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    descriptor = files.create(new)
    try:
        files.write(descriptor, memoryview(text.encode()))
        files.flush(descriptor)
    finally:
        files.close(descriptor)
    os.replace(new, path)
    files.flush_folder(path.parent)


def _events(path: Path) -> Iterator[Mend]:
    """Cut off a last line that a kill or a power cut left without its end."""
    if not path.is_file():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        yield Mend(
            f"cut {len(content) - whole} bytes of an unfinished line off the end of {path.name}",
            lambda _: os.truncate(path, whole),
        )
