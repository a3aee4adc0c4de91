"""`anyrig wait`: the next checkpoint of a run, as soon as it is committed."""

from __future__ import annotations

import click

from anyrig.cli import options


@click.command("wait")
@click.argument("run", type=click.Path())
@click.option("--after", type=click.IntRange(min=-1), metavar="STEP", help="Wait for a later one than this step.")
@click.option("--timeout", metavar="TIME", help="Give up after so long, e.g. 90s, 30min; exits 1.")
@options.debug
def command(run: str, after: int | None, timeout: str | None) -> None:
    """Print the next checkpoint of a run as soon as it is there.

    What is printed is the path of the first committed one after --after STEP, which may be there already; without it,
    of the first that is newer than all there are now. RUN need not be there yet. A loop that gives the last step back
    as --after follows a run; pin a checkpoint that must not be removed while it is being read.
    """
    from anyrig.train.following import wait

    click.echo(wait(run, after=after, timeout=timeout))
