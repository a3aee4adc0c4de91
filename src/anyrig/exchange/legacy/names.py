"""Names of classes and modules that older Keras wrote and today's does not have."""

from __future__ import annotations

from anyrig.exchange.legacy import tables

CLASSES = frozenset(
    [
        *tables.CLASSES_NOW,
        *tables.NO_EQUAL,
        *tables.INITIALIZERS_NOW,
        *tables.REGULARIZERS_NOW,
        *tables.CONSTRAINTS_NOW,
        *("Merge", "TimeDistributedDense", "ModelV2", "Network", "Container", "Policy", "PolicyV1"),
        *("TFOpLambda", "SlicingOpLambda", "TensorFlowOpLayer", "LossFunctionWrapper"),
    ]
)
"""Classes by name. A configuration that names one is translated to a class of today's Keras, or refused by name."""

_ROOTS = (
    *("keras", "tf_keras", "builtins"),
    *("tensorflow.keras", "tensorflow.python.keras", "tensorflow_core.python.keras"),
)


def is_keras_module(module: str) -> bool:
    """Tell whether a module's name is one that some Keras gave to its own classes."""
    return any(module == root or module.startswith(f"{root}.") for root in _ROOTS)
