"""Fill a built model from a file: find the pairs, see that nothing is left over, then assign, all or nothing."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace

import keras

from anyrig.errors import AnyrigError, UsageError
from anyrig.exchange.h5_layers import (
    h5_side,
    pairs_of,
    same_chain,
    same_order_inside,
    same_sequence,
    with_types,
)
from anyrig.exchange.keras_places import keys_unsaid, pairs_by_places
from anyrig.exchange.keras_tree import does_not_fit, fill_from_tree
from anyrig.exchange.object_attributes import pairs_by_attributes
from anyrig.exchange.object_paths import pairs_by_objects
from anyrig.exchange.old_kernels import OldKernels, notes_on_kernels
from anyrig.exchange.optimizer_into import optimizer_into
from anyrig.exchange.optimizer_state import derive, optimizer_pairs
from anyrig.formats.contents import Contents, FileTensor
from anyrig.mapping.apply import array_of
from anyrig.mapping.propose import propose
from anyrig.mapping.result import Mapping, Pair, Stored
from anyrig.mapping.rules import Rules
from anyrig.mapping.sides import stored_side, without_copies
from anyrig.mapping.slots import is_training_state
from anyrig.state.layer_state import forget_traces
from anyrig.state.optimizers import optimizers
from anyrig.state.report import LoadReport
from anyrig.state.tree import walk_layers
from anyrig.state.values import assign
from anyrig.state.walk import NamedVariable, model_variables, optimizer_variables
from anyrig.state.wanted import Wanted
from anyrig.state.wanting import told_by_counting, wanted_by

_SHOWN = 10
_TREES = ("keras", "keras-2", "keras-weights")
_OBJECTS = ("tensorflow-checkpoint", "savedmodel")
_H5 = ("keras-h5", "keras-h5-weights")


def fill_described(model: keras.Model, contents: Contents, renamed: dict[str, str]) -> LoadReport:
    """Fill the model that was made from the configuration in the same file; `renamed` are layers, old name to new.

    Raises ANY-OPEN-042 if any array or variable is left. Of an optimizer what cannot be kept is told in the report.
    """
    began = time.perf_counter()
    if contents.format in _TREES:
        restored, ignored = fill_from_tree(model, contents, renamed)
        return _report(contents, restored, ignored, _left_optimizer(model, contents, restored), began)
    wanted = wanted_by(model)
    weights = [want for want in wanted if want.role == "weight"]
    if contents.format in _H5:
        pairs, wrong = pairs_of(model, contents, _facts(model, weights), renamed)
        if not wrong:
            wrong = [f"  wanted  {w.name}" for w in weights if w.name not in {pair.wanted.name for pair in pairs}]
    else:
        facts = _facts(model, weights)
        pairs, wrong = pairs_by_attributes(model, contents.tensors, facts, contents.config, renamed), []
        if not pairs:
            mapping = propose(contents.tensors, weights, ordered=True)
            pairs, wrong = list(mapping.pairs), what_is_open(mapping, training=False)
    if wrong:
        raise does_not_fit(contents, wrong)
    slots = [want for want in wanted if want.role == "optimizer"]
    kept = optimizer_pairs(contents, slots, pairs)
    if contents.format in _H5:
        pairs, kept = with_types(pairs), with_types(kept)
    return _assigned(model, contents, pairs, kept, slots, began, derived=True)


def fill_by_names(model: keras.Model, contents: Contents, rules: Rules | None = None) -> LoadReport:
    """Fill the weights of a model of the user's own, and its optimizer if the file has all of it; a note says why not.

    `rules` come before any proposal.

    Raises ANY-OPEN-043 if not every weight of both sides has its counterpart beyond doubt.
    """
    began = time.perf_counter()
    mapping = mapping_into(model, contents, rules)
    if wrong := what_is_open(mapping, training=False):
        lines = [*wrong[:_SHOWN], *([f"  ... and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else [])]
        head = f"the weights of {contents.path} do not all find a place in {model.name!r}; nothing was changed"
        raise AnyrigError(
            "ANY-OPEN-043",
            "\n".join([head, *lines]),
            hint=f"see why, and the rules that settle it: anyrig explain {contents.path} FILE.py:FUNCTION",
        )
    slots, left = optimizer_into(model, contents, mapping.pairs)
    report = _assigned(model, contents, mapping.pairs, slots, [], began)
    kept = {want.name: "kept by a rule" for want in mapping.kept}
    dropped = {tensor.name: "dropped by a rule" for item in mapping.dropped for tensor in item.tensors}
    unsaid = keys_unsaid(model) if any(pair.rule == "place" for pair in mapping.pairs) else []
    unsaid += notes_on_kernels(model, contents) if contents.format in _H5 else []
    for note in unsaid:
        warnings.warn(note, stacklevel=5)
    notes = (*report.notes, *([left] if left else []), *unsaid)
    return replace(report, started=kept, ignored={**report.ignored, **dropped}, notes=notes)


def mapping_into(model: keras.Model, contents: Contents, rules: Rules | None = None) -> Mapping:
    """Return which weights of a file fill which of a model: by the user's rules, by places of its format, by names."""
    wanted = wanted_by(model, weights_only=True)
    if rules is not None and not rules.same_code:
        return _with_old_kernels(model, contents, rules.apply(without_copies(contents.tensors), wanted))
    tensors = without_copies([tensor for tensor in contents.tensors if tensor.role != "optimizer"])
    if rules is not None:
        return _by_order(model, contents, tensors, wanted)
    same = _same_places(model, contents, tensors, _facts(model, wanted))
    mapping = Mapping(pairs=tuple(same), unused=_unpaired(tensors, same))
    if same and not what_is_open(mapping, training=False):
        return mapping
    if contents.format in _H5:
        return _with_old_kernels(model, contents, propose(h5_side(contents, tensors), wanted, ordered=True))
    return propose(tensors, wanted)


