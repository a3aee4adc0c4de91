"""Put a checkpoint's tensors into a model: all of them, or none and an error that says why.

Order: the model must be built, the optimizer is built, names, shapes, types and places are compared, every array and
file is read, layers that load themselves are loaded, and only then are variables assigned. Whatever can fail fails
before the first assignment; a layer's own `load_own_variables` or `load_assets` that raises leaves that layer changed
and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import keras
import numpy as np

from anyrig import names
from anyrig.errors import AnyrigError
from anyrig.state.capture import plain_variables, require_built
from anyrig.state.compare import Spec, refuse_ambiguous, refuse_differences
from anyrig.state.layer_state import (
    VOCABULARY,
    LayerState,
    fixed_vocabulary,
    has_words,
    is_lookup,
    keys_written,
    load_state,
    load_variables,
    loads_variables,
    own_ways,
    plain_of,
    writes_arrays,
    writes_files,
)
from anyrig.state.loss_scale import one_sided, start_again
from anyrig.state.measures import unbuilt
from anyrig.state.optimizers import optimizers
from anyrig.state.tree import PlacedLayer, walk_layers
from anyrig.state.values import assign, shape_of, to_array
from anyrig.state.walk import NamedVariable, metric_variables, model_variables, optimizer_variables
from anyrig.store.dtypes import ITEM_BYTES, numpy_name

Array = np.ndarray[Any, Any]
_NOT_ASKED = dict.fromkeys(("optimizer", "ema", "metrics"), "not asked for")
_NOT_OURS = "not part of the model; for the training loop"


class Entry(Protocol):
    """What the comparison needs to know of a stored tensor."""

    name: str
    aliases: tuple[str, ...]
    place: str | None
    dtype: str
    shape: tuple[int, ...]


class Source(Protocol):
    """The few questions asked of a checkpoint (`anyrig.store.read.Checkpoint` answers them)."""

    @property
    def manifest(self) -> Any:
        """An object whose `tensors` are the entries."""
        ...

    @property
    def assets(self) -> tuple[str, ...]:
        """Paths of the stored files."""
        ...

    def tensor(self, name: str) -> Array:
        """Return a stored tensor."""
        ...

    def asset(self, path: str) -> bytes:
        """Return a stored file."""
        ...


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a restore did: names assigned, names left out with the reason, bytes read.

    `started` are variables of the model that the checkpoint has not and that were set to the value they begin with.
    """

    restored: tuple[str, ...]
    ignored: dict[str, str] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)
    bytes: int = 0


def restore(checkpoint: Source, model: keras.Model, *, weights_only: bool = False, metrics: bool = True) -> LoadReport:
    """Restore `model` from `checkpoint`: weights, seeds, optimizer, averages, metrics.

    `weights_only` takes `model/` alone (weights and seeds); `metrics=False` leaves out `metrics/`. What is left out is
    listed in the report, and so is a loss scale that only the checkpoint or only the model has. Raises ANY-STATE-001
    (model not built), -005 (does not fit), -006 (order alone would decide), -007 (metrics not built), -008 (a layer's
    own loading failed).
    """
    require_built(model)
    groups = {"model"} if weights_only else {"model", "optimizer", "ema"} | ({"metrics"} if metrics else set())
    stored = [_spec(entry) for entry in checkpoint.manifest.tensors]
    ignored = {
        spec.name: _NOT_ASKED.get(_group(spec.name), _NOT_OURS) for spec in stored if _group(spec.name) not in groups
    }
    plan = _plan(model, [spec for spec in stored if spec.name not in ignored], groups, checkpoint.assets)
    ignored |= dict.fromkeys(sorted(plan.scale_left_out), "the model scales no loss")
    files = [{file: checkpoint.asset(path) for file, path in own.files.items()} for own in plan.own]
    _refuse_other_vocabularies(plan.own, files)
    arrays = {spec.name: checkpoint.tensor(spec.name) for spec in plan.wanted}
    with _put_back(plan.layers):
        for own, contents in zip(plan.own, files, strict=True):
            load_state(own.layer, {key: arrays[name] for key, name in own.arrays.items()}, contents)
        loaded = _load_by_layers(plan, arrays)
    for item in plan.targets:
        if item.name not in loaded:
            assign(item.variable, arrays[item.name])
    for optimizer in optimizers(model, plan.placed).values():
        start_again(optimizer, plan.scale_begun.values())
    started = dict.fromkeys(plan.scale_begun, "not stored: begins anew")
    return LoadReport(tuple(arrays), ignored, started, sum(array.nbytes for array in arrays.values()))


