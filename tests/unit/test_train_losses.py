"""Virtual replicas give Keras's loss for the whole batch, whatever the loss divides by: rows, positions, weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyrig
from anyrig.errors import AnyrigError
from anyrig.train.rig import Rig
from anyrig.train.step.losses import share_of

layers, losses = keras.layers, keras.losses
GENERATOR = np.random.default_rng(0)
TOKENS = GENERATOR.integers(0, 5, (23, 7))
TOKENS[3:9] = 0  # whole micro-batches without a valid position
TOKENS[:, 5:] = 0
NUMBERS = GENERATOR.normal(size=(23, 7, 1)).astype("float32")
LABELS = GENERATOR.integers(0, 3, (23, 7))
PER_STEP = GENERATOR.uniform(0, 1, (23, 7)).astype("float32")
IGNORES = {"from_logits": True, "ignore_class": 0}


def same_as_keras(build: Callable[[], keras.Model], x: Any, y: Any, weight: Any = None, v: int = 4) -> None:
    """Fit the model on uneven batches with V virtual replicas and with Keras; compare history and weights."""
    rig = Rig(1)
    ours, theirs = rig.build(build), rig.build(build)
    given: dict[str, Any] = {"sample_weight": weight, "epochs": 2, "shuffle": False, "verbose": 0}
    found = rig.fit(ours, x, y, batch=anyrig.Batch(global_size=8, virtual_replicas=v), **given).history
    expected = theirs.fit(x, y, batch_size=8, **given).history
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-6, atol=1e-6, err_msg=name)
    for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def per_token(loss: Any, *, mask: bool = True, outputs: int = 1, rate: float = 0.1) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((7,), dtype="int32"), layers.Embedding(5, 4, mask_zero=mask)])
        model.add(layers.Dense(outputs))
        metrics = (["mae"], ["mse"]) if outputs == 1 else (["accuracy"], [])
        model.compile(keras.optimizers.SGD(rate), loss, metrics=metrics[0], weighted_metrics=metrics[1])
        return model

    return build


def by_weights(cls: Any, **given: Any) -> Any:
    return cls(reduction="mean_with_sample_weight", **given)


DENOMINATORS: dict[str, tuple[Callable[[], keras.Model], Any, Any]] = {
    "mask": (per_token("mse"), NUMBERS, None),
    "mask, weights per step": (per_token("mse"), NUMBERS, PER_STEP),
    "mask, mean by weights": (per_token(by_weights(losses.MeanSquaredError)), NUMBERS, PER_STEP),
    "mask, sum": (per_token(losses.MeanSquaredError(reduction="sum"), rate=1e-3), NUMBERS, None),
    "mean by weights": (per_token(by_weights(losses.MeanSquaredError), mask=False), NUMBERS, PER_STEP),
    "no weight at all": (per_token(by_weights(losses.MeanSquaredError)), NUMBERS, PER_STEP * 0),
    "ignored class": (per_token(losses.SparseCategoricalCrossentropy(**IGNORES), mask=False, outputs=3), LABELS, None),
    "mask and ignored class": (
        per_token(by_weights(losses.SparseCategoricalCrossentropy, **IGNORES), outputs=3),
        LABELS,
        PER_STEP,
    ),
}


@pytest.mark.parametrize("what", DENOMINATORS)
@pytest.mark.sampled(3)
def test_each_loss_is_divided_by_what_keras_divides_it_by(what: str) -> None:
    build, y, weight = DENOMINATORS[what]
    same_as_keras(build, TOKENS, y, weight)


class Custom(losses.Loss):
    """One number for all rows."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return keras.ops.sum(keras.ops.square(y_true - y_pred))


class OwnCall(Custom):
    """Computes its mean itself."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return keras.ops.mean(keras.ops.square(y_true - y_pred))


class OwnCompute(keras.Sequential):
    """Adds a penalty on its outputs to the compiled loss."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
        return super().compute_loss(x, y, y_pred, sample_weight) + keras.ops.mean(keras.ops.abs(y_pred))


