"""What virtual replicas cannot divide is refused by name before a step is made; what is declared, or V = 1, runs."""

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

layers = keras.layers
X = np.random.default_rng(0).normal(size=(11, 6)).astype("float32")
Y = X[:, :1].copy()


def fit(build: Callable[[], keras.Model], v: int, **given: Any) -> keras.Model:
    rig = Rig(1)
    model = rig.build(build)
    rig.fit(model, X, Y, batch=anyrig.Batch(global_size=6, virtual_replicas=v), verbose=0, **given)
    return model


def with_layer(layer: Callable[[], Any]) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((6,)), layer(), layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    return build


def compiled(*, loss: Any = "mse", metrics: Any = None, cls: Any = keras.Sequential) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        model = cls([keras.Input((6,)), layers.Dense(1)])
        model.compile("sgd", loss, metrics=metrics)
        return model

    return build


@keras.saving.register_keras_serializable("refusals")
class Average(layers.Layer):
    """Keeps a float state that no rule knows."""

    def build(self, _: Any) -> None:
        self.average = self.add_weight(shape=(), initializer="zeros", trainable=False, name="average")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.average.assign(self.average + keras.ops.mean(inputs))
        return inputs


class Samples(layers.Layer):
    """Draws negative classes, as sampled losses do."""

    def call(self, inputs: Any) -> Any:
        drawn = tf.random.log_uniform_candidate_sampler(tf.zeros((1, 1), tf.int64), 1, 3, True, 50)
        return inputs + tf.cast(drawn.sampled_candidates[0], inputs.dtype)


class Writes(layers.Layer):
    """Writes a variable that Keras does not manage."""

    def build(self, _: Any) -> None:
        self.raw = tf.Variable(0.0)

    def call(self, inputs: Any) -> Any:
        self.raw.assign_add(1.0)
        return inputs


class Random(layers.Layer):
    """Draws without a key."""

    def call(self, inputs: Any) -> Any:
        return inputs + tf.random.normal(tf.shape(inputs))


class Python(layers.Layer):
    """Calls Python."""

    def call(self, inputs: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(np.abs, [inputs], tf.float32), inputs.shape)


class Largest(keras.metrics.Metric):
    """A maximum, which is no sum."""

    def __init__(self, name: str = "largest") -> None:
        super().__init__(name=name)
        self.value = self.add_weight(shape=(), initializer="zeros", name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(y_true))))

    def result(self) -> Any:
        return self.value


