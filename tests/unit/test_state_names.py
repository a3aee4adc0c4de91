"""The names of variables: each variable once, the same names for the same model, whatever Keras's counters say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

from anyrig.errors import AnyrigError
from anyrig.state.seeds import seed_generators
from anyrig.state.walk import NamedVariable, metric_variables, model_variables
from tests.unit.state_models import ZOO, Subclassed, Tied, TwoHeads, layers, nested_models


def named(model: keras.Model) -> dict[str, NamedVariable]:
    return {item.name: item for item in model_variables(model)}


def specs(model: keras.Model) -> list[Any]:
    return [(item.name, item.place, tuple(item.variable.shape)) for item in model_variables(model)]


@pytest.mark.parametrize("kind", ZOO)
def test_every_variable_has_one_name_without_bookkeeping_or_counters(kind: str) -> None:
    model = ZOO[kind]()
    found = model_variables(model)
    assert {id(item.variable) for item in found} >= {id(variable) for variable in model.variables}
    assert len({id(item.variable) for item in found}) == len(found) == len(named(model))
    assert len(found) == len({id(variable) for variable in model.variables})
    for item in found:
        for text in (item.name, *(alias for alias in item.aliases if alias.startswith("model/"))):
            assert not re.search(r"/(_layers|_functional|_operations|_tracker|_self_|_nodes|_metrics)", text), text
            assert not re.search(r"/(dense|variable|lstm|seed_generator|sequential|functional)_\d+", text), text
    _check_same_names_in_other_circumstances(kind, model)


def _check_same_names_in_other_circumstances(kind: str, model: keras.Model) -> None:
    first = specs(model)
    for layer in model._flatten_layers():
        layer.trainable = False
    assert specs(model) == first, "freezing changed names"
    for _ in range(3):
        layers.Dense(1), layers.LSTM(1), keras.Sequential(), keras.random.SeedGenerator(0), keras.Variable(0.0)
    assert specs(ZOO[kind]()) == first, "counters changed names"


def test_names_are_what_the_user_wrote_and_structure() -> None:
    names = [item.name for item in model_variables(nested_models())]
    assert [name for name in names if name.endswith(("kernel", "gamma", "moving_mean"))] == [
        "model/functional.0/dense.0/kernel",
        "model/functional.0/dense.1/kernel",
        "model/shared/kernel",
        "model/tower/dense.0/kernel",
        "model/tower/batch_normalization.0/gamma",
        "model/tower/batch_normalization.0/moving_mean",
        "model/alpha/kernel",
        "model/dense.0/kernel",
        "model/dense.1/kernel",
        "model/dense.2/kernel",
        "model/score/kernel",
    ]


def test_names_in_containers_b176() -> None:
    model = ZOO["list_of_lists"]()
    assert [name for name in named(model) if name.endswith("kernel")] == [
        "model/nested.0/blocks/0/0/kernel",
        "model/nested.0/blocks/0/1/kernel",
        "model/nested.0/blocks/1/0/kernel",
        "model/nested.0/by_name/left/0/kernel",
        "model/nested.0/by_name/left/1/deep/0/kernel",
        "model/nested.0/by_name/a%2Fb/kernel",
    ]


def test_two_variables_of_one_name_are_told_apart_by_attribute_b015_b016() -> None:
    layer = TwoHeads()
    model = keras.Sequential([keras.Input((4,)), layer])
    found = named(model)
    assert found["model/two_heads.0/up"].variable is layer.up
    assert found["model/two_heads.0/down"].variable is layer.down
    assert found["model/two_heads.0/loose/0"].variable is layer.loose[0]
    assert found["model/two_heads.0/loose/1"].variable is layer.loose[1]


def test_variables_that_no_attribute_holds_go_by_position() -> None:
    class Loose(layers.Layer):  # type: ignore[misc, unused-ignore]
        def build(self, shape: Any) -> None:
            for _ in range(2):
                self.add_weight(name="w", shape=(1,))
            self.add_weight(shape=(2,))

        def call(self, x: Any) -> Any:
            return x

    found = named(keras.Sequential([keras.Input((4,)), Loose()]))
    assert [(name, tuple(item.variable.shape)) for name, item in found.items()] == [
        ("model/loose.0/w.0", (1,)),
        ("model/loose.0/w.1", (1,)),
        ("model/loose.0/variable.0", (2,)),
    ]


def test_a_shared_layer_has_one_name_and_the_other_as_alias() -> None:
    layer = Tied()
    found = named(keras.Sequential([keras.Input((4,)), layer]))
    assert list(found) == ["model/tied.0/kernel"]
    item = next(iter(found.values()))
    assert item.variable is layer.encoder.kernel
    assert {"model/tied.0/encoder/kernel", "model/tied.0/same/kernel"} <= set(item.aliases)


def test_attributes_of_a_functional_subclass_are_aliases() -> None:
    found = named(ZOO["with_attributes"]())
    assert "model/first/kernel" in found["model/dense.0/kernel"].aliases
    assert "model/stack/0/kernel" in found["model/named/kernel"].aliases


def test_keras_path_is_an_alias_when_only_one_variable_has_it() -> None:
    model = keras.Sequential([keras.Input((4,)), TwoHeads(name="two")], name="whole")
    found = named(model)
    assert found["model/two/query/kernel"].aliases == (found["model/two/query/kernel"].variable.path,)
    assert found["model/two/up"].variable.path == found["model/two/down"].variable.path
    assert found["model/two/up"].aliases == ()


def test_seed_generators_of_any_depth_b147() -> None:
    model = ZOO["subclassed"]()
    assert [path for path, _ in seed_generators(model)] == ["noise", "body/dropout.0/seed_generator"]
    found = named(model)
    for path, generator in seed_generators(model):
        assert found[f"model/{path}/state"].variable is generator.state
    recurrent = [path for path, _ in seed_generators(ZOO["recurrent"]())]
    assert recurrent == [
        "bidirectional.0/backward_layer/cell/seed_generator",
        "bidirectional.0/forward_layer/cell/seed_generator",
        "rnn.0/cell/cells/0/seed_generator",
        "rnn.0/cell/cells/1/seed_generator",
        "simple_rnn.0/cell/seed_generator",
    ]


def test_a_seed_generator_that_keras_does_not_track_is_found() -> None:
    layer = layers.Dense(4, name="d")
    model = keras.Sequential([keras.Input((4,)), layer])
    object.__setattr__(layer, "hidden", {"noise": keras.random.SeedGenerator(3)})
    assert layer.hidden["noise"].state not in [v for v in model.variables if v is layer.hidden["noise"].state]
    assert named(model)["model/d/hidden/noise/state"].variable is layer.hidden["noise"].state


def test_user_properties_are_never_called() -> None:
    class Trap(Subclassed):
        @property
        def expensive(self) -> Any:
            raise AssertionError("a property of the user was called")

        @property
        def metrics(self) -> Any:
            raise AssertionError("a property of the user was called")

    model = Trap()
    model(np.zeros((1, 4), "float32"))
    assert len(named(model)) == len({id(variable) for variable in model.variables})
    metric_variables(model)


def test_unnamed_layers_in_a_set_are_refused_and_named_ones_are_not() -> None:
    class InSet(layers.Layer):  # type: ignore[misc, unused-ignore]
        def __init__(self, *members: Any) -> None:
            super().__init__()
            self.members = set(members)

        def build(self, shape: Any) -> None:
            for member in self.members:
                member.build(shape)

        def call(self, x: Any) -> Any:
            return x

    named_ones = keras.Sequential([keras.Input((4,)), InSet(layers.Dense(1, name="b"), layers.Dense(1, name="a"))])
    assert [name for name in named(named_ones) if name.endswith("kernel")] == [
        "model/in_set.0/members/a/kernel",
        "model/in_set.0/members/b/kernel",
    ]
    with pytest.raises(AnyrigError, match="set has no order"):
        named(keras.Sequential([keras.Input((4,)), InSet(layers.Dense(1), layers.Dense(1))]))


def test_a_variable_that_no_layer_holds_is_an_error_that_names_it() -> None:
    stray = keras.Variable(1.0, name="stray")

    class Lister(layers.Layer):  # type: ignore[misc, unused-ignore]
        @property
        def variables(self) -> Any:
            return [*super().variables, stray]

        def call(self, x: Any) -> Any:
            return x

    with pytest.raises(AnyrigError, match="stray"):
        model_variables(keras.Sequential([keras.Input((4,)), Lister()]))


def test_names_of_older_keras_count_as_automatic() -> None:
    inputs = keras.Input((4,))
    inner = keras.Model(inputs, layers.Dense(4)(inputs), name="model_3")
    assert list(named(keras.Model(inputs, inner(inputs)))) == [
        "model/functional.0/dense.0/kernel",
        "model/functional.0/dense.0/bias",
    ]


def test_two_children_of_one_name_get_two_names() -> None:
    inputs = keras.Input((4,))
    auto, user = layers.Dense(4), layers.Dense(4, name="dense.0")
    found = named(keras.Model(inputs, user(auto(inputs))))
    assert found["model/dense.0/kernel"].variable is auto.kernel
    assert found["model/dense.0.1/kernel"].variable is user.kernel


def test_place_is_only_for_what_position_decides() -> None:
    for name, item in named(nested_models()).items():
        by_position = "dense." in name.split("/")[1] or "functional." in name
        assert (item.place is not None) == by_position, name
    assert all(item.place is None for item in model_variables(ZOO["sequential"]()))
    assert all(item.place is None for item in model_variables(ZOO["subclassed"]()))


def test_place_does_not_see_configuration_but_sees_arguments_and_outputs() -> None:
    def place(rate: float = 0.5, activation: str = "relu", swap: bool = False, out: int = 0) -> str | None:
        inputs = keras.Input((4,))
        first, second = layers.Dense(4, activation=activation)(inputs), layers.Dropout(rate)(inputs)
        joined = layers.Subtract()([second, first] if swap else [first, second])
        model = keras.Model(inputs, [inputs, joined] if out else [joined, inputs])
        return named(model)["model/dense.0/kernel"].place

    assert place() == place(rate=0.1) == place(activation="tanh")
    assert len({place(), place(swap=True), place(out=1)}) == 3


def test_symmetric_layers_share_a_place_and_a_shared_layer_has_its_own() -> None:
    def build(*, shared: bool) -> list[str | None]:
        inputs = keras.Input((4,))
        first, second = layers.Dense(4), layers.Dense(4)
        a, b = first(inputs), (first if shared else second)(inputs)
        return [item.place for item in model_variables(keras.Model(inputs, layers.Subtract()([a, b])))]

    apart = build(shared=False)
    assert len(set(apart)) == 2
    assert set(build(shared=True)).isdisjoint(apart)


def test_a_neighbour_that_is_called_twice_is_one_thing() -> None:
    def place(*, shared: bool) -> str | None:
        inputs = keras.Input((4,))
        x = layers.Dense(4)(inputs)
        first, second = layers.Dense(4), layers.Dense(4)
        model = keras.Model(inputs, layers.Subtract()([first(x), (first if shared else second)(x)]))
        return named(model)["model/dense.0/kernel"].place

    assert place(shared=True) != place(shared=False)


def test_place_sees_which_input_and_the_neighbours_names_and_shapes() -> None:
    def place(which: int, neighbour: str = "before", after: int = 3) -> str | None:
        inputs = [keras.Input((4,)), keras.Input((4,))]
        made = layers.Dense(after, name="after")(layers.Dense(4)(layers.ReLU(name=neighbour)(inputs[which])))
        return named(keras.Model(inputs, [made, inputs[1 - which]]))["model/dense.0/kernel"].place

    assert len({place(0), place(1), place(0, "other"), place(0, after=5)}) == 4


def keras_layer_classes() -> Iterator[type]:
    for name in sorted(dir(layers)):
        kind = getattr(layers, name)
        if isinstance(kind, type) and issubclass(kind, keras.Layer):
            yield kind


def test_every_keras_layer_that_builds_by_itself_is_fully_named() -> None:
    built = []
    for kind in keras_layer_classes():
        for shape, args in [
            ((2, 4), ()),
            ((2, 4), (3,)),
            ((2, 6, 4), (3,)),
            ((2, 6, 6, 4), (3, 2)),
            ((2, 6, 6, 6, 4), (3, 2)),
        ]:
            try:
                layer = kind(*args)
                layer.build(shape)
            except Exception:  # noqa: BLE001  this shape or these arguments are not for this layer
                continue
            names = [item.name for item in model_variables(layer)]
            assert len(set(names)) == len({id(variable) for variable in layer.variables}), kind
            if names:
                built.append(kind.__name__)
                break
    assert len(built) > 40, built


def test_metrics_have_user_names_and_outputs_by_structure() -> None:
    model = nested_models()
    model.compile(
        "adam",
        ["mse", "mae"],
        metrics=[["mae", keras.metrics.AUC()], ["mae", keras.metrics.MeanSquaredError(name="mine")]],
        weighted_metrics=[["mae"], []],
    )
    assert [item.name for item in metric_variables(model)] == ["metrics/loss/total", "metrics/loss/count"]
    model.evaluate(np.ones((2, 4)), [np.ones((2, 2)), np.ones((2, 1))], verbose=0)
    found = [item.name for item in metric_variables(model)]
    assert len(found) == len({id(item.variable) for item in metric_variables(model)}) == len(model.metrics_variables)
    assert [name for name in found if not name.endswith("count")] == [
        "metrics/loss/total",
        "metrics/dense.2_mae/total",
        *(
            f"metrics/dense.2_auc/{kind}"
            for kind in ("true_positives", "false_positives", "true_negatives", "false_negatives")
        ),
        "metrics/score_mae/total",
        "metrics/score_mine/total",
        "metrics/weighted_dense.2_mae/total",
        "metrics/dense.2_loss/total",
        "metrics/score_loss/total",
    ]


def test_metrics_held_by_layers_and_by_the_model() -> None:
    class Counting(layers.Layer):  # type: ignore[misc, unused-ignore]
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.seen = keras.metrics.Sum(name="seen")
            self.means = [keras.metrics.Mean(), keras.metrics.Mean()]

        def call(self, x: Any) -> Any:
            return x

    model = keras.Sequential([keras.Input((4,)), Counting(), Counting(name="mine")])
    model.compile("sgd", "mse")
    assert [item.name for item in metric_variables(model)] == [
        "metrics/loss/total",
        "metrics/loss/count",
        "metrics/counting.0/seen/total",
        "metrics/counting.0/mean/total",
        "metrics/counting.0/mean/count",
        "metrics/counting.0/mean.1/total",
        "metrics/counting.0/mean.1/count",
        "metrics/mine/seen/total",
        "metrics/mine/mean/total",
        "metrics/mine/mean/count",
        "metrics/mine/mean.1/total",
        "metrics/mine/mean.1/count",
    ]