def _with_old_kernels(model: keras.Model, contents: Contents, mapping: Mapping) -> Mapping:
    if contents.format not in _H5:
        return mapping
    return OldKernels(model, contents, _facts(model, wanted_by(model, weights_only=True))).settled(mapping)


def _by_order(
    model: keras.Model, contents: Contents, tensors: Sequence[FileTensor], wanted: Sequence[Wanted]
) -> Mapping:
    """Pair as Keras does for the model that wrote the file: the user says that the same code made this one."""
    facts = _facts(model, wanted)
    wrong: list[str] = []
    if contents.format in _H5:
        renamed = same_chain(model, tensors, same_code=True)
        pairs, wrong = pairs_of(model, contents, facts, renamed, same_code=True)
    elif contents.format in _TREES:
        pairs = pairs_by_places(model, tensors, facts, same_code=True)
    else:
        raise UsageError(
            "ANY-MAP-008",
            f"same_code says nothing for {contents.path}: {contents.words} lists variables by names, in no order",
            hint=f"see the rules that settle it: anyrig explain {contents.path} FILE.py:FUNCTION",
        )
    paired = {pair.wanted.name for pair in pairs}
    missing = tuple(want for want in wanted if want.name not in paired)
    if wrong or missing:
        raise AnyrigError(
            "ANY-MAP-009",
            "\n".join([f"the same code did not make {contents.path} and {model.name!r}:", *wrong[:_SHOWN]]),
            hint=f"see what differs: anyrig explain {contents.path} FILE.py:FUNCTION",
        )
    return Mapping(pairs=tuple(pairs), unused=_unpaired(tensors, pairs))


def _same_places(
    model: keras.Model, contents: Contents, tensors: Sequence[FileTensor], facts: dict[int, Wanted]
) -> list[Pair]:
    """Return the pairs of a file that was written from a model of the same layers, else none."""
    if contents.format in _H5:
        if told_by_counting(walk_layers(model)):
            return []
        renamed = same_chain(model, tensors)
        if not renamed and any(want.automatic for want in facts.values()) and not same_sequence(model, tensors):
            return []
        pairs, wrong = pairs_of(model, contents, facts, renamed)
        whole = not wrong and len(pairs) == len(facts)
        return pairs if whole and same_order_inside(model, pairs, facts) else []
    if contents.format in _TREES:
        return pairs_by_places(model, tensors, facts)
    if contents.format not in _OBJECTS:
        return []
    by_objects = pairs_by_objects(model, tensors, facts)
    return by_objects or pairs_by_attributes(model, tensors, facts, contents.config, {})


