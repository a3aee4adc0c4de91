"""The start of work on a run at a URL: its newest state is brought into the spool, and what is no part of it set aside.

Nothing at the URL is changed, and nothing in the spool is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anyrig.errors import AnyrigError
from anyrig.store.commit import Rejected, set_aside
from anyrig.store.read import verify_checkpoint
from anyrig.store.remote.lease import LEASE, InUse
from anyrig.store.remote.listing import CHECKPOINTS, Listing, RemoteStep
from anyrig.store.remote.objects import Objects
from anyrig.store.remote.spool import RECORD, Kept, kept_in
from anyrig.store.remote.transfer import Damaged, fetch


def bring_newest(objects: Objects, run: Path, known: frozenset[str], listing: Listing) -> list[str]:
    """Make the newest state of the run at the URL the newest in its spool `run`; say what was done, in words.

    `known` are the checksums of manifests that this spool has seen at the URL. Raises `InUse` where URL and spool have
    both gone on, the spool further.
    """
    return [*_set_aside_others(objects, run, known, listing), *_fetch_newest(objects, run, listing)]


def foreign_in(listing: Listing, kept: Sequence[Kept], known: frozenset[str]) -> list[RemoteStep]:
    """Return the steps at the URL that the spool has neither seen nor written."""
    own = known | {item.checksum for item in kept}
    return [step for step in listing.steps if step.checksum not in own]


def two_ways(objects: Objects, run: Path, foreign: Sequence[RemoteStep], waiting: Sequence[Kept]) -> InUse:
    """Return the error for a URL that has gone on without what waits in the spool."""
    up_to = f" (up to {waiting[0].step})" if waiting else ""
    return InUse(
        "ANY-REMOTE-008",
        f"{objects.url} has step {foreign[-1].step}, which another machine has written, while {len(waiting)} steps"
        f"{up_to} in {run} are not there: these are two ways on from one run.",
        hint=f"to go on from the URL, move {run} away; to keep what is in it, train it into another URL",
    )


def _set_aside_others(objects: Objects, run: Path, known: frozenset[str], listing: Listing) -> list[str]:
    kept, there = kept_in(run / CHECKPOINTS), {step.checksum for step in listing.steps}
    newest = listing.newest.step if listing.newest else -1
    gone = [item for item in kept if item.checksum in known - there and item.step >= newest]
    waiting = [item for item in kept if item.checksum not in known | there]
    foreign = foreign_in(listing, kept, known)
    if waiting and foreign and waiting[0].step > newest:
        raise two_ways(objects, run, foreign, waiting)
    messages = [_hide(run, item, f"it was removed from {objects.url}") for item in gone]
    if foreign:
        messages += [_hide(run, item, f"{objects.url} has gone on without it") for item in waiting]
    return messages


def _fetch_newest(objects: Objects, run: Path, listing: Listing) -> list[str]:
    """Download the newest step that is sound, unless the spool has it or a newer one that waits."""
    messages: list[str] = []
    for step in reversed(listing.steps):
        kept = kept_in(run / CHECKPOINTS)
        if kept and kept[0].step > step.step:
            return messages
        same = next((item for item in kept if item.step == step.step), None)
        damage = verify_checkpoint(same.checkpoint) if same else []
        if same is not None and not damage:
            return messages
        if same is not None:
            messages.append(_hide(run, same, str(damage[0])))
        try:
            fetch(objects, step, run / CHECKPOINTS)
        except Damaged as damaged:
            messages.append(f"step {step.step} cannot be used: {damaged.message}")
            continue
        _fetch_files(objects, run)
        return [*messages, f"fetched step {step.step} from {objects.url} into {run}"]
    unusable = [*messages, *(f"{item.name}: {item.reason}" for item in listing.rejected)]
    if unusable and not kept_in(run / CHECKPOINTS):
        raise AnyrigError(
            "ANY-REMOTE-005",
            f"no checkpoint at {objects.url} is sound, and starting anew would throw the run away: "
            + "; ".join(unusable),
            hint=f"look at them with: anyrig verify {objects.url}; or give another URL",
        )
    return messages


def _fetch_files(objects: Objects, run: Path) -> None:
    """Download the small files beside the checkpoints: recipe, environment, events."""
    for name in objects.all():
        if "/" not in name and name not in (LEASE, RECORD) and not name.startswith("."):
            new = run / f".{name}.new"
            objects.get(name, new)
            new.replace(run / name)


def _hide(run: Path, kept: Kept, why: str) -> str:
    set_aside(run / CHECKPOINTS, Rejected(kept.checkpoint.path.name, kept.step, why))
    return f"step {kept.step} in {run} was set aside: {why}"
