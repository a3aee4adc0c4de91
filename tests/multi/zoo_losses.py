"""Cases: losses, weights and metrics."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

from tests.multi.zoo import Case, arrays, compiled, floats, integers, kind, one_hot, stack, weights

loss_kind = kind("Losses and metrics")
CROSSENTROPY = "sparse_categorical_crossentropy"


def _mlp(outputs: int = 1, activation: Any = None) -> keras.Model:
    return stack((4,), layers.Dense(5, activation="tanh"), layers.Dense(outputs, activation=activation))


def _outputs(names_and_layers: dict[str, keras.layers.Layer]) -> keras.Model:
    inputs = keras.Input((4,))
    hidden = layers.Dense(5, activation="tanh")(inputs)
    return keras.Model(inputs, {name: layer(hidden) for name, layer in names_and_layers.items()})


@loss_kind
def regression_losses() -> Case:
    """Nine regression losses by name and class, one for each output."""
    losses: dict[str, Any] = {
        "a": "mse", "b": "mae", "c": keras.losses.Huber(0.5), "d": "log_cosh", "e": "mape", "f": "msle", "g": "poisson",
        "h": keras.losses.CosineSimilarity(), "i": "huber",
    }  # fmt: skip
    build = lambda: compiled(_outputs({name: layers.Dense(2, "softplus") for name in losses}), losses)  # noqa: E731
    return Case(build, arrays(floats(4), {name: abs(floats(2, seed=i)) + 0.1 for i, name in enumerate(losses)}))


@loss_kind
def classification_losses() -> Case:
    """Eight classification losses with label smoothing, focal and hinge forms, one for each output."""
    losses: dict[str, Any] = {
        "a": keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
        "b": keras.losses.CategoricalFocalCrossentropy(),
        "c": keras.losses.BinaryFocalCrossentropy(apply_class_balancing=True), "d": "kl_divergence", "e": "hinge",
        "f": "categorical_hinge", "g": "squared_hinge", "h": keras.losses.CategoricalGeneralizedCrossEntropy(),
    }  # fmt: skip
    build = lambda: compiled(_outputs({name: layers.Dense(3, "softmax") for name in losses}), losses)  # noqa: E731
    labels = {name: integers(3) if name == "h" else one_hot(3) for name in losses}
    return Case(build, arrays(floats(4), labels))


@loss_kind
def ignored_class() -> Case:
    """Sparse cross-entropy of logits for each step, one class ignored."""

    def build() -> keras.Model:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        return compiled(stack((5, 4), layers.Dense(3)), loss)

    return Case(build, arrays(floats(5, 4), integers(3, 5)))


@loss_kind
def ctc() -> Case:
    """CTC loss over sequences."""
    build = lambda: compiled(stack((8, 4), layers.Dense(5)), keras.losses.CTC())  # noqa: E731
    return Case(build, arrays(floats(8, 4), integers(4, 3) + 1))


@loss_kind
def own_loss_function() -> Case:
    """A loss function of one's own, and a metric function."""

    def pinball(y_true: Any, y_pred: Any) -> Any:
        difference = y_true - y_pred
        return keras.ops.mean(keras.ops.maximum(0.9 * difference, -0.1 * difference), axis=-1)

    def bias(y_true: Any, y_pred: Any) -> Any:
        return keras.ops.mean(y_pred - y_true, axis=-1)

    return Case(lambda: compiled(_mlp(2), pinball, metrics=[bias]), arrays(floats(4), floats(2, seed=2)))


class Relative(keras.losses.Loss):
    """A loss class of one's own."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the relative error of each row."""
        return keras.ops.mean(keras.ops.abs(y_true - y_pred) / (1 + keras.ops.abs(y_true)), axis=-1)


@loss_kind
def own_loss_class() -> Case:
    """A loss class of one's own, with sample weights."""
    fit = arrays(floats(4), floats(2, seed=2), sample_weight=weights())
    return Case(lambda: compiled(_mlp(2), Relative(name="relative")), fit)


