"""`anyrig tune lr`: the learning-rate range test of a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anyrig.cli import options

if TYPE_CHECKING:
    from anyrig.train.recipe.schema import Recipe
    from anyrig.train.tune import RateTest


@click.group("tune")
@options.debug
def command() -> None:
    """Find a setting by a short test, e.g. the learning rate."""


@command.command("lr")
@options.recipe
@options.overrides
@options.devices
@click.option("--min", "lowest", type=float, default=1e-7, show_default=True, help="The first learning rate.")
@click.option("--max", "highest", type=float, default=10.0, show_default=True, help="The last learning rate.")
@click.option("--steps", type=int, default=100, show_default=True, help="Steps from the first to the last.")
@click.option(
    "--plot", metavar="FILE", help="The plot, .png or .svg. Default: NAME-lr.png, after the recipe; none with --json."
)
@options.as_json
@options.debug
def lr(
    recipe: str,
    overrides: tuple[str, ...],
    devices: str | None,
    lowest: float,
    highest: float,
    steps: int,
    plot: str | None,
    as_json: bool,
) -> None:
    """Train while the learning rate rises; suggest the one to begin with.

    The learning-rate range test (Smith 2015): a model of the recipe is trained for a few steps, each with a higher
    learning rate, until the loss diverges, and is thrown away. No run directory is read or written.
    """
    from anyrig.report.plot import plot_rates, require_matplotlib
    from anyrig.train.recipe.schema import load_recipe

    loaded = load_recipe(recipe, overrides)
    picture = Path(plot) if plot else None if as_json else Path(f"{Path(recipe).stem}-lr.png")
    if picture is not None:
        require_matplotlib()
    test = _test(loaded, devices, lowest, highest, steps)
    if picture is not None:
        marks = {"steepest fall": test.steepest, "lowest loss": test.lowest, "suggested": test.suggested}
        plot_rates(picture, test.rates, test.losses, test.smoothed, marks)
    if as_json:
        click.echo(json.dumps({**test.as_json(), "plot": picture and str(picture)}))
        return
    click.echo(str(test))
    click.echo(f"plot             {picture}\n{_next(loaded, recipe, test.suggested)}".rstrip())


def _test(recipe: Recipe, devices: str | None, lowest: float, highest: float, steps: int) -> RateTest:
    from anyrig.topology.numeric import apply_numeric_settings, numeric_settings
    from anyrig.train.batch import Batch
    from anyrig.train.recipe.model import model_builder
    from anyrig.train.recipe.run import load_rows
    from anyrig.train.rig import Rig
    from anyrig.train.tune import tune_lr

    apply_numeric_settings(numeric_settings())  # before the user's module imports Keras
    (x, y, weight), _ = load_rows(recipe)
    build = model_builder(recipe)
    rig = Rig(devices, precision=recipe.precision, seed=recipe.seed)
    batch = Batch(**recipe.batch.model_dump(exclude_none=True))
    return tune_lr(rig, build, x, y, sample_weight=weight, batch=batch, lowest=lowest, highest=highest, steps=steps)


def _next(recipe: Recipe, path: str, suggested: float | None) -> str:
    """Say how to set the learning rate."""
    if suggested is None:
        return ""
    if recipe.compile is None:
        return f"to use it        learning_rate={suggested:g} in the optimizer that {recipe.model} compiles with"
    optimizer = recipe.compile.optimizer
    name = optimizer if isinstance(optimizer, str) else next(iter(optimizer))
    return f"to use it        anyrig train {path} compile.optimizer.{name}.learning_rate={suggested:g}"
