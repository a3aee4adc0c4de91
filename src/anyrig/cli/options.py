"""Options that several commands share, so that they mean the same everywhere, and what those commands do with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


def open_source(source: str, recipe_path: str | None) -> tuple[Any, list[str]]:
    """Return the model of a run or checkpoint, and what the user should know about how it was found."""
    from anyrig.topology.numeric import apply_numeric_settings
    from anyrig.train.recipe.schema import load_recipe
    from anyrig.train.recipe.source import open_model, open_sound

    checkpoint, notes = open_sound(source)
    apply_numeric_settings(checkpoint.record.get("numeric", {}))
    return open_model(checkpoint, load_recipe(recipe_path) if recipe_path else None), notes


def quietly(predict: Callable[..., Any], x: Any) -> Any:
    """Return the model's outputs for `x`; what does not fit the model is an error in one line."""
    from anyrig.errors import UsageError

    try:
        return predict(x, verbose=0)
    except (ValueError, TypeError, KeyError) as error:
        text = " ".join(str(error).split())
        raise UsageError(
            "ANY-CLI-012",
            f"the input does not fit the model: {text[:300]}",
            hint="give rows of the model's input shape",
        ) from error