@loss_kind
def reductions() -> Case:
    """Reductions `sum`, `mean`, `sum_over_batch_size` and `mean_with_sample_weight`, one for each output."""
    kinds = ["sum", "mean", "sum_over_batch_size", "mean_with_sample_weight"]
    losses = {name: keras.losses.MeanSquaredError(reduction=name) for name in kinds}
    build = lambda: compiled(_outputs({name: layers.Dense(2) for name in kinds}), losses)  # noqa: E731
    return Case(build, arrays(floats(4), {name: floats(2, seed=i) for i, name in enumerate(kinds)}))


@loss_kind
def no_loss_for_an_output() -> Case:
    """A loss for one of two outputs only."""

    def build() -> keras.Model:
        model = _outputs({"used": layers.Dense(1), "free": layers.Dense(1)})
        return compiled(model, {"used": "mse", "free": None}, metrics={"used": ["mae"]})

    return Case(build, arrays(floats(4), {"used": floats(1, seed=2), "free": floats(1, seed=3)}))


class AddsLoss(keras.layers.Layer):
    """Adds a penalty on the mean square of what passes."""

    def call(self, inputs: Any) -> Any:
        """Return the inputs."""
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


@loss_kind
def added_loss() -> Case:
    """`add_loss` of a mean over the batch."""
    build = lambda: compiled(stack((4,), layers.Dense(5), AddsLoss(), layers.Dense(1)))  # noqa: E731
    return Case(build, arrays(floats(4), floats(1, seed=2)))


@loss_kind
def regularizers() -> Case:
    """Regularisers of kernels and biases, activity regularisers."""

    def build() -> keras.Model:
        hidden = layers.Dense(5, kernel_regularizer="l2", bias_regularizer="l1", activity_regularizer="l2")
        orthogonal = layers.Dense(3, kernel_regularizer=keras.regularizers.OrthogonalRegularizer())
        return compiled(stack((4,), hidden, orthogonal, layers.Dense(1)))

    return Case(build, arrays(floats(4), floats(1, seed=2)))


@loss_kind
def class_weight() -> Case:
    """`class_weight`."""
    fit = arrays(floats(4), integers(3), class_weight={0: 1.0, 1: 3.0, 2: 0.0})
    return Case(lambda: compiled(_mlp(3, "softmax"), CROSSENTROPY, weighted_metrics=["accuracy"]), fit)


@loss_kind
def row_weights() -> Case:
    """`sample_weight` for each row, some zero; `weighted_metrics` beside plain ones."""
    fit = arrays(floats(4), floats(1, seed=2), sample_weight=weights())
    return Case(lambda: compiled(_mlp(), metrics=["mae"], weighted_metrics=["mse"]), fit)


@loss_kind
def step_weights() -> Case:
    """`sample_weight` for each step of a sequence, as the loss's denominator."""

    def build() -> keras.Model:
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        return compiled(stack((5, 4), layers.LSTM(3, return_sequences=True), layers.Dense(1)), loss)

    return Case(build, arrays(floats(5, 4), floats(5, 1, seed=2), sample_weight=weights(5)))


@loss_kind
def output_weights() -> Case:
    """`sample_weight` for each output."""

    def build() -> keras.Model:
        model = _outputs({"one": layers.Dense(1), "two": layers.Dense(1)})
        return compiled(model, {"one": "mse", "two": "mae"}, loss_weights={"one": 1.0, "two": 0.5})

    y = {"one": floats(1, seed=2), "two": floats(1, seed=3)}
    return Case(build, arrays(floats(4), y, sample_weight={"one": weights(), "two": weights()[::-1]}))


@loss_kind
def masked_loss() -> Case:
    """Masking, a loss and metrics for each step, and weights for each step."""
    x = floats(5, 3)
    x[::2, 3:] = 0

    def build() -> keras.Model:
        model = stack((5, 3), layers.Masking(), layers.GRU(4, return_sequences=True), layers.Dense(1))
        return compiled(model, "mse", metrics=["mae"], weighted_metrics=["mse"])

    return Case(build, arrays(x, floats(5, 1, seed=2), sample_weight=weights(5)))


