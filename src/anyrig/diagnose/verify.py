"""Read a checkpoint, every one of a run, or a file of another format, and say whether each byte is what was written.

Files are read in parallel, those of all checkpoints together; memory: 1 MiB for each thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anyrig.diagnose.verify_file import FileVerdict, contents_or_verdict, verdict_on
from anyrig.errors import CheckFailed
from anyrig.formats.contents import Contents
from anyrig.locations import checkpoints_folder, resolve
from anyrig.store.check import Advance, Damage, FileCheck, damage_of, file_checks
from anyrig.store.commit import Rejected, folders_with_steps
from anyrig.store.layout import step_of
from anyrig.store.parse import ManifestError
from anyrig.store.read import Checkpoint, open_checkpoint
from anyrig.store.remote.url import cleaned, is_url

if TYPE_CHECKING:
    from anyrig.store.remote.reading import RemoteFileCheck

Watch = Callable[[int], AbstractContextManager[Advance]]
"""Is called with the bytes that will be read; what it yields is told how many more were, in any thread."""


def unwatched(_: int) -> AbstractContextManager[Advance]:
    """Watch nothing."""
    return nullcontext(lambda _: None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One checkpoint: sound when `damage` is empty. `nbytes` were read."""

    path: Path
    step: int
    nbytes: int
    damage: tuple[Damage, ...]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """`checkpoints` were read in full, oldest first; `rejected` bear a step's name but are not committed.

    `file` is the verdict on what is no checkpoint of this project.
    """

    path: Path | str
    checkpoints: tuple[Verdict, ...]
    rejected: tuple[Rejected, ...] = ()
    file: FileVerdict | None = None

    @property
    def sound(self) -> bool:
        """Whether everything is as it was written."""
        damaged = self.file is not None and self.file.damage
        return not self.rejected and not damaged and not any(verdict.damage for verdict in self.checkpoints)

    def require_sound(self) -> None:
        """Raise `CheckFailed` with the damage in words, unless there is none."""
        if self.sound:
            return
        lines = [f"{verdict.path.name}: {damage}" for verdict in self.checkpoints for damage in verdict.damage]
        lines += [f"{rejected.name}: {rejected.reason}" for rejected in self.rejected]
        lines += [str(fault) for fault in (self.file.damage if self.file else ())]
        raise CheckFailed(
            "ANY-VERIFY-001",
            f"{self.path} is damaged:\n  " + "\n  ".join(lines),
            hint="copy or download it again, and compare its size or checksum with the sender's"
            if self.file
            else "resume or predict from an undamaged checkpoint (`anyrig ls RUN`), or copy this one again",
        )


def verify(path: str | os.PathLike[str], *, watch: Watch = unwatched) -> VerifyReport:
    """Verify a checkpoint, all of a run directory (a save that is still going on there is no damage), or any file.

    Of a file of another format every tensor is read, and compared with the checksums that the format has.
    Raises ANY-FORMAT-001 for what no reader knows.
    """
    if is_url(path):
        return _verify_url(str(path), watch)
    if (other := contents_or_verdict(path)) is not None:
        return _verify_file(other, watch)
    location = resolve(path)
    if location.kind == "checkpoint":
        return _verify_one(location.path, watch)
    found = list(folders_with_steps(checkpoints_folder(location)))[::-1]
    verdicts = verdicts_on([item for item in found if not isinstance(item, Rejected)], watch=watch)
    rejected = tuple(item for item in found if isinstance(item, Rejected) and step_of(item.name) is not None)
    return VerifyReport(location.path, verdicts, rejected)


def _verify_file(found: Contents | FileVerdict, watch: Watch) -> VerifyReport:
    if isinstance(found, Contents):
        with watch(sum(tensor.nbytes for tensor in found.tensors)) as advance:
            found = verdict_on(found, advance)
    return VerifyReport(found.path, (), file=found)


def _verify_one(path: Path, watch: Watch) -> VerifyReport:
    try:
        return VerifyReport(path, verdicts_on([open_checkpoint(path)], watch=watch))
    except ManifestError as error:
        return VerifyReport(path, (), (Rejected(path.name, step_of(path.name), error.message),))


def _verify_url(url: str, watch: Watch) -> VerifyReport:
    """Read every file of what `url` means, where it is; nothing is stored here."""
    from anyrig.store.remote.reading import RunAt, remote_checks

    run = RunAt.look(url)
    steps = run.listing.steps if run.url.step is None else run.meant()
    checks = [remote_checks(run, step) for step in steps]
    verdicts = _verdicts([(Path(step.folder), step.step) for step in steps], checks, watch)
    return VerifyReport(cleaned(url), verdicts, run.listing.rejected if run.url.step is None else ())


def verdicts_on(checkpoints: Sequence[Checkpoint], *, watch: Watch = unwatched) -> tuple[Verdict, ...]:
    """Read all files of `checkpoints` and return a verdict on each."""
    checks = [file_checks(checkpoint.path, checkpoint.manifest) for checkpoint in checkpoints]
    return _verdicts([(checkpoint.path, checkpoint.step) for checkpoint in checkpoints], checks, watch)


def _verdicts(
    named: Sequence[tuple[Path, int]], checks: Sequence[Sequence[FileCheck | RemoteFileCheck]], watch: Watch
) -> tuple[Verdict, ...]:
    sizes = [sum(check.entry.size for check in files) for files in checks]
    with watch(sum(sizes)) as advance:
        damage = iter(damage_of([check for files in checks for check in files], advance))
    return tuple(
        Verdict(path, step, size, tuple(fault for _ in files for fault in next(damage)))
        for (path, step), size, files in zip(named, sizes, checks, strict=True)
    )
