"""`anyrig.open_model`: whatever people were sent, as a Keras model where it can be one.

A file that describes its layers becomes that model, translated where older Keras wrote it. A file of weights fills a
model that the user builds. A SavedModel predicts. Nothing of the sender's code is run below the level of trust that it
needs, and no array is left out in silence.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras

from anyrig.checkpoints import load
from anyrig.errors import AnyrigError, UsageError
from anyrig.exchange.build import Built, built_model
from anyrig.exchange.fill import fill_by_names, fill_described
from anyrig.exchange.old_kernels import notes_on_kernels
from anyrig.exchange.targets import COMPILED, EXTRA
from anyrig.exchange.trust import Trust, allows
from anyrig.formats.checkpoint import contents_of
from anyrig.formats.contents import Budget, Contents
from anyrig.formats.jsontext import json_object
from anyrig.formats.sniff import read_any, recognized
from anyrig.formats.tf_table import read_bytes, size_of
from anyrig.locations import find_checkpoint, resolve
from anyrig.mapping.rules import Rules
from anyrig.state.layer_state import has_words, is_lookup
from anyrig.state.report import LoadReport
from anyrig.store.read import open_checkpoint
from anyrig.store.remote.url import is_url

_DOES_NOT_FIT = ("ANY-STATE-005", "ANY-STATE-017")
_LEFT = "its optimizer was left: nothing says how the model is compiled; give a function that does, into= (--into)"
_OURS = ("run", "checkpoints", "checkpoint")


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """What `open_model` returns, and how it came about: `report` lists every tensor, `notes` what was translated."""

    model: Any
    report: LoadReport
    contents: Contents
    notes: tuple[str, ...] = ()


def open_model(
    path: str | os.PathLike[str],
    *,
    trust: Trust = "known",
    into: keras.Model | Callable[[], keras.Model] | None = None,
    rules: Rules | str | os.PathLike[str] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
) -> Any:
    """Return what is at `path` as a Keras model with its weights, and its optimizer where the file has one.

    `path`: a run, a checkpoint, a `.keras`, `.h5` or `.weights.h5` file of any Keras, a SavedModel, a TensorFlow
    checkpoint, safetensors, `.npz`. The content decides. `trust` bounds what may be run: `arrays` nothing, `known`
    Keras's own classes, `code` what the file names, `program` a SavedModel's graph or stored byte code. `into` is a
    built model, or a function that builds one, whose weights are then filled by name, and whose compiled
    optimizer goes on if the file has all of it (a note in the report says why not); `rules` say what names do not
    (`anyrig.mapping.rules`, or a file of them). `custom_objects` are classes and functions of the caller by the names
    that the file uses.

    A SavedModel of others becomes an object that only predicts (`trust="program"`). Raises ANY-OPEN-001 to -007
    (trust), -040 (weights alone), -042 and -043 (something does not fit), and what `read_any` and `built_model` raise.
    """
    return open_with_report(path, trust=trust, into=into, rules=rules, custom_objects=custom_objects).model


def open_with_report(
    path: str | os.PathLike[str],
    *,
    trust: Trust = "known",
    into: keras.Model | Callable[[], keras.Model] | None = None,
    rules: Rules | str | os.PathLike[str] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
) -> OpenedModel:
    """Do what `open_model` does, and tell how."""
    allows(trust, "arrays")  # a word that is no level is refused whatever the file is
    if rules is not None and into is None:
        raise UsageError(
            "ANY-OPEN-048",
            "rules are given, and no model of yours (into=) that they could fill: they would say nothing",
            hint="give into= (--into FILE.py:FUNCTION) as well, or leave the rules out",
        )
    contents = _contents(path)
    if into is not None:
        model = into if isinstance(into, keras.Model) else into()
        if not isinstance(model, keras.Model):
            raise UsageError(
                "ANY-OPEN-049",
                f"into= gives {type(model).__name__}, which is no Keras model",
                hint="return the model from the function that builds it",
            )
        return OpenedModel(model, _filled(model, contents, rules), contents)
    if contents.format == "savedmodel" and contents.config is None:
        from anyrig.exchange.saved_model import predictor

        return OpenedModel(predictor(contents, trust), LoadReport(restored={}, source=str(contents.path)), contents)
    if contents.config is None:
        raise _weights_alone(contents)
    built = built_model(contents, trust=trust, custom_objects=custom_objects)
    if contents.format == "checkpoint":
        return _from_checkpoint(built, contents)
    if not built.model.built:
        raise _not_built(built.model, contents)
    report = fill_described(built.model, contents, dict(built.renamed))
    unsaid = notes_on_kernels(built.model, contents) if contents.format.startswith("keras-h5") else []
    notes = (*built.notes, *_lost_optimizer(report), *_without_words(built.model), *unsaid)
    for note in notes[len(built.notes) :]:
        warnings.warn(note, stacklevel=3)
    return OpenedModel(built.model, report, contents, notes)


def _contents(path: str | os.PathLike[str]) -> Contents:
    """Return what is at `path`, with the settings of training that a SavedModel of ours keeps beside its checkpoint."""
    here = Path(path).expanduser()
    if is_url(path):
        return contents_of(open_checkpoint(find_checkpoint(path)))
    if not os.path.lexists(here) and (found := recognized(here)) is not None:
        return read_any(found[1])
    location = resolve(path)
    if location.kind in _OURS:
        return contents_of(open_checkpoint(find_checkpoint(path)))
    if (location.path / EXTRA).is_dir():
        settings = location.path / COMPILED
        ours = contents_of(open_checkpoint(location.path / EXTRA))
        if not settings.is_file():
            return ours
        text = read_bytes(settings, 0, min(size_of(settings), Budget().header_bytes + 1))
        return replace(ours, compile_config=json_object(settings, "the file", text, Budget()))
    return read_any(location.path)


def _filled(model: keras.Model, contents: Contents, rules: Rules | str | os.PathLike[str] | None) -> LoadReport:
    if contents.format == "checkpoint" and rules is None:
        return _loaded(model, contents)
    given = rules if rules is None or isinstance(rules, Rules) else Rules.load(rules)
    return fill_by_names(model, contents, given)


def _loaded(model: keras.Model, contents: Contents) -> LoadReport:
    """Load a checkpoint, and its optimizer if the model is compiled with the like of it; else a note says so."""
    why = "the model is not compiled"
    if model.compiled:
        try:
            return load(contents.path, into=model, metrics=False)
        except AnyrigError as error:
            if error.code not in _DOES_NOT_FIT:
                raise
            why = error.message.partition("\n")[0]
    report = load(contents.path, into=model, weights_only=True)
    left = any(name.startswith("optimizer/") for name in report.ignored)
    return replace(report, notes=(*report.notes, f"its optimizer was left: {why}")) if left else report


def _from_checkpoint(built: Built, contents: Contents) -> OpenedModel:
    model = built.model
    if not all(layer.built for layer in model._flatten_layers()):
        raise _not_built(model, contents)
    report = load(contents.path, into=model, weights_only=not model.compiled, metrics=False)
    left = (_LEFT,) if not model.compiled and any(name.startswith("optimizer/") for name in report.ignored) else ()
    return OpenedModel(model, report, contents, (*built.notes, *left))


def _not_built(model: keras.Model, contents: Contents) -> UsageError:
    return UsageError(
        "ANY-OPEN-041",
        f"{model.name!r} of {contents.path} has no weights before it is called on data, and nothing says on which",
        hint="build it yourself and fill it: into= or --into FILE.py:FUNCTION",
    )


def _lost_optimizer(report: LoadReport) -> tuple[str, ...]:
    slots = [name for name in report.started if not name.endswith("/learning_rate")]
    if not slots:
        return ()
    return (f"the optimizer begins anew: the file does not say {slots[0]} and {len(slots) - 1} more of its variables",)


def _without_words(model: keras.Model) -> tuple[str, ...]:
    """Say which layers wait for a vocabulary: Keras writes none into `.h5` files, and predicting raises."""
    layers = [layer for layer in model._flatten_layers() if is_lookup(layer) and not has_words(layer)]
    inside = {id(layer._lookup_layer) for layer in layers if isinstance(layer, keras.layers.TextVectorization)}
    names = ", ".join(layer.name for layer in layers if id(layer) not in inside)
    return (f"the file holds no vocabulary of {names}: give it with adapt() or set_vocabulary()",) if names else ()


def _weights_alone(contents: Contents) -> UsageError:
    return UsageError(
        "ANY-OPEN-040",
        f"{contents.path} is {contents.words}: it holds {len(contents.tensors)} tensors and no description of a model",
        hint="give a function that builds the model: --into FILE.py:FUNCTION, in Python open_model(path, into=build)",
    )