@loss_kind
def binary_metrics() -> Case:
    """AUC (ROC and PR), precision, recall, F1, F-beta, confusion counts, sensitivity at specificity."""

    def build() -> keras.Model:
        metrics = keras.metrics
        curves = [metrics.AUC(20), metrics.AUC(20, curve="PR", name="pr"), metrics.SensitivityAtSpecificity(0.5)]
        counts = [metrics.Precision(), metrics.Recall(), metrics.TruePositives(), metrics.FalseNegatives()]
        scores = [metrics.F1Score(threshold=0.5), metrics.FBetaScore(threshold=0.5), metrics.BinaryIoU()]
        return compiled(_mlp(1, "sigmoid"), "binary_crossentropy", metrics=curves + counts + scores)

    return Case(build, arrays(floats(4), integers(2, 1).astype("float32")))


@loss_kind
def class_metrics() -> Case:
    """Top-k, MeanIoU, one-hot IoU, categorical metrics."""

    def build() -> keras.Model:
        metrics = keras.metrics
        found = ["accuracy", metrics.TopKCategoricalAccuracy(2), metrics.OneHotMeanIoU(3), "categorical_crossentropy"]
        return compiled(_mlp(3, "softmax"), "categorical_crossentropy", metrics=found)

    return Case(build, arrays(floats(4), one_hot(3)))


@loss_kind
def segmentation() -> Case:
    """A class for each pixel with MeanIoU and sparse top-k."""

    def build() -> keras.Model:
        metrics = [keras.metrics.MeanIoU(3, sparse_y_pred=False), keras.metrics.SparseTopKCategoricalAccuracy(2)]
        model = stack((6, 6, 1), layers.Conv2D(3, 3, padding="same", activation="softmax"))
        return compiled(model, CROSSENTROPY, metrics=metrics)

    return Case(build, arrays(floats(6, 6, 1), integers(3, 6, 6)))


@loss_kind
def regression_metrics() -> Case:
    """R2, RMSE, cosine similarity, log-cosh."""

    def build() -> keras.Model:
        found = [
            keras.metrics.R2Score(),
            keras.metrics.RootMeanSquaredError(),
            "cosine_similarity",
            keras.metrics.LogCoshError(),
        ]
        return compiled(_mlp(2), metrics=found)

    return Case(build, arrays(floats(4), floats(2, seed=2)))


class Positives(keras.metrics.Metric):
    """A metric of one's own: the share of positive predictions."""

    def __init__(self, name: str = "positives") -> None:
        super().__init__(name=name)
        self.positive = self.add_weight(shape=(), initializer="zeros", name="positive")
        self.seen = self.add_weight(shape=(), initializer="zeros", name="seen")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Count."""
        del y_true, sample_weight
        self.positive.assign_add(keras.ops.sum(keras.ops.cast(y_pred > 0, "float32")))
        self.seen.assign_add(keras.ops.cast(keras.ops.size(y_pred), "float32"))

    def result(self) -> Any:
        """Return the share."""
        return self.positive / keras.ops.maximum(self.seen, 1.0)


@loss_kind
def own_metric() -> Case:
    """A metric class of one's own, and the same metric for two outputs."""

    def build() -> keras.Model:
        model = _outputs({"one": layers.Dense(1), "two": layers.Dense(1)})
        return compiled(model, "mse", metrics={"one": [Positives()], "two": [Positives()]})

    return Case(build, arrays(floats(4), {"one": floats(1, seed=2), "two": floats(1, seed=3)}))


@loss_kind
def float64_labels() -> Case:
    """Labels and weights in float64, features in float16, as NumPy makes them."""
    x, y = floats(4).astype("float16"), np.asarray(floats(1, seed=2), "float64")
    return Case(lambda: compiled(_mlp()), arrays(x, y, sample_weight=weights().astype("float64")))
