"""What changed between Keras 1, 2 and tf.keras and today's Keras, as data: classes, arguments, values, functions.

A rule is an entry. How entries are used stands in translate.py; where a rule needs more than a table, it is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ANY: Any = object()
"""In `DROPPED`: whatever the value is, it has no effect on what the layer computes."""

_CONV = ("Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose")
_DEPTH = ("DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D")
_POOL = tuple(f"{kind}Pooling{n}D" for kind in ("Max", "Average") for n in (1, 2, 3))
RECURRENT = ("LSTM", "GRU", "SimpleRNN", "RNN", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D")
INNER_LAYERS = ("layer", "backward_layer", "cell", "cells")
"""Arguments that are layers, or lists of layers."""

CLASSES_NOW: Mapping[str, str] = {
    "AtrousConvolution1D": "Conv1D",
    "AtrousConvolution2D": "Conv2D",
    "BatchNormalizationV1": "BatchNormalization",
    "BatchNormalizationV2": "BatchNormalization",
    "SyncBatchNormalization": "BatchNormalization",
    "CuDNNGRU": "GRU",
    "CuDNNLSTM": "LSTM",
    "Deconvolution2D": "Conv2DTranspose",
    "Deconvolution3D": "Conv3DTranspose",
    "GRUV2": "GRU",
    "GRUCellV2": "GRUCell",
    "LSTMV2": "LSTM",
    "LSTMCellV2": "LSTMCell",
    "ThresholdedReLU": "ReLU",
    **{f"Convolution{n}D": f"Conv{n}D" for n in (1, 2, 3)},
    **{f"SeparableConvolution{n}D": f"SeparableConv{n}D" for n in (1, 2)},
    **{f"Convolution{n}DTranspose": f"Conv{n}DTranspose" for n in (2, 3)},
}


def classes_then(now: str) -> list[str]:
    """Return what a class of today was called before."""
    return [then for then, name in CLASSES_NOW.items() if name == now]


NO_EQUAL: Mapping[str, str] = {
    "Highway": "Keras 2 dropped it",
    "MaxoutDense": "Keras 2 dropped it",
    "RandomHeight": "Keras 3 has no layer that changes the size at random",
    "RandomWidth": "Keras 3 has no layer that changes the size at random",
    "DenseFeatures": "feature columns are gone",
    "AddLoss": "a loss that is added in the graph is not kept by Keras 3",
    "AddMetric": "a metric that is added in the graph is not kept by Keras 3",
    "InstanceMethod": "it calls a method of an object that is not in the file",
    "ClassMethod": "it calls a method of a class that is not in the file",
    "MultiHeadRelativeAttention": "it is of another package",
    "LocallyConnected1D": "Keras 3 dropped it",
    "LocallyConnected2D": "Keras 3 dropped it",
}

_OF_KERAS_1 = {
    "init": "kernel_initializer",
    "W_regularizer": "kernel_regularizer",
    "U_regularizer": "recurrent_regularizer",
    "b_regularizer": "bias_regularizer",
    "W_constraint": "kernel_constraint",
    "U_constraint": "recurrent_constraint",
    "b_constraint": "bias_constraint",
    "bias": "use_bias",
    "dim_ordering": "data_format",
    "inner_init": "recurrent_initializer",
    "inner_activation": "recurrent_activation",
    "dropout_W": "dropout",
    "dropout_U": "recurrent_dropout",
    "border_mode": "padding",
    "subsample": "strides",
    "subsample_length": "strides",
    "nb_filter": "filters",
    "filter_length": "kernel_size",
    "atrous_rate": "dilation_rate",
    "forget_bias_init": "unit_forget_bias",
}
_UNITS = {"output_dim": "units"}
ARGUMENTS_NOW: Mapping[str, Mapping[str, str]] = {
    "*": _OF_KERAS_1,
    **dict.fromkeys(("Dense", "LSTM", "GRU", "SimpleRNN"), _UNITS),
    "Embedding": {"init": "embeddings_initializer", "W_regularizer": "embeddings_regularizer"}
    | {"W_constraint": "embeddings_constraint"},
    "Dropout": {"p": "rate"},
    "SpatialDropout1D": {"p": "rate"},
    "SpatialDropout2D": {"p": "rate"},
    "SpatialDropout3D": {"p": "rate"},
    "GaussianDropout": {"p": "rate"},
    "AlphaDropout": {"p": "rate"},
    "GaussianNoise": {"sigma": "stddev"},
    "BatchNormalization": {"beta_init": "beta_initializer", "gamma_init": "gamma_initializer"},
    "LeakyReLU": {"alpha": "negative_slope"},
    "PReLU": {"init": "alpha_initializer"},
    "ReLU": {"theta": "threshold"},
    "UpSampling1D": {"length": "size"},
    "MaxPooling1D": {"pool_length": "pool_size", "stride": "strides"},
    "AveragePooling1D": {"pool_length": "pool_size", "stride": "strides"},
    "SeparableConv2D": {"init": "depthwise_initializer", "depthwise_init": "depthwise_initializer"},
}
KERNEL_SIZES = (("nb_row", "nb_col"), ("kernel_dim1", "kernel_dim2", "kernel_dim3"))
"""Sizes that Keras 1 wrote one by one."""

VALUES_NOW: Mapping[str, Mapping[Any, Any]] = {
    "data_format": {"tf": "channels_last", "th": "channels_first", "default": None},
    "unit_forget_bias": {"one": True, "zero": False, "zeros": False, "ones": True},
}

THEN: Mapping[str, Mapping[str, Any]] = {
    "GRU": {"reset_after": False},
    "GRUCell": {"reset_after": False},
}
"""Defaults of then that differ from today's, for files of before the argument was."""
MEANT: Mapping[str, Mapping[str, Any]] = {
    "CuDNNGRU": {"reset_after": True, "activation": "tanh", "recurrent_activation": "sigmoid"},
    "CuDNNLSTM": {"activation": "tanh", "recurrent_activation": "sigmoid"},
}
"""What a class of then always did."""