def _left_optimizer(model: keras.Model, contents: Contents, restored: dict[str, str]) -> dict[str, str]:
    """Return the variables of the optimizer that begin anew because a `.keras` file of Keras 2 does not have them."""
    if not model.compiled or contents.format != "keras-2" or any(name.startswith("optimizer/") for name in restored):
        return {}
    return {want.name: "the file does not say it" for want in wanted_by(model) if want.role == "optimizer"}


def _facts(model: keras.Model, wanted: Iterable[Wanted]) -> dict[int, Wanted]:
    """Return what is known of each variable, by its `id`."""
    by_name = {want.name: want for want in wanted}
    return {id(item.variable): by_name[item.name] for item in model_variables(model) if item.name in by_name}


def _unpaired(tensors: Iterable[FileTensor], pairs: Iterable[Pair]) -> tuple[Stored, ...]:
    used = {tensor.name for pair in pairs for tensor in pair.stored.tensors}
    return tuple(stored_side(tensor for tensor in tensors if tensor.name not in used))


def what_is_open(mapping: Mapping, *, training: bool) -> list[str]:
    """Return a line for everything in a mapping that is not decided; of training's tensors only if asked."""
    lines = [f"  {item.stored.name} -> {item.wanted.name}: {item.why}" for item in mapping.misfits]
    for each in mapping.ambiguous:
        names = ", ".join(item.name for item in each.stored[:4])
        lines.append(f"  {', '.join(want.name for want in each.wanted[:4])}: any of {names}: {each.why}")
    lines += [f"  wanted  {want.name} {list(want.shape)}" for want in mapping.missing]
    unused = [item for item in mapping.unused if training or item.tensors[0].role == "weight"]
    return lines + [
        f"  stored  {item.name} {list(item.shape)}" for item in unused if training or not _is_training(item)
    ]


def _is_training(item: Stored) -> bool:
    return is_training_state(item, {item.name, item.name.rpartition("/")[0]})


def _assigned(
    model: keras.Model,
    contents: Contents,
    weights: Sequence[Pair],
    slots: Sequence[Pair],
    wanted_slots: Iterable[Wanted],
    began: float,
    *,
    derived: bool = False,
) -> LoadReport:
    arrays = {pair.wanted.name: array_of(pair) for pair in (*weights, *slots)}
    variables = {item.name: item.variable for item in _variables(model)}
    for name, array in arrays.items():
        assign(variables[name], array)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()  # it computes with copies of its variables
            forget_traces(model)
    known = {name for name in arrays if name.endswith("/iterations")}
    followed = {id(v) for v in derive(model.optimizer)} if derived and known and model.compiled else set()
    used = {tensor.name for pair in (*weights, *slots) for tensor in pair.stored.tensors}
    restored = {pair.wanted.name: pair.stored.tensors[0].file for pair in (*weights, *slots)}
    ignored = {t.name: "not part of the model's weights" for t in contents.tensors if t.name not in used}
    left = [want.name for want in wanted_slots if want.name not in restored]
    started = {name: "the file does not say it" for name in left if id(variables[name]) not in followed}
    cast = {pair.wanted.name: (pair.stored.dtype, pair.wanted.dtype) for pair in (*weights, *slots) if pair.cast}
    return _report(contents, restored, ignored, started, began, cast, sum(a.nbytes for a in arrays.values()))


def _variables(model: keras.Model) -> list[NamedVariable]:
    layers = walk_layers(model)
    named = model_variables(model, layers)
    slots = [v for key, each in optimizers(model, layers).items() for v in optimizer_variables(each, named, key)]
    return [*named, *slots]


def _report(
    contents: Contents,
    restored: dict[str, str],
    ignored: dict[str, str],
    started: dict[str, str],
    began: float,
    cast: dict[str, tuple[str, str]] | None = None,
    nbytes: int | None = None,
) -> LoadReport:
    sizes = {tensor.name: tensor.nbytes for tensor in contents.tensors}
    return LoadReport(
        restored=restored,
        ignored=ignored,
        started=started,
        cast=cast or {},
        bytes=sum(sizes.get(name, 0) for name in restored) if nbytes is None else nbytes,
        seconds=time.perf_counter() - began,
        source=str(contents.path),
        verified="read",
        notes=contents.notes,
    )
