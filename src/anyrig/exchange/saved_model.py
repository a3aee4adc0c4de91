"""A SavedModel of whatever program, as an object that predicts: its signatures are called, its layers are not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from anyrig.errors import AnyrigError, UsageError
from anyrig.exchange.trust import Trust, allows
from anyrig.formats.contents import Contents, Signature, TensorSignature
from anyrig.store.dtypes import ITEM_BYTES, numpy_name

# An estimator's `serving_default` takes serialised examples, its `predict` what its model takes.
_PREFERRED = ("predict", "serving_default", "serve")
_Call = Callable[[dict[str, Any]], Mapping[str, Any]]


class Predictor:
    """What a SavedModel offers to call. `signatures` have the names, types and shapes of inputs and outputs."""

    def __init__(self, path: Path, signatures: tuple[Signature, ...], calls: Mapping[str, _Call]) -> None:
        self.path = path
        self.signatures = signatures
        self._calls = calls

    def __repr__(self) -> str:
        lines = [f"{each.name}({_listed(each.inputs)}) -> {_listed(each.outputs)}" for each in self.signatures]
        return "\n".join([f"Predictor of {self.path}", *(f"  {line}" for line in lines)])

    @property
    def inputs(self) -> tuple[TensorSignature, ...]:
        """What `predict` takes, as a Keras model says it; nothing where the signature leaves a shape open."""
        inputs = self._signature(None).inputs
        if any(each.shape is None for each in inputs):
            return ()
        return tuple(replace(each, dtype=_keras_type(each.dtype)) for each in inputs)

    def predict(self, x: Any, *, signature: str | None = None, verbose: Any = 0) -> Any:
        """Return the outputs for the rows `x`: arrays by the names of the signature, or the array if there is one.

        `x` is an array for a signature with one input, else a dict of arrays by the names of its inputs. `signature`
        is its name; without, `predict`, `serving_default`, `serve` or the only one. `verbose` is there as Keras has it.
        """
        chosen = self._signature(signature)
        given = dict(x) if isinstance(x, Mapping) else {each.name: x for each in chosen.inputs[:1]}
        wanted = {each.name for each in chosen.inputs}
        if given.keys() != wanted:
            raise UsageError(
                "ANY-OPEN-045",
                f"{self.path}: {chosen.name} takes {_listed(chosen.inputs)}, and was given {', '.join(sorted(given))}",
                hint="give a dict of arrays by these names",
            )
        outputs = {name: np.asarray(value) for name, value in self._calls[chosen.name](given).items()}
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def _signature(self, name: str | None) -> Signature:
        known = {each.name: each for each in self.signatures if each.name in self._calls}
        names = [name] if name is not None else [each for each in (*_PREFERRED, *known) if each in known]
        if not names or names[0] not in known:
            raise UsageError(
                "ANY-OPEN-044",
                f"{self.path} has no signature {name!r}; it has {', '.join(known) or 'none that can be called'}",
                hint="give one of these: predict(x, signature=NAME)",
            )
        return known[names[0]]


def _keras_type(spelling: str) -> str:
    return numpy_name(spelling) if spelling in ITEM_BYTES else "string"


def _listed(parts: Any) -> str:
    return ", ".join(f"{each.name}: {each.dtype}{'' if each.shape is None else list(each.shape)}" for each in parts)


def predictor(contents: Contents, trust: Trust) -> Predictor:
    """Return the predictor of the SavedModel `contents`. Raises ANY-OPEN-003 unless `trust` is `program`, and -046."""
    if not allows(trust, "program"):
        raise UsageError(
            "ANY-OPEN-003",
            f"{contents.path} is a SavedModel: a program of whoever made it, which would be run here",
            hint="if you trust who made it: trust='program' (--trust program); for its weights alone: into=, --into",
        )
    import tensorflow as tf

    try:
        loaded = tf.saved_model.load(str(contents.path))
        calls = {name: _called(function, loaded) for name, function in loaded.signatures.items()}
    except Exception as error:  # noqa: BLE001  (whatever it is, the other way may work)
        calls = _by_session(contents, error)
    return Predictor(contents.path, contents.signatures, calls)


def _called(function: Any, loaded: Any) -> _Call:
    import tensorflow as tf

    specs = function.structured_input_signature[1]

    def call(given: dict[str, Any]) -> Mapping[str, Any]:
        assert loaded is not None  # its variables live as long as it does
        outputs: Mapping[str, Any] = function(
            **{name: tf.convert_to_tensor(value, specs[name].dtype) for name, value in given.items()}
        )
        return outputs

    return call


def _by_session(contents: Contents, reason: Exception) -> dict[str, _Call]:
    """Load a graph that TensorFlow 2 cannot wrap (old control flow, lost objects) into a session of TensorFlow 1."""
    import tensorflow as tf

    graph = tf.Graph()
    session = tf.compat.v1.Session(graph=graph)
    try:
        with graph.as_default():
            meta = tf.compat.v1.saved_model.load(session, ["serve"], str(contents.path))
    except Exception as error:
        first = str(reason).strip().partition("\n")[0]
        raise AnyrigError(
            "ANY-OPEN-046",
            f"TensorFlow cannot load {contents.path}: {first}",
            hint="fill a model that you build with its weights: into=, --into FILE.py:FUNCTION",
        ) from error
    return {name: _run(session, signature) for name, signature in meta.signature_def.items()}


def _run(session: Any, signature: Any) -> _Call:
    def call(given: dict[str, Any]) -> Mapping[str, Any]:
        feeds = {signature.inputs[name].name: value for name, value in given.items()}
        fetches = {name: info.name for name, info in signature.outputs.items()}
        outputs: Mapping[str, Any] = session.run(fetches, feeds)
        return outputs

    return call
