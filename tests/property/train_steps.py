"""Properties of a training step over rows, batch sizes, V, weights and blocks of devices, on 3 logical devices.

Arguments: a seed, a factor for the number of examples. Prints, as JSON, for each property how it failed, or null.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from anyrig.topology.devices import configure

DEVICES = configure(3)

import hypothesis  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from keras import layers  # noqa: E402

from anyrig.state.values import to_array  # noqa: E402
from anyrig.topology.plan import DEFAULT_PRECISION, DevicePlan  # noqa: E402
from anyrig.train.batch import Batch  # noqa: E402
from anyrig.train.rig import Rig  # noqa: E402
from anyrig.train.step.owner import OwnerEngine  # noqa: E402

SEED, MORE = int(sys.argv[1]), int(sys.argv[2])
FEATURES = 3
RATE = 0.5
rig = Rig(3)


def examples(count: int) -> Any:
    """Return Hypothesis settings for so many examples."""
    return hypothesis.settings(
        max_examples=count * MORE,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )


def plan(virtual_replicas: int, cuts: list[int]) -> DevicePlan:
    """Return a plan that gives each device the virtual replicas between two cuts, perhaps none."""
    bounds = [0, *sorted(cuts), virtual_replicas]
    blocks = tuple(tuple(range(a, b)) for a, b in pairwise(bounds))
    return DevicePlan(
        devices=DEVICES[: len(blocks)],
        virtual_replicas=virtual_replicas,
        blocks=blocks,
        precision=DEFAULT_PRECISION,
        reasons=(),
    )


def rows_of(count: int, number: int) -> tuple[Any, Any]:
    """Return features and targets, float32, shapes (count, 3) and (count, 1)."""
    drawn = np.random.default_rng(number).normal(size=(count, FEATURES + 1)).astype("float32")
    return drawn[:, :FEATURES], drawn[:, FEATURES:]


# --- The step of a linear model is the one that can be written down.

_linear: dict[tuple[str, int], tuple[keras.Model, OwnerEngine]] = {}


def linear(reduction: str, virtual_replicas: int) -> tuple[keras.Model, OwnerEngine]:
    """Return a linear model and its engine, with weights as at the start."""

    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(RATE), keras.losses.MeanSquaredError(reduction=reduction))
        return model

    key = (reduction, virtual_replicas)
    if key not in _linear:
        model = rig.build(build)
        model._symbolic_build(data_batch=(*rows_of(4, 0), np.ones(4, "float32")))
        model.optimizer.build(model.trainable_variables)
        _linear[key] = model, OwnerEngine(plan(virtual_replicas, [virtual_replicas // 2]), model, 0)
        _linear[key][1].read_seeds()
    model, engine = _linear[key]
    model.set_weights([np.arange(FEATURES, dtype="float32")[:, None], np.zeros(1, "float32")])
    model.reset_metrics()
    return model, engine


@examples(15)
@hypothesis.seed(SEED)
@hypothesis.given(
    reduction=st.sampled_from(["sum_over_batch_size", "sum", "mean_with_sample_weight"]),
    virtual_replicas=st.sampled_from([1, 3, 6]),
    weight=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, 100.0]), min_size=1, max_size=20),
    number=st.integers(0, 100),
)
def step_is_that_of_the_whole_batch(reduction: str, virtual_replicas: int, weight: list[float], number: int) -> None:
    x, y = rows_of(len(weight), number)
    model, engine = linear(reduction, virtual_replicas)
    logs = engine.train((x, y, np.array(weight, "float32")), 0)
    wide, start, w = x.astype("float64"), np.arange(FEATURES)[:, None], np.array(weight)[:, None]
    error = wide @ start - y
    total = {"sum": 1.0, "sum_over_batch_size": len(w), "mean_with_sample_weight": w.sum()}[reduction] or 1.0
    kernel, bias = (np.asarray(value, "float64") for value in model.get_weights())
    size = max(1.0, np.abs(w).sum() / total)
    np.testing.assert_allclose(kernel, start - RATE * 2 * wide.T @ (w * error) / total, atol=2e-5 * size, rtol=1e-5)
    np.testing.assert_allclose(bias, -RATE * 2 * np.sum(w * error, axis=0) / total, atol=2e-5 * size, rtol=1e-5)
    np.testing.assert_allclose(float(logs["loss"]), np.sum(w * error**2) / total, atol=1e-5 * size, rtol=1e-5)


# --- With V fixed, who does which virtual replicas changes no byte.


def build_mixed() -> keras.Model:
    """Return a model with masks, moving averages, sparse rows and an optimizer with state."""
    inputs = keras.Input((FEATURES,))
    words = layers.Embedding(5, 2)(keras.ops.cast(keras.ops.abs(inputs), "int32"))
    hidden = layers.Dropout(0.3)(layers.BatchNormalization()(layers.Dense(4)(layers.Flatten()(words))))
    model = keras.Model(inputs, layers.Dense(1)(hidden))
    model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.5), "mse", metrics=["mae"])
    return model


mixed = rig.build(build_mixed)
mixed._symbolic_build(data_batch=(*rows_of(4, 0), None))
mixed.optimizer.build(mixed.trainable_variables)
everything = [*mixed.variables, *mixed.optimizer.variables, *mixed.metrics_variables]
at_start = [np.array(to_array(variable)) for variable in everything]
_alone: dict[Any, list[bytes]] = {}
_engines: dict[Any, OwnerEngine] = {}


def bytes_after(virtual_replicas: int, cuts: tuple[int, ...], sizes: tuple[int, ...]) -> list[bytes]:
    """Return the bytes of the whole state after a step on each batch."""
    for variable, value in zip(everything, at_start, strict=True):
        variable.assign(value)
    key = (virtual_replicas, cuts)
    if key not in _engines:
        _engines[key] = OwnerEngine(plan(virtual_replicas, list(cuts)), mixed, 0)
        _engines[key].read_seeds()
    for step, size in enumerate(sizes):
        _engines[key].train((*rows_of(size, step), None), step)
    return [to_array(variable).tobytes() for variable in everything]


@examples(4)
@hypothesis.seed(SEED)
@hypothesis.given(data=st.data(), virtual_replicas=st.sampled_from([2, 3, 5]))
def blocks_change_no_byte(data: Any, virtual_replicas: int) -> None:
    cuts = tuple(data.draw(st.lists(st.integers(0, virtual_replicas), min_size=1, max_size=2), label="cuts"))
    sizes = tuple(data.draw(st.lists(st.integers(1, 17), min_size=1, max_size=3), label="rows"))
    alone = (virtual_replicas, sizes)
    if alone not in _alone:
        _alone[alone] = bytes_after(virtual_replicas, (), sizes)
    assert bytes_after(virtual_replicas, cuts, sizes) == _alone[alone]


# --- Evaluate and predict take any number of rows; predictions stay in order.


def build_double() -> keras.Model:
    """Return a model that doubles, exactly."""
    model = keras.Sequential([keras.Input((1,)), layers.Rescaling(2.0)])
    model.compile(loss="mae", metrics=["mse"])
    return model


double = rig.build(build_double)


@examples(5)
@hypothesis.seed(SEED)
@hypothesis.given(rows=st.integers(1, 40), size=st.integers(1, 16), virtual_replicas=st.integers(1, 5))
def any_rows_can_be_evaluated_and_predicted(rows: int, size: int, virtual_replicas: int) -> None:
    x = np.arange(rows, dtype="float32")[:, None]
    batch = Batch(global_size=size, virtual_replicas=virtual_replicas)
    np.testing.assert_array_equal(rig.predict(double, x, batch=batch, verbose=0), 2 * x)
    found = rig.evaluate(double, x, x, batch=batch, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["loss"], x.mean(), rtol=1e-5)
    np.testing.assert_allclose(found["mse"], np.mean(x**2), rtol=1e-5)


def failure(check: Callable[[], Any]) -> str | None:
    """Return how a property failed, with the example found; None if it holds."""
    try:
        check()
    except BaseException:  # noqa: BLE001 - Hypothesis raises groups of errors
        return traceback.format_exc()
    return None


properties = (step_is_that_of_the_whole_batch, blocks_change_no_byte, any_rows_can_be_evaluated_and_predicted)
print(json.dumps({check.__name__: failure(check) for check in properties}))
