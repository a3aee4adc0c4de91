"""A fork: a new run that begins with the state of an old one, and from there on makes other numbers.

V and precision never change within a run, since its numbers depend on them. A fork is how they change: a run of its
own, whose checkpoint says where it came from. No TensorFlow is needed, and the old run is only read.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyrig.errors import AnyrigError, UsageError
from anyrig.locations import on_this_machine, prepare_run_directory, refuse_url
from anyrig.store.commit import committed_steps
from anyrig.store.read import Checkpoint
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint
from anyrig.topology.plan import PRECISIONS, count
from anyrig.train.recipe.diff import hash_json
from anyrig.train.recipe.run import RECIPE_FILE, recipe_text
from anyrig.train.recipe.schema import load_recipe
from anyrig.train.recipe.source import open_sound

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Forked:
    """The new checkpoint, and in sentences what it came from and what changes in the numbers."""

    checkpoint: Checkpoint
    messages: tuple[str, ...]


def fork(
    source: str | os.PathLike[str],
    new: str | os.PathLike[str],
    *,
    virtual_replicas: int | None = None,
    precision: str | None = None,
) -> Forked:
    """Make the run directory `new` with the newest sound state of `source` (a run, or one checkpoint of it).

    `virtual_replicas` and `precision` replace those of the old run. Raises UsageError if `new` holds a run already.
    """
    refuse_url(new)
    stored, passed_over, held = _opened_and_held(on_this_machine(source))
    _check(stored, virtual_replicas, precision)
    directory = prepare_run_directory(new)
    checkpoints = directory / "checkpoints"
    if committed_steps(checkpoints):
        raise UsageError("ANY-RUN-036", f"{directory} holds a run already", hint="give a new directory")
    changed = {"virtual_replicas": virtual_replicas, "precision": precision}
    changed = {name: value for name, value in changed.items() if value is not None}
    origin = {"checkpoint": str(stored.path), "step": stored.step, "state_digest": stored.state_digest}
    made = write_checkpoint(
        checkpoints,
        stored.step,
        held.tensors,
        progress={**stored.progress, **changed, "forked_from": {**origin, "changed": changed}},
        documents=held.documents,
        assets=held.assets,
        record={**stored.record, "run": _identity(stored.record["run"], changed)},
    )
    _copy_beside(stored.path.parent.parent, directory, changed)
    where = f"forked from {stored.path} at step {stored.step:,}"
    return Forked(made, (*passed_over, where, *_what_changes(stored.progress, changed)))


@dataclass(frozen=True, slots=True)
class _Held:
    """All that a checkpoint holds, in memory or mapped: it stays readable when the checkpoint is removed."""

    tensors: list[StoredTensor]
    documents: dict[str, bytes]
    assets: dict[str, bytes]


def _opened_and_held(source: Path) -> tuple[Checkpoint, list[str], _Held]:
    """Open what `source` means; where a run that goes on removes it meanwhile, its next one."""
    for _ in range(_ATTEMPTS):
        stored = None
        try:
            stored, passed_over = open_sound(source)
            return stored, passed_over, _hold(stored)
        except (AnyrigError, FileNotFoundError) as error:
            missing = isinstance(error, FileNotFoundError) or isinstance(error.__cause__, FileNotFoundError)
            if not missing if stored is None else stored.path.exists():
                raise
    raise UsageError(
        "ANY-RUN-045",
        f"{source} removes its checkpoints faster than they can be read",
        hint="pin one first: anyrig pin RUN STEP, then fork that checkpoint",
    )


def _hold(stored: Checkpoint) -> _Held:
    return _Held(
        [_copied(stored, name) for name in stored.names],
        {name: stored.document(name) for name in stored.documents},
        {path: stored.asset(path) for path in stored.assets},
    )


def _check(stored: Checkpoint, virtual_replicas: int | None, precision: str | None) -> None:
    problem = None
    if "run" not in stored.record or "position" not in stored.progress:
        problem = f"{stored.path} is no checkpoint of a run"
    elif virtual_replicas is not None and virtual_replicas < 1:
        problem = f"virtual_replicas: expected 1 or more, found {virtual_replicas}"
    elif virtual_replicas is not None and stored.progress["virtual_replicas"] is None:
        problem = "the run's model has its own train_step, which has no virtual replicas"
    elif precision is not None and precision not in PRECISIONS[1:]:
        problem = f"precision: expected one of {', '.join(PRECISIONS[1:])}, found {precision}"
    if problem:
        raise UsageError("ANY-RUN-037", f"fork: {problem}", hint="see: anyrig fork --help")


def _copied(stored: Checkpoint, name: str) -> StoredTensor:
    entry = stored.entry(name)
    return StoredTensor(name=name, array=stored.tensor(name), aliases=entry.aliases, place=entry.place)


def _identity(run: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """Return what the new run is compared with when it goes on: the old one, but for what is changed."""
    recipe = _changed_recipe(run["recipe"], changed)
    compared = {**run, "recipe": recipe, "recipe_hash": hash_json(recipe)}
    return {**compared, "precision": None} if "precision" in changed else compared


def _changed_recipe(recipe: dict[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    result = dict(recipe)
    if "virtual_replicas" in changed:
        result["batch"] = {**result.get("batch", {}), "virtual_replicas": changed["virtual_replicas"]}
    if "precision" in changed and "precision" in result:
        result["precision"] = changed["precision"]
    return result


def _copy_beside(old: Path, new: Path, changed: dict[str, Any]) -> None:
    """Give the new run the old one's recipe, changed, and the numeric settings it was started with."""
    if (old / RECIPE_FILE).exists():
        recipe = load_recipe(old / RECIPE_FILE)
        batch = recipe.batch.model_copy(update={k: v for k, v in changed.items() if k == "virtual_replicas"})
        precision = changed.get("precision", recipe.precision)
        moved = recipe.model_copy(update={"batch": batch, "precision": precision})
        (new / RECIPE_FILE).write_text(recipe_text(moved, new), encoding="utf-8")
    if (old / "environment.json").exists():
        shutil.copyfile(old / "environment.json", new / "environment.json")


def _what_changes(progress: dict[str, Any], changed: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in changed.items():
        before = progress.get(name)
        lines.append(f"{name}: {before} -> {value}" if before != value else f"{name}: {value}, as before")
    if changed.get("virtual_replicas") not in (None, progress.get("virtual_replicas")):
        devices = count(changed["virtual_replicas"], "device")
        lines.append(
            f"from here on sums are made in another order and masks are drawn anew; the run can use at most {devices}"
        )
    if changed.get("precision") not in (None, progress.get("precision")):
        lines.append("from here on the model computes in the new precision; weights and optimizer are carried over")
    return lines or ["nothing changes in the numbers: the new run goes on as the old one would"]