@dataclass(frozen=True, slots=True)
class _Own:
    """A layer that loads itself: name of the stored tensor by key, path of the stored asset by file."""

    layer: keras.Layer
    arrays: dict[str, str]
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Plan:
    targets: list[NamedVariable]
    own: list[_Own]
    wanted: list[Spec]
    layers: list[keras.Layer]
    placed: list[PlacedLayer]
    scale_left_out: set[str]
    scale_begun: dict[str, keras.Variable]


def _plan(model: keras.Model, asked: Sequence[Spec], groups: set[str], assets: Sequence[str]) -> _Plan:
    layers = walk_layers(model)
    named = model_variables(model, layers)
    states = [LayerState(placed) for placed in own_ways(layers)]
    targets = plain_variables(named, [state.placed for state in states])
    targets += _training_variables(model, layers, named, asked, groups)
    left_out, begun = one_sided((spec.name for spec in asked), (item.name for item in targets))
    asked = [spec for spec in asked if spec.name not in left_out]
    scale_begun = {item.name: item.variable for item in targets if item.name in begun}
    targets = [item for item in targets if item.name not in begun]
    wanted = [_wanted(item) for item in targets]
    keys = [_own_keys(state, asked, {spec.name for spec in wanted}) for state in states]
    wanted += [spec for specs in keys for spec in specs.values()]
    refuse_differences(asked, wanted, _hints(model, layers, asked))
    refuse_ambiguous(asked, wanted)
    files = _own_files(states, assets)
    own = [
        _Own(state.placed.layer, {key: spec.name for key, spec in specs.items()}, paths)
        for state, specs, paths in zip(states, keys, files, strict=True)
    ]
    return _Plan(targets, own, wanted, [placed.layer for placed in layers], list(layers), left_out, scale_begun)


def _training_variables(
    model: keras.Model,
    layers: Sequence[PlacedLayer],
    named: Sequence[NamedVariable],
    asked: Sequence[Spec],
    groups: set[str],
) -> list[NamedVariable]:
    found: list[NamedVariable] = []
    if "optimizer" in groups:
        for key, optimizer in optimizers(model, layers).items():
            found += optimizer_variables(optimizer, named, key)
    if "metrics" in groups:
        measured = metric_variables(model, layers)
        _refuse_unbuilt_metrics(model, {spec.name for spec in asked} - {item.name for item in measured})
        found += measured
    return found


def _refuse_unbuilt_metrics(model: keras.Model, missing: set[str]) -> None:
    missing = {name for name in missing if _group(name) == "metrics"}
    if missing and unbuilt(model):
        raise AnyrigError(
            "ANY-STATE-007",
            f"the checkpoint holds {min(missing)} and {len(missing) - 1} more, but the metrics of {model.name!r} see "
            "their first batch, and get variables, only later; nothing was changed",
            hint="evaluate one batch first, model.evaluate(x[:1], y[:1]), or restore with metrics=False",
        )


def _own_keys(state: LayerState, asked: Sequence[Spec], claimed: set[str]) -> dict[str, Spec]:
    """Return the arrays that a layer which loads itself will get, by key.

    Those that it would write now; if it would write none, because it is not adapted or built yet, or cannot tell, every
    stored array directly below its path.
    """
    if not writes_arrays(state.placed.layer):
        return {}
    if keys := keys_written(state.placed.layer):
        return {key: Spec(state.tensor_name(key), None, None, state.placed.place) for key in keys}
    prefix = names.join("model", *state.placed.path) + "/"
    below = [spec.name for spec in asked if spec.name.startswith(prefix) and spec.name not in claimed]
    direct = {name.removeprefix(prefix): name for name in below if "/" not in name.removeprefix(prefix)}
    return {names.unescape(key): Spec(name, None, None, state.placed.place) for key, name in direct.items()}


