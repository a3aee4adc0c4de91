"""Options that several commands share, so that they mean the same everywhere."""

from __future__ import annotations

from pathlib import Path

import click

devices = click.option(
    "--devices",
    metavar="N|cpu|gpu",
    help="Devices to use. Default: all GPUs, or else one CPU. N on a machine without GPU: N logical CPUs.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
recipe = click.argument("recipe", type=click.Path())
overrides = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
recipe_of_source = click.option(
    "--recipe",
    metavar="RECIPE",
    help="The recipe that builds the model; its code is run. Needed for models with code of their own.",
)

debug = click.option("--debug", is_flag=True, expose_value=False, help="Show the whole traceback of an error.")

into = click.option(
    "--into",
    metavar="FILE.py:FUNCTION",
    help="A function that builds the model for weights that come without one; its code is run.",
)
rules = click.option(
    "--rules",
    type=click.Path(path_type=Path),
    metavar="FILE.yaml",
    help="Names and layouts for --into, as anyrig explain shows them.",
)
trust = click.option(
    "--trust",
    type=click.Choice(["arrays", "known", "code", "program"]),
    default="known",
    show_default=True,
    help="What of the file may be run: nothing, Keras's own classes, code that it names, programs in it.",
)
