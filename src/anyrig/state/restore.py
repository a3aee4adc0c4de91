"""Put a checkpoint's tensors into a model: all of them, or none and an error that says why.

Order: the model must be built, the optimizer is built, names, shapes, types and places are compared, every array and
file is read, layers that load themselves are loaded, and only then are variables assigned. Whatever can fail fails
before the first assignment. When a layer's own `load_own_variables` or `load_assets` raises, what it and the layers
before it have changed is undone (`undo.py` says how far).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import keras
import numpy as np

from anyrig import names
from anyrig.errors import AnyrigError
from anyrig.state.capture import plain_variables, require_built
from anyrig.state.choice import Choice, convert
from anyrig.state.compare import Spec, refuse_ambiguous, refuse_differences
from anyrig.state.layer_state import (
    VOCABULARY,
    LayerState,
    fixed_vocabulary,
    forget_traces,
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
from anyrig.state.optimizers import optimizer_classes, optimizers
from anyrig.state.partial import NO_SUCH, excused
from anyrig.state.renamed import Renamed
from anyrig.state.report import LoadReport
from anyrig.state.tree import PlacedLayer, walk_layers
from anyrig.state.undo import undone_on_failure
from anyrig.state.values import adopt, shape_of
from anyrig.state.walk import NamedVariable, metric_variables, model_variables, optimizer_variables
from anyrig.store.content import Verify
from anyrig.store.dtypes import ITEM_BYTES, numpy_name

Array = np.ndarray[Any, Any]


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
    def record(self) -> Mapping[str, Any]:
        """What was written down about how the checkpoint was made."""
        ...

    @property
    def assets(self) -> tuple[str, ...]:
        """Paths of the stored files."""
        ...

    def tensors(self, names: Iterable[str], *, verify: Verify) -> Mapping[str, Array]:
        """Return stored tensors, verified as asked for, which nobody writes to."""
        ...

    def asset(self, path: str) -> bytes:
        """Return a stored file."""
        ...


def restore(
    checkpoint: Source,
    model: keras.Model,
    *,
    verify: Verify = "off",
    rename: Mapping[str, str] | None = None,
    **settings: Any,
) -> LoadReport:
    """Restore `model` from `checkpoint`: weights, seeds, optimizer, averages, metrics.

    `settings` are those of `Choice`: `weights_only` takes `model/` alone (weights and seeds), `metrics=False` leaves
    out `metrics/`, and so on; `rename` is that of `Renamed`. What is left out is listed in the report, and so is a loss
    scale that only the checkpoint or only the model has. On CPU variables share the checkpoint's pages until they are
    assigned anew. Raises ANY-STATE-001 (model not built), -005 (does not fit), -006 (order alone would decide), -007
    (metrics not built), -008 (a layer's own loading failed), -014 to -018 (a setting does not make sense, types,
    optimizers).
    """
    began = time.perf_counter()
    choice = Choice(**settings)
    require_built(model)
    renaming = Renamed(checkpoint, rename) if rename else None
    renamed = renaming.changed if renaming else {}
    checkpoint = renaming or checkpoint
    stored = [_spec(entry) for entry in checkpoint.manifest.tensors]
    plan = _plan(model, stored, choice, checkpoint, renamed)
    if renaming:
        renaming.refuse_lost({name for name, why in plan.ignored.items() if why == NO_SUCH})
    files = [{file: checkpoint.asset(path) for file, path in own.files.items()} for own in plan.own]
    _refuse_other_vocabularies(plan.own, files)
    arrays = dict(checkpoint.tensors([spec.name for spec in plan.wanted], verify=verify))
    loaded_bytes = sum(array.nbytes for array in arrays.values())
    for name, (_, dtype) in plan.casts.items():
        arrays[name] = convert(name, arrays[name], np.dtype(dtype))
    with undone_on_failure(layer for layer in plan.layers if _loads_itself(layer)):
        for own, contents in zip(plan.own, files, strict=True):
            load_state(own.layer, {key: arrays[name] for key, name in own.arrays.items()}, contents)
        loaded = _load_by_layers(plan, arrays)
    for item in plan.targets:
        if item.name not in loaded:
            adopt(item.variable, arrays[item.name])
    if plan.own or loaded:
        forget_traces(model)
    for optimizer in plan.optimizers.values():
        start_again(optimizer, plan.scale_begun.values())
    return LoadReport(
        restored={name: plan.files.get(name, "") for name in arrays},
        ignored=plan.ignored,
        started=plan.started,
        cast=plan.casts,
        renamed={name: stored for name, stored in renamed.items() if name in arrays},
        bytes=loaded_bytes,
        seconds=time.perf_counter() - began,
        verified=verify,
    )


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
    casts: dict[str, tuple[str, str]]
    ignored: dict[str, str]
    started: dict[str, str]
    files: dict[str, str]
    layers: list[keras.Layer]
    optimizers: dict[str, keras.optimizers.Optimizer]
    scale_begun: dict[str, keras.Variable]


def _plan(
    model: keras.Model, stored: Sequence[Spec], choice: Choice, checkpoint: Source, said: Collection[str]
) -> _Plan:
    layers = walk_layers(model)
    named = model_variables(model, layers)
    states = [state for placed in own_ways(layers) if not _left_out(state := LayerState(placed), choice)]
    used = optimizers(model, layers) if "optimizer" in choice.groups else {}
    everything = plain_variables(named, own_ways(layers)) + _training_variables(model, layers, named, used, choice)
    aliases: dict[str, list[str]] = {}  # of both sides: Keras's own names differ from process to process
    for name, others in [(s.name, s.aliases) for s in stored] + [(v.name, v.aliases) for v in everything]:
        aliases.setdefault(name, []).extend(others)
    left_out = {name: why for name, others in aliases.items() if (why := choice.why_not(name, others))}
    ignored = {spec.name: left_out[spec.name] for spec in stored if spec.name in left_out}
    asked = [spec for spec in stored if spec.name not in ignored]
    targets = [item for item in everything if item.name not in left_out]
    _refuse_unbuilt_metrics(model, {spec.name for spec in asked} - {item.name for item in targets})
    specs = {item.name: _wanted(item) for item in everything}
    wanted = [specs[item.name] for item in targets]
    keys = [_own_keys(state, asked, {spec.name for spec in wanted}) for state in states]
    wanted += [spec for specs in keys for spec in specs.values()]
    choice.refuse_idle_patterns([*stored, *wanted, *specs.values()])

    no_scale, begun = one_sided((spec.name for spec in asked), (item.name for item in targets))
    excuses = excused(choice, asked, wanted, (_classes_in(checkpoint), optimizer_classes(used)))
    ignored |= excuses.ignored | dict.fromkeys(sorted(no_scale), "the model scales no loss")
    started = excuses.started | dict.fromkeys(begun, "not stored: begins anew")
    asked = [spec for spec in asked if spec.name not in ignored]
    wanted = [spec for spec in wanted if spec.name not in started]
    asked, casts = _cast(asked, wanted, choice)
    refuse_differences(asked, wanted, _hints(model, layers, asked))
    refuse_ambiguous(asked, wanted, said)
    files = _own_files(states, checkpoint.assets, choice)
    own = [
        _Own(state.placed.layer, {k: spec.name for k, spec in specs.items() if spec.name not in started}, paths)
        for state, specs, paths in zip(states, keys, files, strict=True)
    ]
    return _Plan(
        targets=[item for item in targets if item.name not in started],
        own=own,
        wanted=wanted,
        casts=casts,
        ignored=ignored,
        started=started,
        files={entry.name: entry.pieces[0].file for entry in checkpoint.manifest.tensors if hasattr(entry, "pieces")},
        layers=[placed.layer for placed in layers],
        optimizers=used,
        scale_begun={item.name: item.variable for item in targets if item.name in begun},
    )


def _left_out(state: LayerState, choice: Choice) -> bool:
    """Tell whether a layer that loads itself takes no part: it gets all that it wrote, or nothing."""
    keys = keys_written(state.placed.layer) or ["any"]
    return any(choice.why_not(state.tensor_name(key)) for key in keys)


def _classes_in(checkpoint: Source) -> Mapping[str, str]:
    found = checkpoint.record.get("optimizers", {})
    return found if isinstance(found, Mapping) else {}


def _cast(
    stored: Sequence[Spec], wanted: Sequence[Spec], choice: Choice
) -> tuple[list[Spec], dict[str, tuple[str, str]]]:
    """Return the stored specs in the types that they will be converted to, and those types before and after."""
    want = {spec.name: spec for spec in wanted}
    casts = {
        spec.name: (str(spec.dtype), str(want[spec.name].dtype))
        for spec in stored
        if spec.name in want and spec.dtype != want[spec.name].dtype and choice.casts(spec, want[spec.name])
    }
    return [replace(spec, dtype=casts[spec.name][1]) if spec.name in casts else spec for spec in stored], casts


def _training_variables(
    model: keras.Model,
    layers: Sequence[PlacedLayer],
    named: Sequence[NamedVariable],
    used: Mapping[str, keras.optimizers.Optimizer],
    choice: Choice,
) -> list[NamedVariable]:
    found: list[NamedVariable] = []
    for key, optimizer in used.items():
        found += optimizer_variables(optimizer, named, key)
    if "metrics" in choice.groups:
        found += metric_variables(model, layers)
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


def _own_files(states: Sequence[LayerState], assets: Sequence[str], choice: Choice) -> list[dict[str, str]]:
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
    if without or (left and not choice.include and not choice.exclude):  # in part, other layers' files stay there
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


def _loads_itself(layer: keras.Layer) -> bool:
    return loads_variables(layer) or writes_arrays(layer) or writes_files(layer)


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


def _hints(model: keras.Model, layers: Sequence[PlacedLayer], asked: Sequence[Spec]) -> list[str]:
    hints = []
    unbuilt_paths = [names.join(*placed.path) for placed in layers if placed.path and not placed.layer.built]
    waiting = [path for path in unbuilt_paths if any(spec.name.startswith(f"model/{path}/") for spec in asked)]
    if waiting:
        hints.append(f"layers not built yet: {', '.join(waiting[:5])}: call the model once on a batch")
    if vars(model).get("optimizer") is None and any(_group(spec.name) == "optimizer" for spec in asked):
        hints.append("compile the model first, or give its optimizer (optimizer=...), or load with weights_only=True")
    return hints


def _spec(entry: Entry) -> Spec:
    dtype = numpy_name(entry.dtype) if entry.dtype in ITEM_BYTES else entry.dtype
    return Spec(entry.name, tuple(entry.shape), dtype, entry.place, tuple(entry.aliases))


def _wanted(item: NamedVariable) -> Spec:
    return Spec(item.name, shape_of(item.variable), str(item.variable.dtype), item.place, item.aliases)


def _group(name: str) -> str:
    return name.partition("/")[0]
