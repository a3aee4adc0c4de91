"""From a URL to its mirror, and to the newest state in its spool."""

from __future__ import annotations

import os
from contextlib import ExitStack

from anyrig.errors import AnyrigError
from anyrig.store.lock import RunLock
from anyrig.store.remote.mirror import Choose, Mirror, keep_all
from anyrig.store.remote.objects import Objects
from anyrig.store.remote.url import RunUrl, is_url


def mirror_of(directory: str | os.PathLike[str], choose: Choose = keep_all) -> Mirror | None:
    """Return the mirror of a run at a URL; None for a path of this machine."""
    if not is_url(directory):
        return None
    found = RunUrl.of(str(directory))
    return Mirror(Objects(found.url), found.spool, choose=choose)


def bring(directory: str | os.PathLike[str]) -> None:
    """Bring the newest state of a run at a URL into its spool; nothing is done for a path, or while a run trains."""
    mirror = mirror_of(directory)
    if mirror is None:
        return
    mirror.checkpoints.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(RunLock(mirror.run))
        except AnyrigError as error:
            if error.code != "ANY-LOCK-001":
                raise
            return  # whoever trains there keeps the spool at the newest state
        mirror.bring()
