"""What the commands about a run's checkpoints share: finding them."""

from __future__ import annotations

from pathlib import Path

from anyrig.errors import UsageError


def checkpoints_of(path: str) -> tuple[Path, Path]:
    """Return the run directory that `path` means, and its folder of checkpoints."""
    from anyrig.locations import CHECKPOINTS, checkpoints_folder, refuse_url, resolve

    refuse_url(path)
    location = resolve(path)
    if location.kind not in ("run", "checkpoints"):
        raise UsageError("ANY-CLI-013", f"{path} is {location.words}, not a run", hint="give the folder named by --run")
    folder = checkpoints_folder(location)
    return (folder.parent if folder.name == CHECKPOINTS else folder), folder
