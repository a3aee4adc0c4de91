"""What a run is: recipe, data, model; stored with every checkpoint and compared before a run is carried on.

A run that goes on with another recipe, other data or another model would silently make numbers that belong to neither,
so every difference is refused with its list unless the user named it.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import xxhash

from anyrig.errors import UsageError
from anyrig.state.capture import model_document
from anyrig.train.precision import identity_of
from anyrig.train.recipe.diff import changes, hash_json

ASPECTS = ("data", "model", "optimizer", "precision", "recipe")


def identity(recipe: Mapping[str, Any], data: Mapping[str, Any], model: Any, source: str | None) -> dict[str, Any]:
    """Return the JSON that identifies a run; `source` is the hash of the code that builds the model, if known."""
    asked = {key: value for key, value in recipe.items() if key != "precision"}  # "auto" is no precision; found is
    return {
        "recipe": asked,
        "recipe_hash": hash_json(asked),
        "precision": identity_of(model),
        "data": dict(data),
        "model_config_hash": xxhash.xxh3_128_hexdigest(_stable_config(model)),
        "source_hash": source,
    }


def refuse_changes(stored: Mapping[str, Any], now: Mapping[str, Any], allowed: Collection[str]) -> list[str]:
    """Return the differences that were allowed, as lines; raise UsageError listing the others."""
    unknown = sorted(set(allowed) - set(ASPECTS))
    if unknown:
        raise UsageError(
            "ANY-RUN-002", f"allow_changes: unknown name {unknown[0]!r}", hint=f"use any of {', '.join(ASPECTS)}"
        )
    found = list(_differences(stored, now))
    # What is said of the recipe holds for its optimizer, too; only "optimizer" lets slots be left out on loading.
    allowed = {*allowed, "free", *(["optimizer"] if "recipe" in allowed else [])}
    refused = [(aspect, line) for aspect, line in found if aspect not in allowed]
    if refused:
        lines = "".join(f"\n  {line}" for _, line in refused)
        names = sorted({aspect for aspect, _ in refused})
        raise UsageError(
            "ANY-RUN-003",
            "this run was started with something else, and its numbers would be neither the old nor the new "
            f"ones:{lines}",
            hint="change it back, start another run directory, or go on all the same with --allow-changes "
            f"{','.join(names)} (in Python: allow_changes={names})",
        )
    return [line for _, line in found]


def source_hash(build_model: Callable[..., Any]) -> str | None:
    """Return a hash of the file that defines `build_model`; None where there is no file (a notebook, a builtin)."""
    function = build_model
    while isinstance(function, functools.partial):
        function = function.func
    try:
        file = inspect.getsourcefile(inspect.unwrap(function))
        return xxhash.xxh3_128_hexdigest(Path(file).read_bytes()) if file else None
    except (TypeError, OSError):
        return None


def _differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for change in changes(stored["recipe"], now["recipe"]):
        aspect = "optimizer" if change.key.startswith("compile.optimizer") else "recipe"
        yield ("free" if change.free else aspect), f"recipe: {change}"
    for change in changes(stored["data"], now["data"]):
        yield "data", f"data: {change}"
    before, after = stored["precision"], now["precision"]
    if before is not None and before != after:  # a fork into another precision does not know the layers' yet
        same = before["found"] == after["found"]
        yield "precision", f"precision: {before['found']} -> {'other layers' if same else after['found']}"
    if stored["model_config_hash"] != now["model_config_hash"]:
        yield "model", "model: its configuration (layers, sizes, names) is another one"
    elif None not in (stored["source_hash"], now["source_hash"]) and stored["source_hash"] != now["source_hash"]:
        yield "model", "model: the source file of its builder has changed (its configuration is the same)"


def _stable_config(model: Any) -> bytes:
    """Return the model's configuration without the automatic names that count up within a process."""
    document = json.loads(model_document(model))
    return json.dumps(without_names(document), sort_keys=True).encode()


def without_names(value: Any) -> Any:
    """Return a Keras configuration without graph nodes, names and dtype policies.

    Automatic names count up within a process; policies are the precision, which is compared by itself.
    """
    if isinstance(value, dict):
        if value.get("class_name") == "__keras_tensor__":  # what flows between layers has the dtype of the policy
            return value["config"]["shape"]
        dropped = ("name", "registered_name", "build_config", "keras_history", "input_layers", "output_layers")
        return {key: without_names(item) for key, item in value.items() if key not in dropped and not _is_policy(item)}
    return [without_names(item) for item in value] if isinstance(value, list) else value


def _is_policy(value: Any) -> bool:
    return isinstance(value, dict) and str(value.get("class_name")).endswith("DTypePolicy")
