"""`anyrig.open_model` and `anyrig.convert` on files of Keras 3: every format there and back, with the optimizer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest
from safetensors.numpy import save_file

import anyrig
from anyrig.errors import AnyrigError, UsageError
from anyrig.exchange.open import open_with_report
from anyrig.exchange.proof import largest_difference
from anyrig.exchange.sample import sample_for
from anyrig.exchange.save import save_as
from anyrig.exchange.targets import H5_WEIGHTS
from anyrig.formats.sniff import read_any
from anyrig.mapping.rules import Rules
from anyrig.store.digest import hash_file

layers = keras.layers


def functional() -> keras.Model:
    numbers, words = keras.Input((5,), name="numbers"), keras.Input((None,), name="words", dtype="int32")
    read = layers.GlobalAveragePooling1D()(layers.Embedding(11, 3)(words))
    joined = layers.Concatenate()([layers.Dense(4)(numbers), read])
    outputs = {"one": layers.Dense(1, name="one")(joined), "many": layers.Dense(3, name="many")(joined)}
    model = keras.Model({"numbers": numbers, "words": words}, outputs)
    model.compile("adam", loss={"one": "mse", "many": "mse"})
    return model


def sequential() -> keras.Model:
    stack = [layers.Conv2D(4, 3), layers.BatchNormalization(), layers.GlobalAveragePooling2D(), layers.Dense(2)]
    model = keras.Sequential([keras.Input((8, 8, 3)), *stack])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    return model


def nested() -> keras.Model:
    inner = keras.Sequential([keras.Input((6,)), layers.Dense(6), layers.BatchNormalization(), layers.Dense(6)])
    inner.layers[0].trainable = False
    steps = keras.Input((5, 6))
    x = layers.TimeDistributed(inner)(layers.Bidirectional(layers.LSTM(3, return_sequences=True))(steps))
    model = keras.Model(steps, layers.Dense(2)(layers.Dropout(0.3)(layers.GRU(4)(x))))
    model.compile("rmsprop", "mse")
    return model


BUILDERS: dict[str, Callable[[], keras.Model]] = {
    "functional": functional,
    "sequential": sequential,
    "nested": nested,
}


def trained(build: Callable[[], keras.Model]) -> tuple[keras.Model, Any]:
    model = build()
    x, _ = sample_for(model)
    y = keras.tree.map_structure(np.zeros_like, model.predict(x, verbose=0))
    model.fit(x, y, epochs=2, verbose=0)
    return model, x


@pytest.fixture(scope="module", params=BUILDERS)
def case(request: pytest.FixtureRequest) -> tuple[Callable[[], keras.Model], keras.Model, Any]:
    build = BUILDERS[request.param]
    return (build, *trained(build))


def data_of(variables: Any) -> list[bytes]:
    return [variable.numpy().tobytes() for variable in variables]


def same_outputs(model: Any, other: Any, x: Any) -> bool:
    found = [keras.tree.flatten(each.predict(x, verbose=0)) for each in (model, other)]
    return largest_difference(*found) == 0


def test_whole_models_come_back_with_their_optimizer(case: Any, tmp_path: Path) -> None:
    _, model, x = case
    for suffix in (".keras", ".h5", ""):
        anyrig.save_model(model, tmp_path / f"model{suffix}")
        opened = open_with_report(tmp_path / f"model{suffix}")
        assert same_outputs(model, opened.model, x), suffix
        assert data_of(opened.model.weights) == data_of(model.weights)
        assert data_of(opened.model.optimizer.variables) == data_of(model.optimizer.variables), suffix
        assert opened.notes == ()
    anyrig.save(tmp_path / "checkpoint", model)
    assert same_outputs(model, anyrig.open_model(tmp_path / "checkpoint"), x)


def test_weights_alone_fill_what_the_user_builds(case: Any, tmp_path: Path) -> None:
    build, model, x = case
    for suffix in (".weights.h5", ".safetensors", ".ckpt"):
        anyrig.save_model(model, tmp_path / f"weights{suffix}")
        with pytest.raises(UsageError, match="no description of a model") as alone:
            anyrig.open_model(tmp_path / f"weights{suffix}")
        assert alone.value.code == "ANY-OPEN-040"
        opened = open_with_report(tmp_path / f"weights{suffix}", into=build)
        assert same_outputs(model, opened.model, x), suffix
        assert {name for name in opened.report.restored if name.startswith("model/")}


def test_every_format_into_every_other(case: Any, tmp_path: Path) -> None:
    build, model, x = case
    anyrig.save_model(model, tmp_path / "from.keras")
    source = tmp_path / "from.keras"
    for suffix in (".h5", ".safetensors", "", ".weights.h5", ".keras"):
        into = build if source.name.endswith((".safetensors", ".weights.h5")) else None
        done = anyrig.convert(source, tmp_path / f"to{suffix}", into=into, sample=x, lossy=True)
        assert done.difference == 0 or suffix == ""
        assert done.difference is not None
        assert done.difference <= done.tolerance
        source = done.saved.path
    assert same_outputs(model, anyrig.open_model(source), x)


def test_convert_refuses_what_does_not_predict_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = trained(sequential)
    anyrig.save_model(model, tmp_path / "model.keras")
    (tmp_path / "model.h5").write_bytes(b"the former file")

    def other(*_: Any, **__: Any) -> keras.Model:
        return trained(sequential)[0]

    monkeypatch.setattr(keras.saving, "load_model", other)
    with pytest.raises(AnyrigError, match="does not predict the same") as refused:
        anyrig.convert(tmp_path / "model.keras", tmp_path / "model.h5")
    assert refused.value.code == "ANY-CONVERT-006"
    assert (tmp_path / "model.h5").read_bytes() == b"the former file"


def test_nothing_is_left_out_in_silence(tmp_path: Path) -> None:
    """A layer more or less, or a head of another size, is an error that names it, and nothing is changed."""
    model, _ = trained(sequential)
    anyrig.save_model(model, tmp_path / "w.safetensors")
    other = keras.Sequential([*sequential().layers[:-1], layers.Dense(3)])
    other.build((None, 8, 8, 3))
    before = data_of(other.variables)
    with pytest.raises(AnyrigError, match=r"the layer makes 2 outputs and 3 are wanted") as refused:
        anyrig.open_model(tmp_path / "w.safetensors", into=other)
    assert refused.value.code == "ANY-OPEN-043"
    assert data_of(other.variables) == before


def test_U01_layers_made_in_another_order_are_not_swapped(tmp_path: Path) -> None:
    def two(first: str, second: str) -> keras.Model:
        x = keras.Input((3,), name="x")
        made = {name: layers.Dense(3, name=name) for name in (first, second)}
        return keras.Model(x, [made["alpha"](x), made["beta"](x)])

    model = two("alpha", "beta")
    x = np.ones((2, 3), "float32")
    for suffix in (".weights.h5", ".safetensors"):
        anyrig.save_model(model, tmp_path / f"w{suffix}")
        opened = anyrig.open_model(tmp_path / f"w{suffix}", into=lambda: two("beta", "alpha"))
        assert same_outputs(model, opened, x)


class Block(layers.Layer):
    """Two layers of one shape in attributes, set in the order of `order`."""

    def __init__(self, order: str) -> None:
        super().__init__(name="block")
        for name in order:
            setattr(self, name, layers.Dense(3))

    def build(self, shape: Any) -> None:
        self.a.build(shape)
        self.b.build(shape)

    def call(self, x: Any) -> Any:
        return self.b(keras.ops.tanh(self.a(x)))


def inner_chain(order: str) -> Any:
    made = {name: layers.Dense(3) for name in order}
    x = keras.Input((3,))
    return keras.Model(x, made["b"](keras.ops.tanh(made["a"](x))))


@pytest.mark.parametrize("inner", [Block, inner_chain])
def test_U01_inner_layers_of_an_h5_file_are_right_or_refused(inner: Callable[[str], Any], tmp_path: Path) -> None:
    """Names that Keras chose count the layers as they were made; a file of another order has the same ones."""

    def build(order: str) -> keras.Model:
        keras.utils.clear_session()
        x = keras.Input((3,))
        return keras.Model(x, inner(order)(x))

    model, x = build("ab"), np.ones((2, 3), "float32")
    for suffix, save in ((".h5", anyrig.save_model), ("w.h5", lambda m, path: save_as(H5_WEIGHTS, m, path))):
        save(model, tmp_path / f"m{suffix}")
        for order in ("ab", "ba"):
            other = build(order)
            try:
                right = same_outputs(model, anyrig.open_model(tmp_path / f"m{suffix}", into=other), x)
            except AnyrigError as error:
                right = error.code == "ANY-OPEN-043"
            assert right


class Parts(layers.Layer):
    """Two layers of one shape in a dict, made in the order of `order`."""

    def __init__(self, order: str) -> None:
        super().__init__(name="parts")
        self.inner = {key: layers.Dense(3) for key in order}

    def build(self, shape: Any) -> None:
        for each in self.inner.values():
            each.build(shape)

    def call(self, x: Any) -> Any:
        return self.inner["b"](keras.ops.tanh(self.inner["a"](x)))


class Stack(Parts):
    """Three layers of one shape in a list, made in the order of `order`."""

    def __init__(self, order: str) -> None:
        super().__init__("")
        made = {key: layers.Dense(3) for key in order}
        self.stack = [made[key] for key in "abc"]

    def build(self, shape: Any) -> None:
        for each in self.stack:
            each.build(shape)

    def call(self, x: Any) -> Any:
        for each in self.stack:
            x = keras.ops.tanh(each(x))
        return x


def around(inner: Callable[[str], Any], order: str) -> keras.Model:
    keras.utils.clear_session()
    return keras.Sequential([keras.Input((3,)), inner(order)])


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_U01_attributes_are_names_and_a_dict_whose_keys_the_file_lacks_is_told(suffix: str, tmp_path: Path) -> None:
    x, path = np.ones((2, 3), "float32"), tmp_path / f"model{suffix}"
    model = around(Block, "ab")
    anyrig.save_model(model, path)
    assert all(same_outputs(model, anyrig.open_model(path, into=around(Block, order)), x) for order in ("ab", "ba"))
    model = around(Parts, "ab")
    anyrig.save_model(model, path)
    with pytest.warns(UserWarning, match=r"parts\.inner: the file has no keys, so its layers a, b"):
        assert same_outputs(model, anyrig.open_model(path, into=around(Parts, "ab")), x)


@pytest.mark.parametrize(("inner", "order", "other"), [(Block, "ab", "ba"), (Parts, "ab", "ba"), (Stack, "abc", "cba")])
def test_U01_an_h5_file_tells_lists_by_their_order_and_all_else_if_the_same_code_is_vouched_for(
    inner: Callable[[str], Any], order: str, other: str, tmp_path: Path
) -> None:
    x, path, rules = np.ones((2, 3), "float32"), tmp_path / "model.h5", tmp_path / "rules.yaml"
    rules.write_text("version: 1\nsame_code: true\n")
    model = around(inner, order)
    anyrig.save_model(model, path)
    for made in (order, other):
        if inner is Stack and made == order:
            assert same_outputs(model, anyrig.open_model(path, into=around(inner, made)), x)
        else:
            with pytest.raises(AnyrigError, match="order alone would decide"):
                anyrig.open_model(path, into=around(inner, made))
    keras.layers.Dense(1)  # other numbers than in the file
    for build in (lambda: around(inner, order), lambda: keras.Sequential([keras.Input((3,)), inner(order)])):
        assert same_outputs(model, anyrig.open_model(path, into=build, rules=rules), x)
    if inner is not Stack:
        with pytest.raises(AnyrigError, match="the same code did not make") as refused:
            anyrig.open_model(path, into=around(Stack, "abc"), rules=rules)
        assert refused.value.code == "ANY-MAP-009"


def test_same_code_is_no_word_for_formats_that_go_by_names(tmp_path: Path) -> None:
    anyrig.save_model(around(Block, "ab"), tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match="in no order") as refused:
        anyrig.open_model(
            tmp_path / "model.safetensors", into=around(Block, "ab"), rules=Rules((), "mine", same_code=True)
        )
    assert refused.value.code == "ANY-MAP-008"


def test_bfloat16_without_its_type_is_told(tmp_path: Path) -> None:
    """Keras writes it into an `.h5` of weights as bytes; without a configuration nothing says what they mean."""
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, dtype="bfloat16")])
    H5_WEIGHTS.write(model, tmp_path / "w.h5")
    with pytest.raises(AnyrigError, match="does not say what its bytes mean") as refused:
        anyrig.open_model(tmp_path / "w.h5", into=model)
    assert refused.value.code == "ANY-MAP-007"


def test_what_cannot_be_meant_is_refused_and_a_source_is_hashed_before_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    keras.Sequential([keras.Input((3,)), layers.Dense(2)]).save(path)
    before = hash_file(path)
    with pytest.raises(UsageError, match="OPEN-048"):
        anyrig.convert(path, tmp_path / "n.keras", rules=tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="OPEN-049"):
        anyrig.open_model(path, into=lambda: None)
    assert anyrig.convert(path, path).source_hash == {"m.keras": before}


def test_rules_say_what_names_do_not(tmp_path: Path) -> None:
    """Two layers of one shape under names of another library; one more tensor, and a head that stays."""
    rng = np.random.default_rng(0)
    file = {f"net.{name}.weight": rng.normal(size=(3, 3)).astype("float32") for name in ("p", "q")}
    save_file({**file, "net.ema.decay": np.ones((2,), "float32")}, tmp_path / "sent.safetensors")
    stack = [layers.Dense(3, use_bias=False, name=name) for name in ("first", "second")]
    model = keras.Sequential([keras.Input((3,)), *stack, layers.Dense(5, name="head")])
    before = data_of(model.weights)
    with pytest.raises(AnyrigError, match="anyrig explain") as undecided:
        anyrig.open_model(tmp_path / "sent.safetensors", into=model)
    assert undecided.value.code == "ANY-OPEN-043"
    assert data_of(model.weights) == before
    (tmp_path / "rules.yaml").write_text(
        "version: 1\nrules:\n"
        "- {from: net.p.weight, to: model/first/kernel, layout: [transpose]}\n"
        "- {from: net.q.weight, to: model/second/kernel, layout: [transpose]}\n"
        "- {drop: net.ema.*}\n- {keep: model/head/*}\n"
    )
    opened = open_with_report(tmp_path / "sent.safetensors", into=model, rules=tmp_path / "rules.yaml")
    expected = [np.ascontiguousarray(array.T).tobytes() for array in file.values()]
    assert data_of(opened.model.weights) == [*expected, *before[2:]]
    assert opened.report.started == dict.fromkeys(["model/head/kernel", "model/head/bias"], "kept by a rule")
    assert opened.report.ignored["net.ema.decay"] == "dropped by a rule"


def test_a_saved_model_of_others_predicts_with_consent_only(tmp_path: Path) -> None:
    model, x = trained(functional)
    model.export(tmp_path / "served", verbose=False)
    with pytest.raises(UsageError, match="program") as refused:
        anyrig.open_model(tmp_path / "served")
    assert refused.value.code == "ANY-OPEN-003"
    opened = anyrig.open_model(tmp_path / "served", trust="program")
    assert "numbers: F32" in repr(opened)
    found = opened.predict(x)
    expected = model.predict(x, verbose=0)
    assert largest_difference(*([each[key] for key in ("one", "many")] for each in (found, expected))) <= 1e-5
    with pytest.raises(UsageError, match="takes"):
        opened.predict(x["numbers"])
    with pytest.raises(UsageError, match="no signature"):
        opened.predict(x, signature="train")


def branches() -> keras.Model:
    """Layers of one class side by side, of which each has slots of the same shapes as the other."""
    x = keras.Input((3,))
    sides = [layers.Dense(3, name=name)(x) for name in ("left", "right")]
    model = keras.Model(x, layers.Dense(1, name="head")(layers.Concatenate()(sides)))
    model.compile(keras.optimizers.Adam(0.25, amsgrad=True), "mse")
    return model


def scaled() -> keras.Model:
    model = branches()
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.25)), "mse")
    return model


@pytest.mark.parametrize("suffix", [".weights.h5", ".safetensors", ".ckpt", ".h5"])
@pytest.mark.parametrize("build", [sequential, branches])
def test_the_optimizer_of_a_file_of_weights_goes_on(
    tmp_path: Path, build: Callable[[], keras.Model], suffix: str
) -> None:
    model, x = trained(build)
    anyrig.save_model(model, tmp_path / f"w{suffix}")
    opened = open_with_report(tmp_path / f"w{suffix}", into=build)
    assert opened.report.notes == ()
    assert "optimizer/main/iterations" in opened.report.restored
    y = np.zeros_like(model.predict(x, verbose=0))
    for each in (model, opened.model):
        each.train_on_batch(x, y)
    assert data_of(opened.model.optimizer.variables) == data_of(model.optimizer.variables)
    assert data_of(opened.model.weights) == data_of(model.weights)


@pytest.mark.parametrize("suffix", [".weights.h5", ".safetensors", ".ckpt"])
def test_an_optimizer_that_may_mean_something_else_is_left_with_a_note(tmp_path: Path, suffix: str) -> None:
    """RMSprop with momentum has the slots of Adam by name; a frozen layer has none; and there may be no optimizer."""

    def changed(optimizer: Any, frozen: str = "") -> keras.Model:
        model = branches()
        for layer in model.layers:
            layer.trainable = layer.name != frozen
        if optimizer is not None:
            model.compile(optimizer, "mse")
        else:
            model = keras.Model(model.inputs, model.outputs)
        return model

    model, _ = trained(lambda: changed(keras.optimizers.Adam(0.25), frozen="left"))
    anyrig.save_model(model, tmp_path / f"w{suffix}")
    cases = {
        "it is adam, the model's is rmsprop": changed(keras.optimizers.RMSprop(0.25, momentum=0.5), "left"),
        "nothing is known to fill optimizer/main/": changed(keras.optimizers.Adam(0.25)),
        "the model is not compiled": changed(None),
    }
    if suffix == ".weights.h5":  # it numbers the slots, and does not say which of two equal layers was frozen
        cases["nothing is known to fill optimizer/main/iterations"] = changed(keras.optimizers.Adam(0.25), "right")
    for why, other in cases.items():
        optimizer = vars(other).get("optimizer")
        opened = open_with_report(tmp_path / f"w{suffix}", into=other)
        assert data_of(opened.model.weights) == data_of(model.weights)
        assert opened.report.notes[0].startswith("the file's optimizer was left: ")
        assert why in opened.report.notes[0]
        assert optimizer is None or int(optimizer.iterations) == 0


def test_slots_by_number_are_left_where_layers_of_two_classes_lie_side_by_side(tmp_path: Path) -> None:
    """Which of them Keras trains first depends on which was made first; the file does not tell."""

    def beside(first: str) -> keras.Model:
        x = keras.Input((3,))
        kinds = {"batch": layers.BatchNormalization, "layer": layers.LayerNormalization}
        made = {name: kinds[name](name=name) for name in (first, *kinds)}
        parts = {name: made[name](x) for name in made}
        model = keras.Model(x, layers.Dense(1)(layers.Concatenate()([parts["batch"], parts["layer"]])))
        model.compile("adam", "mse")
        return model

    model, _ = trained(lambda: beside("batch"))
    anyrig.save_model(model, tmp_path / "w.weights.h5")
    opened = open_with_report(tmp_path / "w.weights.h5", into=lambda: beside("layer"))
    assert "nothing is known to fill" in opened.report.notes[0]
    assert int(opened.model.optimizer.iterations) == 0


def test_a_loss_scale_goes_on_from_weights_that_keras_wrote(tmp_path: Path) -> None:
    model, _ = trained(scaled)
    model.save_weights(tmp_path / "w.weights.h5")
    opened = open_with_report(tmp_path / "w.weights.h5", into=scaled)
    assert opened.report.notes == ()
    assert data_of(opened.model.optimizer.variables) == data_of(model.optimizer.variables)


def test_an_export_after_training_fills_a_model_although_it_has_each_weight_twice(tmp_path: Path) -> None:
    def build() -> keras.Model:
        hidden = [keras.layers.Dense(3, name="body"), keras.layers.BatchNormalization(name="norm")]
        model = keras.Sequential([keras.Input((4,)), *hidden, keras.layers.Dense(2, name="head")])
        model.compile("adam", "mse")
        return model

    model = build()
    model.fit(np.ones((8, 4), "float32"), np.ones((8, 2), "float32"), verbose=0)
    model.export(tmp_path / "served", verbose=False)
    assert len([t for t in read_any(tmp_path / "served").tensors if t.shape == (4, 3)]) == 2
    again = anyrig.open_model(tmp_path / "served", into=build)
    assert [v.numpy().tobytes() for v in again.weights] == [v.numpy().tobytes() for v in model.weights]


def test_a_checkpoint_of_ours_brings_its_optimizer_into_a_model_with_the_like_of_it(tmp_path: Path) -> None:
    def build(optimizer: str | None) -> keras.Model:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="head")])
        if optimizer:
            model.compile(optimizer, "mse")
        return model

    model = build("adam")
    model.train_on_batch(np.ones((8, 4), "float32"), np.ones((8, 2), "float32"))
    anyrig.save(tmp_path / "c", model)
    assert ["optimizer was left: nothing says" in note for note in open_with_report(tmp_path / "c").notes] == [True]
    for optimizer, left in (("adam", False), ("sgd", True), (None, True)):
        found = open_with_report(tmp_path / "c", into=build(optimizer))
        assert [v.numpy().tobytes() for v in found.model.weights] == [v.numpy().tobytes() for v in model.weights]
        assert any("optimizer was left" in note for note in found.report.notes) is left
        assert (int(found.model.optimizer.iterations) if optimizer else 0) == (0 if left else 1)


def test_diff_finds_the_tensors_of_a_model_again_in_every_format(tmp_path: Path) -> None:
    """By what names say, whatever the format calls them, and where they say nothing by their bytes."""
    x, y = np.random.default_rng(1).normal(size=(8, 4)), np.ones((8, 2), "float32")
    i = keras.Input((4,))
    model = keras.Model(i, layers.Dense(2)(layers.BatchNormalization()(layers.Dense(3)(i))))
    model.compile("adam", "mse")
    places = [tmp_path / f"model{suffix}" for suffix in (".keras", ".h5", ".weights.h5", ".ckpt", ".safetensors", "")]

    def save(folder: Path) -> list[Path]:
        model.fit(x, y, verbose=0)
        for place in places:
            anyrig.save_model(model, folder / place.name, lossy=True)
        anyrig.save(folder / "checkpoint", model)
        return [*(folder / place.name for place in places), folder / "checkpoint"]

    (tmp_path / "later").mkdir()
    first, later = save(tmp_path), save(tmp_path / "later")
    for a in first:
        for b in first:
            found = anyrig.diff(a, b)
            weights = [side for side in (*found.only_a, *found.only_b) if not side.name.startswith(("opt", "metrics"))]
            assert (found.changed, weights, found.equal_tensors >= 8) == ((), [], True)
    for one, other in ((0, 6), (6, 0), (1, 6), (2, 4), (4, 1)):
        found = anyrig.diff(first[one], later[other])
        assert len([change for change in found.changed if not change.a.name.startswith("opt")]) >= 7, (one, other)
        assert not [side for side in (*found.only_a, *found.only_b) if not side.name.startswith(("opt", "metrics"))]
