"""A scan of a traced micro-batch for effects that would escape it.

A micro-batch must be a function of what it is given. A variable written outside the scope, a random number without a
key, a table insert or a call into Python would make the result depend on how often and where it ran, so each is refused
with the operation and the layer (from the operation's name scope).
"""

from __future__ import annotations

from typing import Any

from anyrig.errors import UsageError

_WRITES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceScatter", "ResourceApply")
_RANDOM = ("RandomUniform", "RandomStandardNormal", "TruncatedNormal", "RandomShuffle", "Multinomial", "RandomGamma",
           "RandomPoisson", "RandomUniformInt", "ParameterizedTruncatedNormal", "StatefulUniform",
           "StatefulStandardNormal", "StatefulTruncatedNormal", "StatefulRandomBinomial", "RngReadAndSkip")  # fmt: skip
_TABLES = ("LookupTableInsert", "LookupTableImport", "LookupTableRemove")
_PYTHON = ("PyFunc", "EagerPyFunc")
_KINDS = (
    (_WRITES, "writes a tf.Variable that Keras does not manage", "make it a keras.Variable with self.add_weight(...)"),
    (_RANDOM, "draws random numbers without a key", "use keras.random with a keras.random.SeedGenerator"),
    (_TABLES, "changes a lookup table", "fill the table before training (adapt)"),
    (_PYTHON, "calls back into Python", "write it with TensorFlow or keras.ops operations"),
)


def refuse_impure(graph: Any) -> None:
    """Raise UsageError for the first operation of `graph`, or of a function it calls, that is not pure."""
    for operation in _operations(graph):
        for prefixes, what, instead in _KINDS:
            if operation.type.startswith(prefixes) or (prefixes is _RANDOM and _has_own_seed(operation)):
                raise UsageError(
                    "ANY-TRAIN-006",
                    f"the model's operation {operation.name!r} ({operation.type}) {what}, "
                    "so virtual replicas could not give the same numbers on every device count",
                    hint=instead,
                )


def _has_own_seed(operation: Any) -> bool:
    """Tell whether an operation keeps random state by itself, as candidate samplers and fractional pooling do."""
    return any(attribute.name == "seed2" for attribute in operation.op_def.attr)


def _operations(graph: Any) -> Any:
    yield from graph.get_operations()
    for function in graph._functions.values():
        inner = getattr(function, "graph", None)
        if inner is not None and hasattr(inner, "get_operations"):
            yield from _operations(inner)
