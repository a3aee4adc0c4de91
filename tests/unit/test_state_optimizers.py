"""Names and round trips of every optimizer that Keras has: each variable once, by the model variable it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

from anyrig.errors import AnyrigError
from anyrig.state.capture import capture
from anyrig.state.restore import restore
from anyrig.state.walk import model_variables, optimizer_variables
from tests.unit.state_models import Source, TwoHeads, contents, layers, state_of

optimizers = keras.optimizers
PLAIN = {
    name: getattr(optimizers, name)
    for name in dir(optimizers)
    if isinstance(getattr(optimizers, name), type)
    and issubclass(getattr(optimizers, name), optimizers.Optimizer)
    and name not in ("Optimizer", "LossScaleOptimizer", "MultiOptimizer")
}
VARIANTS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Adam": {"amsgrad": True},
    "AdamW": {"amsgrad": True},
}
EXTRAS: dict[str, dict[str, Any]] = {
    "alone": {},
    "ema": {"use_ema": True},
    "accumulating": {"gradient_accumulation_steps": 2},
    "both": {"use_ema": True, "gradient_accumulation_steps": 3},
}


def build(optimizer: Any, *, frozen: bool = False) -> keras.Model:
    """Return a compiled model with unnamed, shared-name and named variables, its optimizer built."""
    inputs = keras.Input((4,))
    hidden = layers.Dense(4, name="hidden")
    model = keras.Model(inputs, layers.Dense(1, use_bias=False)(TwoHeads()(hidden(inputs))))
    hidden.trainable = not frozen
    model.compile(optimizer, "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def step(model: keras.Model) -> None:
    rng = np.random.default_rng(0)
    variables = model.trainable_variables
    gradients = [keras.ops.cast(rng.normal(size=tuple(v.shape)), v.dtype) for v in variables]
    model.optimizer.apply(gradients, variables)


def named(model: keras.Model) -> dict[str, keras.Variable]:
    found = optimizer_variables(model.optimizer, model_variables(model))
    assert len({item.name for item in found}) == len(found)
    return {item.name: item.variable for item in found}


def several() -> Any:
    chosen = {".*hidden/kernel": optimizers.SGD(0.1, momentum=0.9), ".*bias": optimizers.Lion()}
    return optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.Adam(), chosen))


def every_optimizer() -> Iterator[tuple[str, Callable[[], Any]]]:
    for name, kind in PLAIN.items():
        for extra, arguments in EXTRAS.items():
            yield f"{name}-{extra}", partial(kind, **VARIANTS.get(name, {}), **arguments)
        if name in VARIANTS:
            yield f"{name}-default", kind
    yield "LossScale", lambda: optimizers.LossScaleOptimizer(optimizers.Adam())
    yield "LossScale-both", lambda: optimizers.LossScaleOptimizer(optimizers.SGD(momentum=0.9, **EXTRAS["both"]))
    yield "schedule", lambda: optimizers.Adam(optimizers.schedules.CosineDecay(0.1, 10))
    yield "Multi", several


EVERY = dict(every_optimizer())


DEFAULT = {"Adam-both", "SGD-both", "LossScale-both"} | {
    kind for kind in EVERY if kind.endswith("-alone") or "-" not in kind
}
CASES = [pytest.param(kind, marks=[] if kind in DEFAULT else [pytest.mark.full]) for kind in EVERY]


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.sampled(6)
def test_every_optimizer_is_named_round_trips_and_goes_on_alike_u12(kind: str) -> None:
    model, other = build(EVERY[kind]()), build(EVERY[kind]())
    found = named(model)
    assert {id(v) for v in found.values()} == {id(v) for v in model.optimizer.variables}
    assert list(named(other)) == list(found), "counters must not show"
    assert not [name for name in found if "_1" in name or "variable." in name], "a slot found no variable"
    step(model)
    restore(Source(capture(model)), other)
    assert state_of(other) == state_of(model)
    step(model)
    step(other)
    assert state_of(other) == state_of(model)


def test_slot_names_are_the_optimizers_words() -> None:
    assert list(named(build(optimizers.AdamW(amsgrad=True, **EXTRAS["both"]), frozen=True)))[:2] == [
        "optimizer/main/iterations",
        "optimizer/main/learning_rate",
    ]
    found = set(named(build(optimizers.AdamW(amsgrad=True, **EXTRAS["both"]))))
    for path in ("hidden/kernel", "dense.0/kernel", "two_heads.0/up", "two_heads.0/down", "two_heads.0/loose/0"):
        assert {f"optimizer/main/{path}/{slot}" for slot in ("momentum", "velocity", "velocity_hat")} <= found
        assert {f"optimizer/main/accumulator/{path}", f"ema/{path}"} <= found


@pytest.mark.parametrize(
    ("kind", "slots"),
    [
        ("Adadelta", {"accumulated_grad", "accumulated_delta_var"}),
        ("Adafactor", {"r", "c", "velocity"}),
        ("Adagrad", {"accumulator"}),
        ("Adamax", {"momentum", "norm"}),
        ("Ftrl", {"accumulator", "linear"}),
        ("Lion", {"momentum"}),
        ("Muon", {"momentum", "velocity"}),
        ("RMSprop", {"velocity", "momentum", "average_gradient"}),
        ("SGD", {"momentum"}),
    ],
)
def test_slot_words(kind: str, slots: set[str]) -> None:
    found = named(build(EVERY[f"{kind}-alone"]()))
    assert {name.rpartition("/")[2] for name in found if "hidden/bias" in name or "hidden/kernel" in name} == slots


def test_scalars_of_nadam_and_of_the_loss_scale() -> None:
    assert "optimizer/main/u_product" in named(build(optimizers.Nadam()))
    found = named(build(optimizers.LossScaleOptimizer(optimizers.Adam())))
    scale = {
        f"optimizer/main/loss_scale/{name}" for name in ("iterations", "learning_rate", "step_counter", "dynamic_scale")
    }
    assert scale | {"optimizer/main/iterations", "optimizer/main/hidden/kernel/momentum"} <= set(found)


def test_optimizers_of_a_multi_optimizer_go_by_the_users_pattern() -> None:
    found = named(build(several()))
    assert "optimizer/main/optimizers/.*hidden%2Fkernel/hidden/kernel/momentum" in found
    assert "optimizer/main/optimizers/.*bias/iterations" in found
    assert "optimizer/main/optimizers/default/two_heads.0/up/velocity" in found


def test_slots_belong_to_their_variable_by_identity_not_by_name_b081() -> None:
    model = build(optimizers.Adam())
    layer = model.layers[2]
    assert isinstance(layer, TwoHeads)
    assert layer.up.path == layer.down.path, "the case: Keras gives both one path"
    found = named(model)
    index = model.optimizer._get_variable_index(layer.down)
    assert found["optimizer/main/two_heads.0/down/momentum"] is model.optimizer._momentums[index]


def test_slots_are_named_by_variable_when_a_part_is_frozen_b004() -> None:
    whole, part = named(build(optimizers.Adam())), named(build(optimizers.Adam(), frozen=True))
    assert {name for name in whole if name not in part} == {
        f"optimizer/main/hidden/{variable}/{slot}"
        for variable in ("kernel", "bias")
        for slot in ("momentum", "velocity")
    }


def test_slots_kept_in_a_dict_are_found_by_keras_name() -> None:
    class Keeps(optimizers.Optimizer):  # type: ignore[misc, unused-ignore]
        def build(self, variables: Any) -> None:
            super().build(variables)
            self.slots = {v.path: self.add_variable_from_reference(v, name="speed") for v in variables}

    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, name="hidden"), layers.Dense(1)])
    model.compile(Keeps(0.1), "mse")
    model.optimizer.build(model.trainable_variables)
    assert {"optimizer/main/hidden/kernel/speed", "optimizer/main/dense.0/bias/speed"} <= set(named(model))
    with pytest.raises(AnyrigError, match="scale_speed"):
        named(build(Keeps(0.1)))  # Keras gives two variables of TwoHeads one name, so these slots could be swapped


def test_an_optimizer_built_on_other_variables_is_named_by_keras_path() -> None:
    model = build(optimizers.SGD(momentum=0.9))
    model.optimizer = optimizers.SGD(momentum=0.9)
    model.optimizer.build([keras.Variable(1.0, name="temperature")])
    assert "optimizer/main/other/temperature/momentum" in named(model)


def test_two_slots_of_one_name_are_an_error() -> None:
    class Clash(optimizers.Optimizer):  # type: ignore[misc, unused-ignore]
        def build(self, variables: Any) -> None:
            super().build(variables)
            self.a = [self.add_variable_from_reference(v, name="slot") for v in variables]
            self.b = [self.add_variable_from_reference(v, name="slot") for v in variables]

    with pytest.raises(AnyrigError, match="hidden/kernel/slot"):
        named(build(Clash(0.1)))


def test_an_unbuilt_optimizer_is_built_by_capture_and_restore_u12_b060_b062() -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, name="d")])
    model.compile("adam", "mse")
    captured = capture(model)
    assert "optimizer/main/d/kernel/momentum" in contents(captured)
    other = keras.Sequential([keras.Input((4,)), layers.Dense(1, name="d")])
    other.compile("adam", "mse")
    assert not other.optimizer.built
    restore(Source(captured), other)
    assert state_of(other) == contents(captured)


def test_another_optimizer_is_refused_slot_by_slot_u13() -> None:
    source = Source(capture(build(optimizers.SGD(momentum=0.9))))
    model = build(optimizers.Adam())
    before = state_of(model)
    with pytest.raises(AnyrigError, match=r"wanted  optimizer/main/hidden/kernel/velocity  float32 \[4, 4\]"):
        restore(source, model)
    assert state_of(model) == before