INTEGERS_OUT = ("Discretization",)
"""Layers whose `dtype` was that of what they give. Today it is that of their inputs too: fractions would be cut off."""

_KERNEL = {f"kernel_{part}": ANY for part in ("initializer", "regularizer", "constraint")}
DROPPED: Mapping[str, Mapping[str, Any]] = {
    "*": {
        **dict.fromkeys(("batch_input_shape", "batch_shape", "input_shape", "input_dtype", "input_dim"), ANY),
        **dict.fromkeys(("implementation", "consume_less", "experimental_autocast", "autocast", "_name"), ANY),
        **dict.fromkeys(("rng_type", "auto_vectorize", "vocabulary_size", "has_input_vocabulary"), ANY),
        "trainable": ANY,  # layers that do not take it have no weights
        **dict.fromkeys(("activity_regularizer", "weights", "num_constants"), None),
        **dict.fromkeys(("dynamic", "stateful", "time_major", "ragged"), False),
    },
    "Embedding": {"input_length": ANY, "dropout": 0},
    **{name: {"input_length": ANY, "unroll": ANY} for name in ("LSTM", "GRU", "SimpleRNN", "TimeDistributed")},
    "InputLayer": {"ragged": False},
    "BatchNormalization": {
        "mode": 0,
        "renorm": False,
        "virtual_batch_size": None,
        "adjustment": None,
        "fused": ANY,
        "renorm_clipping": ANY,
        "renorm_momentum": ANY,
    },
    **{name: {**_KERNEL, "groups": 1} for name in _DEPTH},
    **{name: {"groups": 1, "output_shape": ANY} for name in _CONV if name.endswith("Transpose")},
    "Conv1D": {"input_length": ANY},
    "MultiHeadAttention": dict.fromkeys(("query_shape", "key_shape", "value_shape", "softmax_robust_masking"), ANY),
    "Attention": {"causal": False},
    "AdditiveAttention": {"causal": False},
    **{f"SpatialDropout{n}D": {"noise_shape": None} for n in (1, 2, 3)},
}
"""Arguments that Keras no longer has, with the value at which it is what Keras does today."""

