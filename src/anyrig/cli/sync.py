"""`anyrig sync`: uploads what a run at a URL has left on this machine, as when the network was away at its end."""

from __future__ import annotations

import click

from anyrig.cli import options
from anyrig.errors import AnyrigError, UsageError


@click.command("sync")
@click.argument("url")
@options.debug
def command(url: str) -> None:
    """Upload the checkpoints of the run at URL that wait on this machine.

    A run at a URL is written here first. Where the network was away, its end says what is still to be uploaded; this
    does it. No checkpoint at URL is removed, and none is uploaded where another machine has trained on meanwhile.
    """
    from anyrig.locations import local_directory
    from anyrig.store.lock import RunLock
    from anyrig.store.remote.opened import mirror_of
    from anyrig.store.remote.url import cleaned

    mirror = mirror_of(url)
    if mirror is None or not mirror.checkpoints.is_dir():
        raise UsageError(
            "ANY-REMOTE-010",
            f"{cleaned(url)} has nothing on this machine: {local_directory(url)} holds no run.",
            hint="give the URL of a run that was trained here; ANYRIG_SPOOL has to be set as it was then",
        )
    with RunLock(mirror.run):
        before = len(mirror.waiting_now())
        try:
            left = mirror.settle()
        finally:
            mirror.close()
    if left:
        raise AnyrigError("ANY-REMOTE-002", left[0], hint="check the network, and type the same again")
    click.echo(f"{before} checkpoints uploaded: everything in {mirror.run} is at {mirror.objects.url}")
