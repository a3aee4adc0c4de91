"""`anyrig pin`: marks a checkpoint that no rule may remove."""

from __future__ import annotations

import click

from anyrig.cli import options
from anyrig.cli.runs import checkpoints_of


@click.command("pin")
@click.argument("run", type=click.Path())
@click.argument("step", type=click.IntRange(min=0))
@click.option("--name", default="", metavar="TEXT", help="What to call it, as `anyrig ls` shows it.")
@click.option("--remove", is_flag=True, help="Take the pin away; the checkpoint then goes when the rules say so.")
@options.debug
def command(run: str, step: int, name: str, remove: bool) -> None:
    """Mark a checkpoint that no rule may remove.

    The checkpoint of STEP then stays, also when RUN is being trained meanwhile. A second pin with another --name
    renames the first.
    """
    from anyrig.store.pins import pin, unpin

    if remove and name:
        raise click.UsageError("--remove takes no --name")
    _, folder = checkpoints_of(run)
    if remove:
        was = "is no longer pinned" if unpin(folder, step) else "was not pinned"
        click.echo(f"step {step:,} {was}")
        return
    pin(folder, step, name)
    click.echo(f"step {step:,} is pinned{f' as {name}' if name else ''}: no rule removes it")
