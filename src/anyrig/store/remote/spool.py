"""The local folder of a run that lives at a URL: an ordinary run directory, and what is known of its uploads.

`remote.json` in it names the URL (without passwords) and holds the checksums of the manifests that are at the URL, as
far as this machine has seen or sent them. What is committed in the folder and not among those waits to be uploaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from anyrig.errors import AnyrigError
from anyrig.store.commit import folders_with_steps
from anyrig.store.digest import hash_bytes
from anyrig.store.layout import MANIFEST
from anyrig.store.read import Checkpoint

RECORD = "remote.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """A committed step of the spool and the checksum of its manifest's bytes: what it is."""

    checkpoint: Checkpoint
    checksum: str

    @property
    def step(self) -> int:
        """Its step."""
        return self.checkpoint.step


def kept_in(checkpoints: Path) -> list[Kept]:
    """Return the committed steps of the spool, newest first; one that is removed meanwhile is left out."""
    found = []
    for checkpoint in folders_with_steps(checkpoints):
        if isinstance(checkpoint, Checkpoint):
            try:
                raw = (checkpoint.path / MANIFEST).read_bytes()
            except FileNotFoundError:
                continue
            found.append(Kept(checkpoint, hash_bytes(raw)))
    return found


def read_known(run: Path) -> frozenset[str]:
    """Return the checksums of the manifests known to be at the URL; none for a new spool."""
    try:
        known = json.loads((run / RECORD).read_text(encoding="utf-8"))["known"]
        return frozenset(map(str, known))
    except FileNotFoundError:
        return frozenset()
    except (ValueError, KeyError, TypeError) as error:
        raise AnyrigError(
            "ANY-REMOTE-006",
            f"{run / RECORD} cannot be read: {error}.",
            hint=f"delete {run} after looking whether a step in it is missing at the URL (anyrig ls)",
        ) from error


def write_known(run: Path, url: str, known: Iterable[str]) -> None:
    """Replace the record at once, so that a kill leaves the old one or the new one."""
    new = run / f".{RECORD}.new"
    with open(new, "w", encoding="utf-8") as file:
        json.dump({"url": url, "known": sorted(known)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, run / RECORD)
