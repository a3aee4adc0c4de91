"""`anyrig demo`: the main job on real digits, told with real processes and real kills."""

from __future__ import annotations

from pathlib import Path

import click

from anyrig.cli import options

_EPOCHS = 12
_FAST_EPOCHS = 2


@click.command("demo")
@click.option("--fast", is_flag=True, help=f"{_FAST_EPOCHS} epochs instead of {_EPOCHS}: under a minute.")
@click.option(
    "--directory", default="runs/demo", show_default=True, type=click.Path(path_type=Path), help="Where the runs go."
)
@options.debug
def command(fast: bool, directory: Path) -> None:
    """Train digits on 4 devices, be killed, go on with 1, compare, predict.

    Four trainings of one recipe: (a) on 4 devices, (b) on 2, (c) on 4, killed in the middle of epoch 2 and carried on
    with 1, (d) on 2, stopped by SIGTERM and carried on with 4. Exits with 3 unless all four end with the same bytes.
    """
    from anyrig.demo.story import WANTED_ACCURACY, tell

    tell(directory, epochs=_FAST_EPOCHS if fast else _EPOCHS, wanted_accuracy=None if fast else WANTED_ACCURACY)
