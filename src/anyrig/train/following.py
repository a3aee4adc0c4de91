"""Following a run from another process: wait for its next checkpoint. Reads names, and changes nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

from anyrig.errors import AnyrigError, UsageError
from anyrig.locations import checkpoints_folder, refuse_url, resolve
from anyrig.store.commit import folders_with_steps
from anyrig.store.layout import step_of
from anyrig.store.local import folder_names
from anyrig.store.read import Checkpoint
from anyrig.train.limits import parse_duration

POLL_SECONDS = 0.5


def wait(
    run: str | os.PathLike[str],
    *,
    after: int | None = None,
    timeout: float | str | None = None,
    poll: float = POLL_SECONDS,
) -> Path:
    """Return the folder of the next committed checkpoint of `run`, a run directory that need not be there yet.

    The next one is the first after step `after`, which may be there already; without it, the first that is newer than
    all there are now. `timeout`: seconds, or "30 min"; then an AnyrigError is raised. It looks every `poll` seconds.
    """
    seconds = _seconds(timeout)
    began = time.monotonic()
    if after is None:
        after = max((found.step for found in _committed(run, -1)), default=-1)
    while True:
        found = next(iter(_committed(run, after)), None)
        if found is not None:
            return found.path
        if seconds is not None and time.monotonic() - began >= seconds:
            raise AnyrigError(
                "ANY-RUN-043",
                f"{run} has no checkpoint {'' if after < 0 else f'after step {after:,} '}yet; waited for {seconds:g} s",
                hint="wait longer (--timeout), or see whether it is being trained",
            )
        time.sleep(poll)


def _seconds(timeout: float | str | None) -> float | None:
    try:
        return None if timeout is None else parse_duration(timeout)
    except ValueError as error:
        raise UsageError("ANY-RUN-044", f"timeout: {error}", hint='e.g. "30 min"') from error


def _folder(run: str | os.PathLike[str]) -> Path | None:
    """Return the folder of checkpoints, None where the run is not there yet."""
    refuse_url(run)
    if not Path(run).expanduser().exists():
        return None
    location = resolve(run)
    if location.kind not in ("run", "checkpoints", "folder"):
        raise UsageError("ANY-RUN-044", f"{run} is {location.words}, not a run", hint="give a run directory")
    return None if location.kind == "folder" else checkpoints_folder(location)


def _committed(run: str | os.PathLike[str], after: int) -> list[Checkpoint]:
    """Return the committed checkpoints after a step, the first one first; older ones are not read."""
    folder = _folder(run)
    if folder is None:
        return []
    older = {name for name in folder_names(folder) if (step := step_of(name)) is not None and step <= after}
    found = [item for item in folders_with_steps(folder, without=older) if isinstance(item, Checkpoint)]
    return found[::-1]
