"""Which checkpoints are committed at a URL: the one place that says so.

A step is a folder `step-N`, or `step-N.rK` when it was saved again with another state; the highest K counts. It is
committed when its manifest is valid and every file that the manifest lists is there with its size. A manifest is
uploaded after and removed before everything else, so an upload or removal that was broken off leaves no manifest.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from anyrig.store.commit import Rejected
from anyrig.store.decode import decode
from anyrig.store.digest import hash_bytes
from anyrig.store.layout import MANIFEST, step_name, step_of
from anyrig.store.manifest import Manifest
from anyrig.store.parse import ManifestError
from anyrig.store.read import Checkpoint
from anyrig.store.remote.objects import Objects, Stored

CHECKPOINTS = "checkpoints"
_FOLDER = re.compile(r"(step-[0-9]+)(?:\.r([1-9][0-9]*))?")


@dataclass(frozen=True, slots=True)
class RemoteStep:
    """A committed step; `folder` is its name at the URL, `checksum` that of its manifest's bytes: what it is."""

    step: int
    revision: int
    folder: str
    checksum: str
    raw: bytes = field(repr=False)
    manifest: Manifest = field(repr=False)
    modified: float | None

    @property
    def description(self) -> Checkpoint:
        """Return it for those who read manifests only: no file of it is here."""
        return Checkpoint(Path(self.folder), self.manifest)


@dataclass(frozen=True, slots=True)
class Listing:
    """What is at a URL: committed steps (oldest first), folders to sweep, manifests that cannot be used, pins."""

    steps: tuple[RemoteStep, ...]
    sweep: Mapping[str, tuple[str, ...]]
    rejected: tuple[Rejected, ...]
    pinned: frozenset[int]
    revisions: Mapping[int, int]

    @property
    def newest(self) -> RemoteStep | None:
        """The newest committed step."""
        return self.steps[-1] if self.steps else None

    def free_folder(self, step: int) -> str:
        """Return the folder into which `step` can be uploaded without touching a manifest that is there."""
        taken = {Path(rejected.name).name for rejected in self.rejected}
        revision = self.revisions.get(step, -1) + 1
        name = step_name(step) + (f".r{revision}" if revision else "")
        while name in taken:
            revision += 1
            name = f"{step_name(step)}.r{revision}"
        return f"{CHECKPOINTS}/{name}"


class Shelf:
    """The checkpoints at a URL; each manifest is read once."""

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self._read: dict[tuple[str, Stored], RemoteStep | Rejected] = {}

    def list(self) -> Listing:
        """Look what is there now."""
        found = self.objects.all(CHECKPOINTS)
        folders: dict[str, dict[str, Stored]] = defaultdict(dict)
        for path, stored in found.items():
            top, _, name = path.removeprefix(f"{CHECKPOINTS}/").partition("/")
            if name and _step_and_revision(top) is not None:
                folders[f"{CHECKPOINTS}/{top}"][name] = stored
        looked = {folder: self._look(folder, files) for folder, files in folders.items() if MANIFEST in files}
        committed = [step for step in looked.values() if isinstance(step, RemoteStep)]
        highest = {step.step: step for step in sorted(committed, key=lambda step: step.revision)}
        superseded = [step.folder for step in committed if highest[step.step] is not step]
        gone = [folder for folder in folders if looked.get(folder) is None]
        return Listing(
            steps=tuple(highest[step] for step in sorted(highest)),
            sweep={folder: tuple(folders[folder]) for folder in [*superseded, *gone]},
            rejected=tuple(item for item in looked.values() if isinstance(item, Rejected)),
            pinned=frozenset(step for path in found if (step := _pinned(path)) is not None),
            revisions={step: remote.revision for step, remote in highest.items()},
        )

    def _look(self, folder: str, files: Mapping[str, Stored]) -> RemoteStep | Rejected | None:
        key = (folder, files[MANIFEST])
        if key not in self._read:
            try:
                raw = self.objects.read(f"{folder}/{MANIFEST}")
            except FileNotFoundError:  # removed while we looked
                return None
            self._read[key] = _opened(folder, raw, files[MANIFEST])
        found = self._read[key]
        fault = _incomplete(found, files) if isinstance(found, RemoteStep) else None
        return Rejected(folder.rpartition("/")[2], found.step, fault) if fault else found


def _opened(folder: str, raw: bytes, stored: Stored) -> RemoteStep | Rejected:
    name = folder.rpartition("/")[2]
    parsed = _step_and_revision(name)
    assert parsed is not None
    step, revision = parsed
    try:
        manifest = decode(raw)
    except ManifestError as error:
        return Rejected(name, step, error.message)
    if manifest.step != step:
        return Rejected(name, step, f"it holds step {manifest.step}: it was renamed")
    modified = stored.modified.timestamp() if stored.modified else None
    return RemoteStep(step, revision, folder, hash_bytes(raw), raw, manifest, modified)


def _incomplete(step: RemoteStep, files: Mapping[str, Stored]) -> str | None:
    for entry in step.manifest.files:
        found = files.get(entry.name)
        if found is None:
            return f"{entry.name} is missing"
        if found.size != entry.size:
            return f"{entry.name} has {found.size} bytes instead of {entry.size}"
    return None


def _step_and_revision(name: str) -> tuple[int, int] | None:
    match = _FOLDER.fullmatch(name)
    step = step_of(match[1]) if match else None
    return None if match is None or step is None else (step, int(match[2] or 0))


def _pinned(path: str) -> int | None:
    name = path.removeprefix(f"{CHECKPOINTS}/")
    return step_of(name.removesuffix(".pin")) if name.endswith(".pin") else None
