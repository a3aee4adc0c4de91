"""`anyrig plan`: what `train` would do, without doing it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import click

from anyrig.cli import options, text


@click.command("plan")
@options.recipe
@options.overrides
@options.devices
@options.debug
def command(recipe: str, overrides: tuple[str, ...], devices: str | None) -> None:
    """Show what train would do: devices, batches, checkpoints.

    Opens the data and builds the model, but trains nothing and writes nothing.
    """
    show_plan(recipe, overrides, devices)


def show_plan(path: str, overrides: Sequence[str], devices: str | None) -> None:
    """Print the plan of the recipe at `path`."""
    from anyrig.topology.devices import configure
    from anyrig.train.precision import policy_in_force, precision_of, settle
    from anyrig.train.recipe.model import model_builder
    from anyrig.train.recipe.plan import describe_run, plan_run
    from anyrig.train.recipe.run import count_rows, load_rows
    from anyrig.train.recipe.schema import load_recipe
    from anyrig.train.recipe.specs import build_for, inputs_of_rows

    recipe = load_recipe(path, overrides)
    train, validation = load_rows(recipe)
    names = configure(devices)
    precision = settle(recipe.precision, names)
    with policy_in_force(precision.policy):
        model = model_builder(recipe)()
    build_for(model, inputs_of_rows(train[0]), name=recipe.model)
    plan = plan_run(
        recipe,
        names,
        rows=count_rows(train),
        validation_rows=None if validation is None else count_rows(validation),
        requested=devices,
        precision=precision_of(model, precision),
    )
    click.echo(describe_run(plan))
    click.echo("model\n" + "\n".join(f"  {label:<18} {value}" for label, value in _model_facts(model)))


def _model_facts(model: Any) -> list[tuple[str, str]]:
    nbytes = sum(math.prod(variable.shape) * variable.value.dtype.size for variable in model.weights)
    return [
        ("parameters", f"{model.count_params():,} ({text.size(nbytes)})"),
        ("optimizer", type(model.optimizer).__name__),
    ]
