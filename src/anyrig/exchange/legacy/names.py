"""Names of classes and modules that older Keras wrote and today's does not have; each is translated by a rule."""

from __future__ import annotations

CLASSES = frozenset(
    [
        *("AtrousConvolution1D", "AtrousConvolution2D", "BatchNormalizationV1", "BatchNormalizationV2"),
        *("CuDNNGRU", "CuDNNLSTM", "Deconvolution2D", "Deconvolution3D", "GRUV2", "GRUCellV2", "LSTMV2", "LSTMCellV2"),
        *("Merge", "ModelV2", "Network", "SlicingOpLambda", "SyncBatchNormalization", "TFOpLambda"),
        *("TensorFlowOpLayer", "ThresholdedReLU", "Policy", "PolicyV1", "Highway", "MaxoutDense", "Container"),
        *("AddLoss", "AddMetric", "Sequential", "Functional", "Model", "LossFunctionWrapper", "RandomHeight"),
        *("RandomWidth", "DenseFeatures", "InstanceMethod", "ClassMethod", "StackedRNNCells", "Adafactor"),
        *("UniformUnitScaling", "TruncatedNormalV2", "RandomNormalV2", "RandomUniformV2", "OnesV2", "ZerosV2"),
        *("VarianceScalingV2", "TFOptimizer", "MultiHeadRelativeAttention", "NonNeg", "UnitNorm", "MaxNorm"),
    ]
)
"""Classes by name. A configuration that names one is translated to a class of today's Keras, or refused by name."""

_ROOTS = (
    "keras",
    "tf_keras",
    "tensorflow.keras",
    "tensorflow.python.keras",
    "tensorflow_core.python.keras",
    "builtins",
)


def is_keras_module(module: str) -> bool:
    """Tell whether a module's name is one that some Keras gave to its own classes."""
    return any(module == root or module.startswith(f"{root}.") for root in _ROOTS)
