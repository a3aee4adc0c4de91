"""What the commands about a run's checkpoints share: finding them, and the rule that they are kept by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from anyrig.errors import UsageError

if TYPE_CHECKING:
    from anyrig.store.read import Checkpoint
    from anyrig.store.retain import Keep


def checkpoints_of(path: str) -> tuple[Path, Path]:
    """Return the run directory that `path` means, and its folder of checkpoints."""
    from anyrig.locations import CHECKPOINTS, checkpoints_folder, refuse_url, resolve

    refuse_url(path)
    location = resolve(path)
    if location.kind not in ("run", "checkpoints"):
        raise UsageError("ANY-CLI-013", f"{path} is {location.words}, not a run", hint="give the folder named by --run")
    folder = checkpoints_folder(location)
    return (folder.parent if folder.name == CHECKPOINTS else folder), folder


def stored_rule(newest: Checkpoint | None) -> Keep | None:
    """Return the retention rule that the run was last trained with, as its newest checkpoint records it, if it does."""
    from dataclasses import fields

    from anyrig.store.retain import Keep

    stored = newest.record.get("keep") if newest is not None else None
    known = {field.name for field in fields(Keep)}
    return Keep(**{name: value for name, value in stored.items() if name in known}) if stored else None
