"""`anyrig plan`: what `train` would do, without doing it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from anyrig.cli import options
from anyrig.sizes import size

if TYPE_CHECKING:
    from anyrig.train.memory import DeviceMemory
    from anyrig.train.recipe.plan import RunPlan


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
    from anyrig.train.step.placement import variables_on

    recipe = load_recipe(path, overrides)
    train, validation = load_rows(recipe)
    names = configure(devices)
    precision = settle(recipe.precision, names)
    with variables_on(names), policy_in_force(precision.policy):
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
    click.echo("memory\n" + "\n".join(f"  {label:<18} {value}" for label, value in _memory(model, plan, train)))


def _model_facts(model: Any) -> list[tuple[str, str]]:
    nbytes = sum(math.prod(variable.shape) * variable.value.dtype.size for variable in model.weights)
    return [
        ("parameters", f"{model.count_params():,} ({size(nbytes)})"),
        ("optimizer", type(model.optimizer).__name__),
    ]


def _memory(model: Any, plan: RunPlan, rows: Any) -> Iterator[tuple[str, str]]:
    """Yield what each device holds during a step: the sum, and its parts."""
    from anyrig.topology.plan import short_name
    from anyrig.train.memory import estimate
    from anyrig.train.step.binding import bind_to_train
    from anyrig.train.step.owner import OwnerEngine
    from anyrig.train.step.placement import variables_on
    from anyrig.train.step.strategy import runs_whole

    if runs_whole(model):
        yield "estimate", "none: the model has a training step of its own"
        return
    with variables_on(plan.devices.devices):
        bind_to_train(model, rows, plan.devices.virtual_replicas)
    for found in estimate(OwnerEngine(plan.devices, model, 0), rows, plan.global_size):
        yield short_name(found.device), describe_memory(found)
    yield "", "an estimate: activations are those of one micro-batch, traced; scratch memory is not seen"


def describe_memory(found: DeviceMemory) -> str:
    """Return the sum and the parts, and what to do where the device is known to have less."""
    parts = ("parameters", "optimizer", "gradients", "activations")
    held = ", ".join(f"{part} {size(getattr(found, part))}" for part in parts)
    line = f"about {size(found.total)}: {held}"
    if found.available is not None and found.total > found.available:
        line += f"; it has {size(found.available)}: take more virtual replicas, a smaller batch or more devices"
    return line
