"""From a recipe to a run: opens its data, finds its function, and hands both to `Run`.

A run directory keeps its recipe as `recipe.yaml`, with paths that start from there, so that it is a recipe itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from anyrig.errors import Stopped
from anyrig.locations import prepare_run_directory
from anyrig.topology.numeric import apply_numeric_settings, numeric_settings
from anyrig.train.recipe.data import Rows, load_data
from anyrig.train.recipe.model import model_builder
from anyrig.train.recipe.schema import BatchRules, CheckpointRules, Recipe

if TYPE_CHECKING:
    from anyrig.train.run import Run

RECIPE_FILE = "recipe.yaml"


def run_from_recipe(
    recipe: Recipe,
    run_dir: str | Path,
    devices: int | str | None = None,
    *,
    resume: str = "auto",
    allow_changes: Collection[str] = (),
    profile: int | None = None,
) -> Run:
    """Return the run that `recipe` describes, in `run_dir`; nothing is trained yet."""
    from anyrig.train.batch import Batch
    from anyrig.train.checkpoint import CheckpointSettings
    from anyrig.train.limits import Limits
    from anyrig.train.phases import Phase
    from anyrig.train.run import Run
    from anyrig.train.session import stored_numerics

    # The user's module imports Keras: what must be set before TensorFlow is loaded is set here.
    apply_numeric_settings(stored_numerics(run_dir) or numeric_settings())
    train, validation = load_rows(recipe)
    return Run(
        run_dir,
        model_builder(recipe),
        train=train,
        validation=validation,
        batch=Batch(**_given(recipe.batch)),
        epochs=recipe.epochs,
        phases=[Phase(**phase.model_dump()) for phase in recipe.phases or ()],
        init_from=recipe.init_from and recipe.base_dir / recipe.init_from,
        limits=Limits(**recipe.limits.model_dump()),
        seed=recipe.seed,
        devices=devices,
        checkpoint=CheckpointSettings(**_settings(recipe.checkpoint)),
        loggers=recipe.loggers,
        profile=profile,
        precision=recipe.precision,
        recipe=_compared(recipe),
        allow_changes=allow_changes,
        resume=resume,
        on_nonfinite=recipe.on_nonfinite,
        on_oom=recipe.on_oom,
    )


def train_recipe(run: Run, recipe: Recipe, *, verbose: int | str) -> None:
    """Train `run` to its end and keep `recipe` in its directory, also when a signal stops it."""
    path = prepare_run_directory(run.directory) / RECIPE_FILE
    text = recipe_text(recipe, run.directory)
    if not path.exists():
        path.write_text(text, encoding="utf-8")
    try:
        run.train(verbose=verbose)
    except Stopped:
        path.write_text(text, encoding="utf-8")
        raise
    path.write_text(text, encoding="utf-8")


def recipe_text(recipe: Recipe, folder: Path) -> str:
    """Return `recipe` as YAML for a file in `folder`: relative paths start from there instead."""

    def move(path: str) -> str:
        return path if Path(path).is_absolute() else os.path.relpath(recipe.base_dir / path, folder)

    moved = _with_paths(recipe, move)
    return yaml.safe_dump(_without_nothing(moved), sort_keys=False, allow_unicode=True)


def _compared(recipe: Recipe) -> dict[str, Any]:
    """Return what a run's recipe is compared by when it goes on: of a path the last name, wherever the recipe lies.

    What the files hold is compared by itself: rows and source code by their hashes.
    """
    return _with_paths(recipe, lambda path: Path(path).name)


def _with_paths(recipe: Recipe, change: Callable[[str], str]) -> dict[str, Any]:
    """Return the canonical recipe with every path changed."""
    changed = recipe.canonical()
    file, _, function = recipe.model.rpartition(":")
    changed["model"] = f"{change(file)}:{function}" if file.endswith(".py") else recipe.model
    changed["init_from"] = recipe.init_from and change(recipe.init_from)
    changed["data"] = {part: source and _moved(source, change) for part, source in changed["data"].items()}
    return changed


def load_rows(recipe: Recipe) -> tuple[Rows, Rows | None]:
    """Return the rows to train on and those to validate with, each (x, y, sample_weight)."""
    train = load_data(recipe.data.train, recipe.base_dir, key="data.train")
    if recipe.data.validation is None:
        return train, None
    return train, load_data(recipe.data.validation, recipe.base_dir, key="data.validation")


def count_rows(rows: Rows) -> int:
    """Return the number of rows."""
    x = rows[0]
    return len(next(iter(x.values())) if isinstance(x, dict) else x)


def _given(rules: BatchRules) -> dict[str, Any]:
    return rules.model_dump(exclude_none=True)


def _settings(rules: CheckpointRules) -> dict[str, Any]:
    return {**rules.model_dump(), "keep_last": rules.keep.last}


def _moved(source: dict[str, Any], move: Any) -> dict[str, Any]:
    arrays = source["arrays"]
    return {
        **source,
        "npz": source["npz"] and move(source["npz"]),
        "arrays": arrays and _each(arrays, move),
    }


def _each(value: Any, change: Any) -> Any:
    if isinstance(value, dict):
        return {name: _each(item, change) for name, item in value.items()}
    return None if value is None else change(value)


def _without_nothing(value: Any) -> Any:
    """Leave out the keys without a value, which mean the same when absent."""
    if not isinstance(value, dict):
        return value
    return {key: _without_nothing(item) for key, item in value.items() if item is not None}