def _own_files(states: Sequence[LayerState], assets: Sequence[str]) -> list[dict[str, str]]:
    """Share the stored assets out over the layers by folder; raise ANY-STATE-009 if one is missing or left over."""
    writers = [state for state in states if writes_files(state.placed.layer)]
    files: dict[int, dict[str, str]] = {id(state): {} for state in states}
    left = []
    for path in assets:
        owners = [state for state in writers if path.startswith(state.folder + "/")]
        if owners:
            owner = max(owners, key=lambda state: len(state.folder))
            files[id(owner)][path.removeprefix(owner.folder + "/")] = path
        else:
            left.append(path)
    without = [state.folder for state in writers if not files[id(state)] and _needs_words(state.placed.layer)]
    if left or without:
        raise AnyrigError(
            "ANY-STATE-009",
            f"files of layers do not fit the model; nothing was changed\n  stored, but no layer takes it: {left}\n"
            f"  wanted, but not stored: {[f'{folder}/{VOCABULARY}' for folder in without]}",
            hint="build the model with the same preprocessing layers as when it was saved",
        )
    return [files[id(state)] for state in states]


def _needs_words(layer: keras.Layer) -> bool:
    return is_lookup(layer) and has_words(layer)


def _refuse_other_vocabularies(own: Sequence[_Own], files: Sequence[Mapping[str, bytes]]) -> None:
    for item, contents in zip(own, files, strict=True):
        fixed = fixed_vocabulary(item.layer)
        if fixed is not None and fixed != contents[VOCABULARY]:
            raise AnyrigError(
                "ANY-STATE-010",
                f"layer {item.layer.name!r} was made with another vocabulary than the stored one; nothing was changed\n"
                f"  stored  {_words(contents[VOCABULARY])}\n  wanted  {_words(fixed)}",
                hint="make the layer without vocabulary= (it is restored), or with the words of the checkpoint",
            )


def _words(vocabulary: bytes) -> str:
    words = vocabulary.decode().split("\n")
    return f"{len(words)} words: {words[:8]}{' ...' if len(words) > 8 else ''}"


def _load_by_layers(plan: _Plan, arrays: Mapping[str, Array]) -> set[str]:
    """Load the layers that derive something from their variables; return the names of what they took."""
    names_of = {id(item.variable): item.name for item in plan.targets}
    loaded: set[str] = set()
    for layer in plan.layers:
        own = [variable for variable in plain_of(layer) if id(variable) in names_of]
        if own and loads_variables(layer):
            taken = [names_of[id(variable)] for variable in own]
            load_variables(layer, [arrays[name] for name in taken])
            loaded.update(taken)
    return loaded


@contextmanager
def _put_back(layers: Sequence[keras.Layer]) -> Iterator[None]:
    """If a layer's own loading fails, give back their values to the variables of all layers that load themselves."""
    risky = [layer for layer in layers if loads_variables(layer) or writes_arrays(layer) or writes_files(layer)]
    before = [(variable, to_array(variable)) for layer in risky for variable in plain_of(layer)]
    try:
        yield
    except BaseException:
        for variable, array in before:
            assign(variable, array)
        raise


def _hints(model: keras.Model, layers: Sequence[PlacedLayer], asked: Sequence[Spec]) -> list[str]:
    hints = []
    unbuilt_paths = [names.join(*placed.path) for placed in layers if placed.path and not placed.layer.built]
    waiting = [path for path in unbuilt_paths if any(spec.name.startswith(f"model/{path}/") for spec in asked)]
    if waiting:
        hints.append(f"layers not built yet: {', '.join(waiting[:5])}: call the model once on a batch")
    if vars(model).get("optimizer") is None and any(_group(spec.name) == "optimizer" for spec in asked):
        hints.append("compile the model first, or load the weights alone with weights_only=True")
    return hints


def _spec(entry: Entry) -> Spec:
    dtype = numpy_name(entry.dtype) if entry.dtype in ITEM_BYTES else entry.dtype
    return Spec(entry.name, tuple(entry.shape), dtype, entry.place, tuple(entry.aliases))


def _wanted(item: NamedVariable) -> Spec:
    return Spec(item.name, shape_of(item.variable), str(item.variable.dtype), item.place, item.aliases)


def _group(name: str) -> str:
    return name.partition("/")[0]