class Absolute(Largest):
    """A sum of the user's own."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign_add(keras.ops.sum(keras.ops.abs(y_true)))


class Rows(layers.Layer):
    """Counts rows, not steps."""

    def build(self, _: Any) -> None:
        self.rows = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False, name="rows")

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.rows.assign_add(keras.ops.cast(keras.ops.shape(inputs)[0], "int64"))
        return inputs


class Hidden(layers.Layer):
    """Draws from a generator that no layer holds."""

    def __init__(self) -> None:
        super().__init__()
        self.box: Any = type("Box", (), {"generator": keras.random.SeedGenerator(1)})

    def call(self, inputs: Any) -> Any:
        return inputs + keras.random.normal(keras.ops.shape(inputs), seed=self.box.generator)


class Sums(layers.Layer):
    """Adds a loss that is a sum over rows."""

    def call(self, inputs: Any) -> Any:
        self.add_loss(keras.ops.sum(keras.ops.square(inputs)))
        return inputs


class OwnLoss(keras.Sequential):
    """Computes its loss itself."""

    def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True) -> Any:
        return keras.ops.mean(keras.ops.square(y_pred - y))


def one_number(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.square(y_true - y_pred))


def stateful() -> keras.Model:
    model = keras.Sequential([keras.Input(batch_shape=(6, 3, 2)), layers.LSTM(2, stateful=True), layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


AT_V_ABOVE_ONE = {
    "unknown state": (with_layer(Average), "ANY-TRAIN-005", "'average'"),
    "synchronized": (with_layer(lambda: layers.BatchNormalization(synchronized=True)), "ANY-TRAIN-010", "synchronized"),
    "maximum": (compiled(metrics=[Largest()]), "ANY-TRAIN-011", "'largest'"),
    "correlation": (compiled(metrics=[keras.metrics.PearsonCorrelation()]), "ANY-TRAIN-011", "correlation"),
    "batch mean": (compiled(metrics=[one_number]), "ANY-TRAIN-011", "one_number"),
    "rows counted": (with_layer(Rows), "ANY-TRAIN-005", "'rows'"),
    "added sum": (with_layer(Sums), "ANY-TRAIN-015", "is not what its rows give"),
    "pairs": (compiled(loss=lambda t, p: keras.ops.square(t - keras.ops.mean(p, 0))), "ANY-TRAIN-015", "divided"),
    "own loss": (compiled(cls=OwnLoss), "ANY-TRAIN-009", "OwnLoss"),
    "one number": (compiled(loss=one_number), "ANY-TRAIN-003", "one number for the whole batch"),
}
AT_ANY_V = {
    "stateful": (stateful, "ANY-TRAIN-005", "stateful=True"),
    "tf.Variable": (with_layer(Writes), "ANY-TRAIN-006", "tf.Variable"),
    "no key": (with_layer(Random), "ANY-TRAIN-006", "without a key"),
    "sampler": (with_layer(Samples), "ANY-TRAIN-006", "without a key"),
    "python": (with_layer(Python), "ANY-TRAIN-006", "Python"),
    "hidden generator": (with_layer(Hidden), "ANY-TRAIN-014", "seed_generator"),
    "not compiled": (lambda: keras.Sequential([keras.Input((6,)), layers.Dense(1)]), "ANY-TRAIN-007", "compile"),
}


@pytest.mark.parametrize("what", [*AT_V_ABOVE_ONE, *AT_ANY_V])
@pytest.mark.sampled(6)
def test_refused_by_name_with_two_virtual_replicas(what: str) -> None:
    build, code, words = {**AT_V_ABOVE_ONE, **AT_ANY_V}[what]
    with pytest.raises(AnyrigError, match=words) as refused:
        fit(build, 2)
    assert refused.value.code == code


@pytest.mark.parametrize("what", AT_ANY_V)
@pytest.mark.sampled(3)
def test_refused_by_name_with_one_virtual_replica(what: str) -> None:
    build, code, _ = AT_ANY_V[what]
    with pytest.raises(AnyrigError) as refused:
        fit(build, 1)
    assert refused.value.code == code


@pytest.mark.parametrize("what", AT_V_ABOVE_ONE)
@pytest.mark.sampled(3)
def test_one_virtual_replica_does_what_keras_does(what: str) -> None:
    build, _, _ = AT_V_ABOVE_ONE[what]
    rig = Rig(1)
    ours, theirs = rig.build(build), rig.build(build)
    found = rig.fit(ours, X, Y, batch=anyrig.Batch(global_size=6, virtual_replicas=1), shuffle=False, verbose=0).history
    expected = theirs.fit(X, Y, batch_size=6, shuffle=False, verbose=0).history
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)
    for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rule", "expected"), [("mean", "rows"), ("sum", "all"), ("first", None)])
def test_a_declared_rule_is_used(rule: Any, expected: str | None) -> None:
    def build() -> keras.Model:
        model = with_layer(Average)()
        anyrig.merge_rule(model.layers[0], "average", rule)
        return model

    if expected is None:
        with pytest.raises(tf.errors.InvalidArgumentError, match="moved this state differently"):
            fit(build, 2)
        return
    model = fit(build, 2, shuffle=False)
    halves = [(0, 3), (3, 6), (6, 9), (9, 11)]
    weights = [3 / 6, 3 / 6, 3 / 5, 2 / 5] if expected == "rows" else [1, 1, 1, 1]
    wanted = sum(w * X[a:b].mean() for w, (a, b) in zip(weights, halves, strict=True))
    np.testing.assert_allclose(float(model.layers[0].average), wanted, rtol=1e-5)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(AnyrigError, match="unknown rule 'median'"):
        anyrig.merge_rule(Average(), "average", "median")  # type: ignore[arg-type]


def test_a_metric_of_the_users_own_that_is_a_sum_is_merged() -> None:
    rig = Rig(1)
    model = rig.build(compiled(metrics=[Absolute("total")]))
    logs = rig.evaluate(model, X, Y, batch=anyrig.Batch(global_size=6, virtual_replicas=4), return_dict=True, verbose=0)
    np.testing.assert_allclose(logs["total"], np.abs(Y).sum(), rtol=1e-6)


def test_predict_needs_no_compiled_model() -> None:
    rig = Rig(1)
    model = rig.build(lambda: keras.Sequential([layers.Dense(3)]))
    outputs = rig.predict(model, X, batch=anyrig.Batch(global_size=4, virtual_replicas=3), verbose=0)
    np.testing.assert_allclose(outputs, model(X), rtol=1e-6)
