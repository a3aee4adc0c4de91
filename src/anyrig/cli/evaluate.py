"""`anyrig evaluate`: loss and metrics of a run's model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyrig.cli import options, text
from anyrig.errors import UsageError

if TYPE_CHECKING:
    from anyrig.store.read import Checkpoint
    from anyrig.train.recipe.data import Rows
    from anyrig.train.recipe.schema import Recipe


@click.command("evaluate")
@click.argument("source")
@click.option(
    "--data",
    metavar="FILE.npz",
    type=click.Path(path_type=Path),
    help="Arrays x and y. Default: the recipe's validation data.",
)
@options.devices
@options.as_json
@options.recipe_of_source
def command(source: str, data: Path | None, devices: str | None, as_json: bool, recipe: str | None) -> None:
    """Compute loss and metrics of a run or checkpoint.

    SOURCE is a run directory (its newest checkpoint is used) or a checkpoint. Loss and metrics are those of the run's
    recipe. The numbers do not depend on the devices.
    """
    from anyrig.topology.numeric import apply_numeric_settings
    from anyrig.train.recipe.source import open_sound

    checkpoint, notes = open_sound(source)
    rules = _recipe(checkpoint, recipe)
    rows = _rows(rules, data)
    for note in notes:
        click.echo(note, err=True)
    apply_numeric_settings(checkpoint.record.get("numeric", {}))
    metrics = _evaluate(checkpoint, rules, rows, devices, trusted=recipe is not None)
    click.echo(json.dumps(metrics) if as_json else text.facts([(name, text.value(v)) for name, v in metrics.items()]))


def _evaluate(
    checkpoint: Checkpoint, recipe: Recipe, rows: Rows, devices: str | None, *, trusted: bool
) -> dict[str, Any]:
    """Return the metrics; `trusted` means that the user named the recipe, so that its code may be run."""
    from anyrig.topology.devices import configure
    from anyrig.train.batch import Batch
    from anyrig.train.recipe.model import compile_model
    from anyrig.train.recipe.source import open_model
    from anyrig.train.rig import Rig

    configure(devices)
    model = open_model(checkpoint, recipe if trusted else None)
    if recipe.compile is not None:
        compile_model(model, recipe.compile)
    settled = checkpoint.progress
    batch = Batch(global_size=settled.get("global_size") or 32, virtual_replicas=settled.get("virtual_replicas"))
    x, y, weight = rows
    found = Rig(devices=devices).evaluate(model, x, y, sample_weight=weight, batch=batch, verbose=0, return_dict=True)
    return dict(found)


def _recipe(checkpoint: Checkpoint, named: str | None) -> Recipe:
    """Return the recipe that the user named, else the run's own, which must say how to compile."""
    from anyrig.train.recipe.schema import load_recipe

    if named is not None:
        return load_recipe(named)
    path = checkpoint.path.resolve().parent.parent / "recipe.yaml"
    if not path.is_file():
        raise UsageError(
            "ANY-CLI-009",
            f"{checkpoint.path} is not in a run directory with a recipe.yaml: its loss and metrics are not known",
            hint="name the recipe: --recipe RECIPE",
        )
    recipe = load_recipe(path)
    if recipe.compile is None:
        raise UsageError(
            "ANY-CLI-010",
            f"loss and metrics are set by the code of {recipe.model}, which is not run by itself",
            hint="name the recipe, whose code is then run: --recipe RECIPE",
        )
    return recipe


def _rows(recipe: Recipe, data: Path | None) -> Rows:
    from anyrig.train.recipe.data import load_data
    from anyrig.train.recipe.schema import DataSource

    if data is not None:
        return load_data(DataSource.model_validate({"npz": str(data)}), Path(), key="--data")
    if recipe.data.validation is None:
        raise UsageError("ANY-CLI-011", "the recipe has no validation data", hint="give data: --data FILE.npz")
    return load_data(recipe.data.validation, recipe.base_dir, key="data.validation")
