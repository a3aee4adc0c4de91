"""`anyrig evaluate`: loss and metrics of a model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyrig.cli import options, text
from anyrig.errors import UsageError
from anyrig.report import words

if TYPE_CHECKING:
    from anyrig.cli.models import Opened
    from anyrig.exchange.trust import Trust
    from anyrig.store.read import Checkpoint
    from anyrig.train.recipe.data import Rows
    from anyrig.train.recipe.schema import Recipe


@click.command("evaluate")
@click.argument("source")
@click.option(
    "--data",
    metavar="FILE.npz",
    type=click.Path(path_type=Path),
    help="x and y: arrays of these names, or named as the model's inputs and outputs. Default: the recipe's validation "
    "data.",
)
@options.into
@options.rules
@options.trust
@options.devices
@options.as_json
@options.recipe_of_source
@options.debug
def command(
    source: str,
    data: Path | None,
    into: str | None,
    rules: Path | None,
    trust: Trust,
    devices: str | None,
    as_json: bool,
    recipe: str | None,
) -> None:
    """Compute loss and metrics of a run, a checkpoint or a model file.

    SOURCE is a run directory (its newest checkpoint is used), a checkpoint, or a model in any format that `anyrig
    inspect` knows. Loss and metrics are those of the recipe; a model file has its own. The numbers do not depend on the
    devices.
    """
    from anyrig.cli.models import is_run

    if into is None and rules is None and is_run(source):
        metrics = _of_run(source, data, devices, recipe)
    else:
        metrics = _of_file(source, data, devices, recipe, trust, into, rules)
    click.echo(json.dumps(metrics) if as_json else text.facts([(name, words.value(v)) for name, v in metrics.items()]))


def _of_run(source: str, data: Path | None, devices: str | None, recipe: str | None) -> dict[str, Any]:
    from anyrig.cli.models import open_for_use
    from anyrig.topology.devices import configure
    from anyrig.topology.numeric import apply_numeric_settings
    from anyrig.train.recipe.model import compile_model
    from anyrig.train.recipe.source import open_sound

    checkpoint, notes = open_sound(source)
    rules = _recipe(checkpoint, recipe)
    for note in notes:
        click.echo(note, err=True)
    apply_numeric_settings(checkpoint.record.get("numeric", {}))
    configure(devices)
    opened = open_for_use(checkpoint, None if recipe is None else rules)
    if rules.compile is not None:
        compile_model(opened.model, rules.compile)
    return _evaluate(opened, checkpoint.progress, _rows(rules, data, opened), devices)


def _of_file(
    source: str,
    data: Path | None,
    devices: str | None,
    recipe: str | None,
    trust: Trust,
    into: str | None,
    mapping: Path | None,
) -> dict[str, Any]:
    from anyrig.cli.inputs import read_rows
    from anyrig.cli.models import open_file
    from anyrig.topology.devices import configure
    from anyrig.train.recipe.model import compile_model
    from anyrig.train.recipe.schema import load_recipe

    configure(devices)
    rules = load_recipe(recipe) if recipe else None
    builds = rules is not None and trust != "program" and _holds_weights_alone(Path(source))
    opened = open_file(source, trust, into, rules if builds else None, mapping)
    for note in opened.notes:
        click.echo(note, err=True)
    if rules is not None and rules.compile is not None and hasattr(opened.model, "compile"):
        compile_model(opened.model, rules.compile)
    if not getattr(opened.model, "compiled", False):
        raise UsageError(
            "ANY-CLI-016",
            f"{source} does not say which loss and metrics it was trained with",
            hint="name a recipe with compile and data: --recipe RECIPE; or see its outputs: anyrig predict",
        )
    if rules is not None:
        return _evaluate(opened, {}, _rows(rules, data, opened), devices)
    if data is None:
        raise UsageError("ANY-CLI-011", f"{source} comes without data", hint="give data: --data FILE.npz")
    outputs = list(getattr(opened.model, "output_names", ()))
    return _evaluate(opened, {}, read_rows(data, opened.inputs, [outputs]), devices)


def _holds_weights_alone(source: Path) -> bool:
    from anyrig.formats.sniff import read_any

    return (
        not os.path.lexists(source) or read_any(source).config is None
    )  # a TensorFlow checkpoint is a prefix of names


def _evaluate(opened: Opened, settled: Mapping[str, Any], rows: Rows, devices: str | None) -> dict[str, Any]:
    from anyrig.cli.models import fitting
    from anyrig.train.batch import Batch
    from anyrig.train.rig import Rig

    batch = Batch(global_size=settled.get("global_size") or 32, virtual_replicas=settled.get("virtual_replicas"))
    x, y, weight = rows
    rig = Rig(devices=devices)
    with fitting(opened, x):
        found = rig.evaluate(opened.model, x, y, sample_weight=weight, batch=batch, verbose=0, return_dict=True)
    return dict(found)


def _recipe(checkpoint: Checkpoint, named: str | None) -> Recipe:
    """Return the recipe that the user named, else the run's own, which must say how to compile."""
    from anyrig.train.recipe.schema import load_recipe

    if named is not None:
        return load_recipe(named)
    path = checkpoint.path.resolve().parent.parent / "recipe.yaml"
    if not path.is_file():
        in_run = checkpoint.path.resolve().parent.name == "checkpoints"
        why = (
            "this run was started from Python, so it has no recipe.yaml"
            if in_run
            else f"{checkpoint.path} is not in a run directory with a recipe.yaml"
        )
        raise UsageError(
            "ANY-CLI-009",
            f"{why}: its loss and metrics are not known",
            hint="write a recipe with its model, compile and data, and name it: --recipe RECIPE",
        )
    recipe = load_recipe(path)
    if recipe.compile is None:
        raise UsageError(
            "ANY-CLI-010",
            f"loss and metrics are set by the code of {_from_here(recipe)}, which is not run by itself",
            hint="name the recipe, whose code is then run: --recipe RECIPE",
        )
    return recipe


def _from_here(recipe: Recipe) -> str:
    """Return the recipe's model with a path that starts from the current directory."""
    file, _, function = recipe.model.rpartition(":")
    return f"{os.path.relpath(recipe.base_dir / file)}:{function}" if file.endswith(".py") else recipe.model


def _rows(recipe: Recipe, data: Path | None, opened: Opened) -> Rows:
    from anyrig.cli.inputs import read_rows
    from anyrig.train.recipe.data import load_data

    if data is not None:
        return read_rows(data, opened.inputs, _labels(recipe, opened.model))
    if recipe.data.validation is None:
        raise UsageError("ANY-CLI-011", "the recipe has no validation data", hint="give data: --data FILE.npz")
    return load_data(recipe.data.validation, recipe.base_dir, key="data.validation")


def _labels(recipe: Recipe, model: Any) -> list[list[str]]:
    """Return what the labels may be called beside y: as in the recipe, or as the model's outputs are."""
    files = recipe.data.train.arrays
    y = None if files else recipe.data.train.y
    return [[y] if isinstance(y, str) else list(y or ()), list(getattr(model, "output_names", ()))]