ACTIVATIONS_BEFORE_3: Mapping[str, str] = {"hard_sigmoid": "anyrig>hard_sigmoid_of_keras_2"}
"""Functions whose meaning changed under an unchanged name."""

FUNCTIONS_NOW: Mapping[str, str] = {
    "swish": "silu",
    "logcosh": "log_cosh",
    "huber_loss": "huber",
    "cosine": "cosine_similarity",
    "cosine_proximity": "cosine_similarity",
    "kullback_leibler_divergence": "kl_divergence",
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "msle": "mean_squared_logarithmic_error",
    "bce": "binary_crossentropy",
    "kld": "kl_divergence",
    "MSE": "mean_squared_error",
    "MAE": "mean_absolute_error",
    "MAPE": "mean_absolute_percentage_error",
    "MSLE": "mean_squared_logarithmic_error",
    "KLD": "kl_divergence",
    "BCE": "binary_crossentropy",
}

INITIALIZERS_NOW: Mapping[str, str] = {
    "normal": "random_normal",
    "uniform": "random_uniform",
    "zero": "zeros",
    "one": "ones",
    "Normal": "RandomNormal",
    "Uniform": "RandomUniform",
    "RandomNormalV2": "RandomNormal",
    "RandomUniformV2": "RandomUniform",
    "TruncatedNormalV2": "TruncatedNormal",
    "VarianceScalingV2": "VarianceScaling",
    "UniformUnitScaling": "VarianceScaling",
    "OnesV2": "Ones",
    "ZerosV2": "Zeros",
}
REGULARIZERS_NOW: Mapping[str, str] = {
    "WeightRegularizer": "L1L2",
    "L1L2Regularizer": "L1L2",
    "ActivityRegularizer": "L1L2",
    "l1": "L1",
    "l2": "L2",
    "l1l2": "L1L2",
    "l1_l2": "L1L2",
}
CONSTRAINTS_NOW: Mapping[str, str] = {"maxnorm": "MaxNorm", "nonneg": "NonNeg", "unitnorm": "UnitNorm"}
CONSTRAINT_ARGUMENTS: Mapping[str, str] = {"m": "max_value"}

OPTIMIZER_ARGUMENTS: Mapping[str, str] = {"lr": "learning_rate", "rho_1": "rho", "schedule": "learning_rate"}
OPTIMIZER_DROPPED: Mapping[str, Any] = {
    **dict.fromkeys(("is_legacy_optimizer", "jit_compile", "decay", "name"), ANY),
    "schedule_decay": 0.004,
}
METRIC_OF_FUNCTION: Mapping[str, str] = {
    "binary_accuracy": "BinaryAccuracy",
    "categorical_accuracy": "CategoricalAccuracy",
    "sparse_categorical_accuracy": "SparseCategoricalAccuracy",
    "mean_squared_error": "MeanSquaredError",
    "mean_absolute_error": "MeanAbsoluteError",
    "mean_absolute_percentage_error": "MeanAbsolutePercentageError",
    "mean_squared_logarithmic_error": "MeanSquaredLogarithmicError",
    "binary_crossentropy": "BinaryCrossentropy",
    "categorical_crossentropy": "CategoricalCrossentropy",
    "sparse_categorical_crossentropy": "SparseCategoricalCrossentropy",
    "top_k_categorical_accuracy": "TopKCategoricalAccuracy",
    "sparse_top_k_categorical_accuracy": "SparseTopKCategoricalAccuracy",
    "cosine_similarity": "CosineSimilarity",
    "kl_divergence": "KLDivergence",
    "log_cosh": "LogCoshError",
    "poisson": "Poisson",
    "hinge": "Hinge",
    "squared_hinge": "SquaredHinge",
    "categorical_hinge": "CategoricalHinge",
}