class OwnSum(keras.Sequential):
    """Adds a sum over rows to a compiled loss that is one."""

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
        return super().compute_loss(x, y, y_pred, sample_weight) + keras.ops.sum(keras.ops.abs(y_pred))


class AddsSum(layers.Layer):
    """Adds a loss that is a sum over rows."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(1e-2 * keras.ops.sum(keras.ops.square(inputs)))
        return inputs


def one_number(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.square(y_true - y_pred))


def dense(loss: Any, cls: Any = keras.Sequential, added: Any = layers.Identity, **given: Any) -> keras.Model:
    model = cls([keras.Input((5,)), layers.Dense(4, **given), added(), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-2), loss)
    return model


DECLARED: dict[str, tuple[Callable[[], keras.Model], Callable[[keras.Model], Any], Any]] = {
    "function": (lambda: dense(one_number), lambda model: model.loss, "mean"),
    "class": (lambda: dense(Custom()), lambda model: model.loss, "sum"),
    "own __call__": (lambda: dense(OwnCall()), lambda model: model.loss, "mean"),
    "compute_loss": (lambda: dense("mse", OwnCompute, kernel_regularizer="l2"), lambda model: model, "mean"),
    "compute_loss, sum": (
        lambda: dense(losses.MeanSquaredError(reduction="sum"), OwnSum),
        lambda model: model,
        "sum",
    ),
    "added sum": (lambda: dense("mse", added=AddsSum, kernel_regularizer="l2"), lambda model: model.layers[1], "sum"),
}
X = GENERATOR.normal(size=(23, 5)).astype("float32")
Y = X[:, :1].copy()


@pytest.mark.parametrize("what", DECLARED)
@pytest.mark.sampled(2)
def test_a_declared_loss_is_that_of_the_whole_batch(what: str) -> None:
    build, declared, rule = DECLARED[what]

    def declare() -> keras.Model:
        model = build()
        anyrig.loss_rule(declared(model), rule)
        return model

    same_as_keras(declare, X, Y)


@pytest.mark.parametrize(("what", "code"), [("function", "ANY-TRAIN-015"), ("compute_loss", "ANY-TRAIN-009")])
def test_a_wrong_declaration_is_found(what: str, code: str) -> None:
    rig = Rig(1)
    model = rig.build(DECLARED[what][0])
    anyrig.loss_rule(DECLARED[what][1](model), "sum")
    try:
        with pytest.raises(AnyrigError) as refused:
            rig.fit(model, X, Y, batch=anyrig.Batch(global_size=8, virtual_replicas=4), verbose=0)
    finally:
        anyrig.loss_rule(DECLARED[what][1](model), "mean")
    assert refused.value.code == code


def test_regularizers_count_once_per_step() -> None:
    given = {"kernel_regularizer": "l2", "activity_regularizer": "l1"}
    same_as_keras(lambda: dense("mse", added=lambda: layers.ActivityRegularization(0.1), **given), X, Y)


def test_a_loss_for_each_row_is_refused_also_when_declared() -> None:
    loss = losses.MeanSquaredError(reduction=None)
    anyrig.loss_rule(loss, "mean")
    rig = Rig(1)
    with pytest.raises(AnyrigError, match="is not reduced to one number"):
        rig.fit(rig.build(lambda: dense(loss)), X, Y, batch=anyrig.Batch(global_size=8, virtual_replicas=4), verbose=0)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(AnyrigError, match="unknown rule 'first'"):
        anyrig.loss_rule(one_number, "first")  # type: ignore[arg-type]


def test_shares_are_exact_enough_for_float64() -> None:
    share = share_of(1, 3, [tf.constant(2.0, tf.float64)], [tf.constant(7.0, tf.float64)])
    assert (float(share.rows), float(share.counts[0])) == (1 / 3, 2 / 7)
