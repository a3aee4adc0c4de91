"""The model that `predict` and `evaluate` use, of a run or of a file of any format, and what it takes."""

from __future__ import annotations

import os
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyrig.errors import AnyrigError, UsageError

if TYPE_CHECKING:
    from anyrig.exchange.trust import Trust
    from anyrig.store.read import Checkpoint
    from anyrig.train.recipe.schema import Recipe

_KERAS_TEXT = 300  # characters


@dataclass(frozen=True, slots=True)
class Opened:
    """A model with its weights, and its inputs (`anyrig.train.recipe.specs`; None where nobody tells them)."""

    model: Any
    inputs: Any
    notes: tuple[str, ...] = ()


def is_run(source: str) -> bool:
    """Tell whether SOURCE is a run or a checkpoint of anyrig, and not of another format. Raises ANY-LOAD-001."""
    from anyrig.formats.sniff import recognized
    from anyrig.locations import resolve
    from anyrig.store.remote.url import is_url

    here = Path(source).expanduser()
    if not is_url(source) and not os.path.lexists(here) and recognized(here) is not None:
        return False  # the prefix of a TensorFlow checkpoint, of which no file has the name
    return resolve(source).kind in ("run", "checkpoints", "checkpoint")


def open_file(
    source: str, trust: Trust, into: str | None, recipe: Recipe | None = None, rules: Path | None = None
) -> Opened:
    """Return the model in a file of any format, or the one that `into` or else `recipe` builds, with its weights."""
    from anyrig.exchange.open import open_with_report
    from anyrig.train.recipe.model import model_builder
    from anyrig.train.recipe.specs import inputs_of

    build = builder(into) if into else model_builder(recipe) if recipe else None
    with warnings.catch_warnings(), naming(into):
        warnings.simplefilter("ignore")  # the notes say it
        found = open_with_report(source, trust=trust, into=build, rules=rules)
    return Opened(found.model, inputs_of(found.model, {}), (*found.notes, *found.report.notes))


def open_for_use(checkpoint: Checkpoint, recipe: Recipe | None) -> Opened:
    """Return the model of `checkpoint`; only a recipe that the user named may be given, because its code is run."""
    from anyrig.train.recipe.source import open_model
    from anyrig.train.recipe.specs import inputs_of

    model = open_model(checkpoint, recipe)
    return Opened(model, inputs_of(model, checkpoint.record))


def builder(into: str, *, key: str = "--into") -> Callable[[], Any]:
    """Return the function that `key`, an argument FILE.py:FUNCTION, names; its file is run here."""
    from anyrig.train.recipe.code import call_user, resolve_function
    from anyrig.train.recipe.model import built

    function = resolve_function(into, Path.cwd(), key=key)
    return lambda: built(call_user(function, {}, key=key), into, key=key)


@contextmanager
def naming(into: str | None) -> Iterator[None]:
    """Let what an error says to type next name the function that was typed."""
    try:
        yield
    except AnyrigError as error:
        error.hint = error.hint.replace("FILE.py:FUNCTION", into or "FILE.py:FUNCTION")
        raise


@contextmanager
def fitting(opened: Opened, x: Any) -> Iterator[None]:
    """Say in one message what the model takes and what `x` is, when a model refuses `x`."""
    import tensorflow as tf

    try:
        yield
    except (ValueError, TypeError, KeyError, tf.errors.InvalidArgumentError) as error:
        raise UsageError(
            "ANY-CLI-012",
            f"the data does not fit the model: {_misfit(opened.inputs, x, error)}",
            hint="give rows like those that the model was trained on; --debug shows what Keras says",
        ) from error


def _misfit(inputs: Any, x: Any, error: Exception) -> str:
    from anyrig.train.recipe.specs import describe_inputs, first_line, inputs_of_rows

    given = inputs_of_rows(x)
    if inputs is None or _shapes(inputs) == _shapes(given):
        return textwrap.shorten(first_line(error), _KERAS_TEXT, placeholder=" ...")
    return f"it takes rows of {describe_inputs(inputs)}; given are rows of {describe_inputs(given)}"


def _shapes(inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return {name: _shapes(part) for name, part in inputs.items()}
    return [_shapes(part) for part in inputs] if isinstance(inputs, list) else inputs.shape
