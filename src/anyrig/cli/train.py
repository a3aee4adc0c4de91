"""`anyrig train`: starts the run that a recipe describes, or goes on with it."""

from __future__ import annotations

from pathlib import Path

import click

from anyrig.cli import options, text
from anyrig.report import words


@click.command("train")
@options.recipe
@options.overrides
@click.option(
    "--run", metavar="DIR", help="The run directory, or its URL. Default: runs/NAME, after the recipe's file."
)
@options.devices
@click.option(
    "--resume",
    type=click.Choice(["auto", "never", "must"]),
    default="auto",
    show_default=True,
    help="auto: go on where there is a checkpoint; never: refuse a directory with a run; must: refuse one without.",
)
@click.option(
    "--allow-changes",
    metavar="LIST",
    default="",
    help="What may differ from the run that is resumed: any of data,model,optimizer,precision,recipe.",
)
@click.option("--profile", metavar="N", type=int, help="Write a TensorFlow profile of N steps into RUN/tensorboard.")
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@options.debug
def command(
    recipe: str,
    overrides: tuple[str, ...],
    run: str | None,
    devices: str | None,
    resume: str,
    allow_changes: str,
    profile: int | None,
    dry_run: bool,
) -> None:
    """Train what a recipe describes; start, or go on from the newest checkpoint.

    KEY=VALUE overrides a key of the recipe, e.g. batch.global_size=64. SIGTERM or Ctrl-C finishes the step, saves and
    exits 75; the same command then goes on, on any number of devices.

    docs/recipe.md describes every key of a recipe. An example, whose build_model in cats.py returns a keras.Model:

    \b
      model: cats.py:build_model
      data: {train: {npz: train.npz, x: x, y: y}, validation: {npz: test.npz, x: x, y: y}}
      batch: {global_size: 64, virtual_replicas: 4}
      epochs: 10
      compile: {optimizer: adam, loss: sparse_categorical_crossentropy, metrics: [accuracy]}
      checkpoint: {every: 1 epoch, keep_last: 3}
    """
    if dry_run:
        from anyrig.cli.plan import show_plan

        show_plan(recipe, overrides, devices)
        return
    from anyrig.train.recipe.run import run_from_recipe, train_recipe
    from anyrig.train.recipe.schema import load_recipe

    loaded = load_recipe(recipe, overrides)
    directory = run or Path("runs") / Path(recipe).stem
    allowed = [name for name in allow_changes.split(",") if name]
    job = run_from_recipe(loaded, directory, devices, resume=resume, allow_changes=allowed, profile=profile)
    train_recipe(job, loaded, verbose="auto")
    _echo_end(job.directory, directory)


def _echo_end(run: Path, given: str | Path) -> None:
    from anyrig.locations import find_checkpoint
    from anyrig.store.read import open_checkpoint
    from anyrig.store.remote.url import cleaned, is_url

    checkpoint = open_checkpoint(find_checkpoint(run))
    position, epochs = checkpoint.progress["position"], checkpoint.progress["epochs"]
    ended = checkpoint.progress["stop_training"] or position["epoch"] >= epochs
    facts = [
        ("done" if ended else "saved", cleaned(str(given)) if is_url(given) else str(run)),
        ("step", text.step(checkpoint.step, checkpoint.progress)),
        ("metrics", words.values(checkpoint.progress.get("metrics", {}))),
        ("state digest", checkpoint.state_digest),
    ]
    click.echo(text.facts([(label, value) for label, value in facts if value]))
