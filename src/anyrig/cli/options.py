"""Options that several commands share, so that they mean the same everywhere."""

from __future__ import annotations

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
