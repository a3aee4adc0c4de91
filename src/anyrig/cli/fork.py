"""`anyrig fork`: a new run from the state of an old one, with another V or precision."""

from __future__ import annotations

import click

from anyrig.cli import options


@click.command("fork")
@click.argument("run", type=click.Path())
@click.argument("new", type=click.Path())
@click.option("--virtual-replicas", type=click.IntRange(min=1), help="V of the new run: the most devices it can use.")
@click.option("--precision", help="float32, mixed_bfloat16 or mixed_float16.")
@options.debug
def command(run: str, new: str, virtual_replicas: int | None, precision: str | None) -> None:
    """Begin a new run from the state of an old one, with another V or precision.

    RUN is a run (its newest state is taken) or one checkpoint of it; NEW is the directory of the new run. V and
    precision never change within a run, because its numbers depend on them; a fork may change them, and says what that
    does. The old run stays as it is.
    """
    from anyrig.train.fork import fork

    forked = fork(run, new, virtual_replicas=virtual_replicas, precision=precision)
    click.echo("\n".join(forked.messages))
    click.echo(f"go on with: anyrig train {new}/recipe.yaml --run {new}")
