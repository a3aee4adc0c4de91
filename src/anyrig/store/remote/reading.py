"""Runs and checkpoints at a URL for those who only look: a listing, a local copy, a check of every byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anyrig.errors import AnyrigError, UsageError
from anyrig.store.check import Advance, Damage, damage_in_stream, tensors_by_file
from anyrig.store.local import LOCAL, folder_names, remove_tree
from anyrig.store.manifest import FileEntry, TensorEntry
from anyrig.store.read import verify_checkpoint
from anyrig.store.remote.listing import CHECKPOINTS, Listing, RemoteStep, Shelf
from anyrig.store.remote.objects import Objects
from anyrig.store.remote.spool import kept_in
from anyrig.store.remote.transfer import Damaged, fetch
from anyrig.store.remote.url import RunUrl


@dataclass(frozen=True, slots=True)
class RunAt:
    """What is at a URL now; `step` is the one that the URL names, if it names one."""

    url: RunUrl
    objects: Objects
    listing: Listing

    @classmethod
    def look(cls, given: str) -> RunAt:
        """List the run that the URL `given` means; only manifests are read."""
        url = RunUrl.of(given)
        objects = Objects(url.url)
        return cls(url, objects, Shelf(objects).list())

    def meant(self) -> Sequence[RemoteStep]:
        """Return the committed steps that the URL means, newest first: all, or the one that it names. Never empty."""
        named = self.url.step
        found = [step for step in reversed(self.listing.steps) if named in (None, step.step)]
        if not found:
            there = ", ".join(str(step.step) for step in self.listing.steps) or "none"
            raise UsageError(
                "ANY-LOAD-013",
                f"{self.objects.url} has no committed checkpoint{'' if named is None else f' of step {named}'}: "
                f"the committed steps are {there}.",
                hint="check the URL; anyrig ls URL lists what is there",
            )
        return found


def local_copy(given: str) -> Path:
    """Return a local folder with the checkpoint that a URL means, the newest sound one of a run.

    It is the one in the run's spool if that is the same and sound, else a copy beside it, which replaces an earlier
    copy. Every byte of what is returned has been compared.
    """
    run = RunAt.look(given)
    problem: AnyrigError | None = None
    for step in run.meant():
        copies = run.url.spool.with_name(f"{run.url.spool.name}.copy") / CHECKPOINTS
        for folder in (run.url.spool / CHECKPOINTS, copies):
            for kept in kept_in(folder):
                if kept.checksum == step.checksum and not verify_checkpoint(kept.checkpoint):
                    return kept.checkpoint.path
        for name in folder_names(copies):
            remove_tree(LOCAL, copies / name)
        try:
            return fetch(run.objects, step, copies)
        except Damaged as error:
            problem = error
    assert problem is not None
    raise problem


@dataclass(frozen=True, slots=True)
class RemoteFileCheck:
    """A file at a URL that is to be read, and the tensors in it."""

    objects: Objects
    folder: str
    entry: FileEntry
    tensors: tuple[TensorEntry, ...]

    def damage(self, advance: Advance) -> list[Damage]:
        """Read the file, without storing it, and return what is not as the manifest says."""
        try:
            with self.objects.open(f"{self.folder}/{self.entry.name}") as file:
                return damage_in_stream(file, self.entry, self.tensors, advance)
        except FileNotFoundError:
            return [Damage(self.entry.name, None, "is missing")]


def remote_checks(run: RunAt, step: RemoteStep) -> list[RemoteFileCheck]:
    """Return what has to be checked of a step, in the manifest's order."""
    tensors = tensors_by_file(step.manifest)
    return [
        RemoteFileCheck(run.objects, step.folder, entry, tensors.get(entry.name, ())) for entry in step.manifest.files
    ]
