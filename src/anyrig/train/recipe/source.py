"""Opens the model of a run or checkpoint, to predict or evaluate with it.

Nothing of the sender's code is run: the model is made from the configuration in the checkpoint, from Keras's own
classes only. A model of the user's own classes needs the recipe, which the user names and whose code is then run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from anyrig.errors import AnyrigError, UsageError
from anyrig.locations import checkpoints_folder, find_checkpoint, resolve
from anyrig.store.commit import newest_sound
from anyrig.store.read import Checkpoint, open_checkpoint, verify_checkpoint
from anyrig.train.recipe.model import model_builder
from anyrig.train.recipe.schema import Recipe

_DOCUMENT = "model.json"
# Where Keras keeps what a configuration may name; `keras.layers.Lambda` holds code and is refused by name.
_MODULES = (
    *("keras", "keras.activations", "keras.constraints", "keras.dtype_policies", "keras.initializers", "keras.layers"),
    *("keras.models", "keras.random", "keras.regularizers", "keras.src.models", "builtins"),
)
_REFUSED = ("Lambda", "TFSMLayer", "TorchModuleWrapper", "JaxLayer", "FlaxLayer", "__lambda__")
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
    """Return the Keras model with the checkpoint's weights: from its configuration, or built by `recipe`."""
    model = model_builder(recipe)() if recipe is not None else _from_configuration(checkpoint)
    from anyrig.state.restore import restore

    if not model.built:
        raise UsageError(
            "ANY-RECIPE-021",
            f"{model.name} has no weights before it is called: its configuration does not say what its inputs are",
            hint="start the model with keras.Input, or call it once in the function that builds it",
        )
    restore(checkpoint, model, weights_only=True)
    return model


def _from_configuration(checkpoint: Checkpoint) -> Any:
    config = json.loads(checkpoint.document(_DOCUMENT))
    if config.get("config") is None:
        reason = config.get("reason", "it has no configuration")
        raise UsageError("ANY-RECIPE-022", f"{checkpoint.path}: the model cannot be made: {reason}", hint=_NAME_RECIPE)
    foreign = sorted(set(_foreign(config)))
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
        text = str(error).strip().partition("\n")[0]
        raise UsageError(
            "ANY-RECIPE-022",
            f"{checkpoint.path}: the model cannot be made from its configuration: {text}",
            hint=_NAME_RECIPE,
        ) from error


def _foreign(config: Any) -> Iterator[str]:
    """Yield the names of what is not Keras's own, at any depth."""
    if isinstance(config, list):
        for item in config:
            yield from _foreign(item)
    if not isinstance(config, dict):
        return
    if "class_name" in config:
        module, name = str(config.get("module") or "keras"), str(config["class_name"])
        if name in _REFUSED or not _is_known(module) or ">" in str(config.get("registered_name")):
            yield f"{module}.{name}"
    for item in config.values():
        yield from _foreign(item)


def _is_known(module: str) -> bool:
    return module in _MODULES or module.startswith("keras.src.models.")
