"""Opens the model of a run or checkpoint, to predict or evaluate with it.

Nothing of the sender's code is run: the model is made from the configuration in the checkpoint, from Keras's own
classes only. A model of the user's own classes needs the recipe, which the user names and whose code is then run.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from anyrig.errors import AnyrigError, UsageError
from anyrig.locations import checkpoints_folder, find_checkpoint, resolve
from anyrig.store.commit import newest_sound
from anyrig.store.read import Checkpoint, open_checkpoint, verify_checkpoint
from anyrig.train.recipe.data import load_data
from anyrig.train.recipe.model import model_builder
from anyrig.train.recipe.schema import Recipe
from anyrig.train.recipe.specs import build_for, first_line, inputs_of_rows, recorded_inputs

_DOCUMENT = "model.json"
_DIFFERENT = "ANY-STATE-005"
_SHOWN = 10  # of the differing names
_RIGHT_RECIPE = "name the recipe that the checkpoint was trained with (--recipe), or correct the model's call()"
_NAME_RECIPE = "name the recipe that builds it, whose code is then run: --recipe RECIPE"


def open_sound(source: str | Path) -> tuple[Checkpoint, list[str]]:
    """Return the checkpoint that `source` (a run or a checkpoint) means, every byte checked.

    Of a run, the newest sound one; the second value tells what was newer and could not be used.
    """
    location = resolve(source)
    if location.kind in ("run", "checkpoints"):
        found, rejected = newest_sound(checkpoints_folder(location))
        if found is not None:
            return found, [f"{item.name} was passed over: {item.reason}" for item in rejected]
    checkpoint = open_checkpoint(find_checkpoint(source))
    damage = verify_checkpoint(checkpoint)
    if damage:
        raise AnyrigError(
            "ANY-RECIPE-020",
            f"{checkpoint.path} is damaged, and is not used: {damage[0]}",
            hint="use another checkpoint of the run (`anyrig ls RUN`), or copy this one again",
        )
    return checkpoint, []


def open_model(checkpoint: Checkpoint, recipe: Recipe | None) -> Any:
    """Return the Keras model with the checkpoint's weights: from its configuration, or built by `recipe`.

    A model that waits for its first data is built for the inputs that the checkpoint records, else for the recipe's.
    """
    model = _built(checkpoint, recipe) if recipe is not None else _from_configuration(checkpoint)
    if not all(layer.built for layer in model._flatten_layers()):
        named = recipe.model if recipe else model.name
        build_for(model, _inputs(checkpoint, recipe, model.name), name=named, hint=_RIGHT_RECIPE)
    from anyrig.state.restore import restore

    try:
        restore(checkpoint, model, weights_only=True)
    except AnyrigError as error:
        if error.code != _DIFFERENT:
            raise
        raise _in_short(error, checkpoint, model, recipe) from error
    return model


def _built(checkpoint: Checkpoint, recipe: Recipe) -> Any:
    """Return the recipe's model in the precision of the checkpoint."""
    from anyrig.train.precision import policy_in_force

    with policy_in_force(checkpoint.progress.get("precision", "float32")):
        return model_builder(recipe)()


def _inputs(checkpoint: Checkpoint, recipe: Recipe | None, name: str) -> Any:
    recorded = recorded_inputs(checkpoint.record)
    if recorded is not None:
        return recorded
    if recipe is not None:
        return inputs_of_rows(load_data(recipe.data.train, recipe.base_dir)[0])
    raise UsageError(
        "ANY-RECIPE-021",
        f"{name} has no weights before it is called: neither its configuration nor {checkpoint.path} says what its "
        "inputs are",
        hint=_NAME_RECIPE,
    )


def _in_short(error: AnyrigError, checkpoint: Checkpoint, model: Any, recipe: Recipe | None) -> AnyrigError:
    """Return the error with the first differences only, and with the question whether this is the right recipe."""
    from anyrig.state.walk import model_variables

    wanted = {item.name: tuple(item.variable.shape) for item in model_variables(model)}
    stored = [entry for entry in checkpoint.manifest.tensors if entry.name.startswith("model/")]
    shared = sum(wanted.get(entry.name) == tuple(entry.shape) for entry in stored)
    head, *lines = error.message.splitlines()
    pairs = [line for line in lines if line.startswith(("  stored", "  wanted"))]
    hidden = sum(int(number) for number in re.findall(r"^  \.\.\. and (\d+) more$", error.message, re.MULTILINE))
    more = len(pairs) // 2 + hidden - _SHOWN
    text = "\n".join([head, *pairs[: 2 * _SHOWN], *([f"  ... and {more} more"] if more > 0 else [])])
    if recipe is not None and 2 * shared < len(stored):
        question = f"shares {shared} of {len(stored)} weights with the checkpoint: is it the right recipe?"
        text = f"the model of {recipe.model} {question}\n{text}"
    return AnyrigError(error.code, text, hint=error.hint)


def _from_configuration(checkpoint: Checkpoint) -> Any:
    from anyrig.exchange.trust import findings

    config = json.loads(checkpoint.document(_DOCUMENT))
    if config.get("config") is None:
        reason = config.get("reason", "it has no configuration")
        raise UsageError("ANY-RECIPE-022", f"{checkpoint.path}: the model cannot be made: {reason}", hint=_NAME_RECIPE)
    foreign = sorted({finding.what for finding in findings(config, path=checkpoint.path, exact=True)})
    if foreign:
        raise UsageError(
            "ANY-RECIPE-022",
            f"{checkpoint.path}: the model is made of code of its own: {', '.join(foreign)}",
            hint=_NAME_RECIPE,
        )
    import keras

    try:
        return keras.saving.deserialize_keras_object(config, safe_mode=True)
    except Exception as error:
        raise UsageError(
            "ANY-RECIPE-022",
            f"{checkpoint.path}: the model cannot be made from its configuration: {first_line(error)}",
            hint=_NAME_RECIPE,
        ) from error
