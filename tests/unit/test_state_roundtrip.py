"""What is captured comes back to the byte in a new model; what does not fit is refused with nothing assigned."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from anyrig.errors import AnyrigError
from anyrig.state.capture import capture
from anyrig.state.report import LoadReport
from anyrig.state.restore import restore
from anyrig.state.walk import model_variables
from anyrig.store.read import open_checkpoint, verify_checkpoint
from anyrig.store.write import write_checkpoint
from tests.unit.state_models import ZOO, SavesItself, Source, contents, layers, scramble, state_of


@pytest.mark.parametrize("kind", ZOO)
@pytest.mark.sampled(8)
def test_round_trip_to_the_byte(kind: str) -> None:
    model, other = ZOO[kind](), ZOO[kind]()
    if kind != "saves_itself":
        scramble(model)
    stored = capture(model)
    assert contents(stored) != state_of(other)
    report = restore(Source(stored), other)
    assert state_of(other) == contents(stored)
    assert set(report.restored) == {tensor.name for tensor in stored.tensors}
    assert report.bytes == sum(tensor.array.nbytes for tensor in stored.tensors)
    assert report.ignored == {}


def test_through_a_real_checkpoint(tmp_path: Path) -> None:
    model, other = ZOO["saves_itself"](), ZOO["saves_itself"]()
    for each in (model, other):
        each.compile(keras.optimizers.Adam(use_ema=True), "mse", metrics=["mae"], run_eagerly=True)
        each.train_on_batch(np.ones((4, 4)), np.ones((4, 4)))
    stored = capture(model)
    assert contents(stored) != state_of(other)
    written = write_checkpoint(
        tmp_path, 1, stored.tensors, progress={}, documents=stored.documents, assets=stored.assets
    )
    assert verify_checkpoint(written) == []
    restore(open_checkpoint(written.path), other)
    assert state_of(other) == contents(stored)


def test_training_goes_on_alike_with_dropout_b147(tmp_path: Path) -> None:
    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((4,)), layers.Dropout(0.5), layers.Dense(4), layers.BatchNormalization()])
        model.compile("adam", "mse", metrics=["mae"], run_eagerly=True)
        return model

    x, y = np.ones((8, 4)), np.ones((8, 4))
    model, other = build(), build()
    model.train_on_batch(x, y)
    other.test_on_batch(x[:1], y[:1])
    stored = capture(model)
    restore(Source(stored), other)
    for each in (model, other):
        each.train_on_batch(x, y)
    assert state_of(other) == state_of(model)
    assert state_of(other) != contents(stored)


@pytest.mark.parametrize("order", ["as saved", "other way round"])
def test_user_names_decide_never_creation_order_u01_b022(order: str) -> None:
    def build(order: str) -> keras.Model:
        inputs = keras.Input((4,))
        names = ["alpha", "beta"] if order == "as saved" else ["beta", "alpha"]
        made = {name: layers.Dense(4, name=name) for name in names}
        outputs = [made[name](inputs) for name in names]
        return keras.Model(inputs, layers.Add()(outputs))

    model, other = build("as saved"), build(order)
    restore(Source(capture(model)), other)
    for name in ("alpha", "beta"):
        assert np.array_equal(other.get_layer(name).kernel, model.get_layer(name).kernel)


def unnamed(*, created: str = "ab", joined: str = "ab", relu: str = "") -> tuple[keras.Model, dict[str, keras.Layer]]:
    """Two unnamed Dense layers on one input, created, joined and followed by a ReLU as asked."""
    inputs = keras.Input((4,))
    made = {which: layers.Dense(4) for which in created}
    outputs = {which: layer(inputs) for which, layer in made.items()}
    outputs |= {which: layers.ReLU()(outputs[which]) for which in relu}
    return keras.Model(inputs, layers.Subtract()([outputs[which] for which in joined])), made


@pytest.mark.parametrize("created", ["ab", "ba"])
def test_unnamed_layers_created_in_the_other_order_are_right_u01(created: str) -> None:
    model, made = unnamed()
    other, again = unnamed(created=created)
    restore(Source(capture(model)), other)
    for which in "ab":
        assert np.array_equal(again[which].kernel, made[which].kernel)
    x = np.ones((2, 4), "float32")
    assert np.array_equal(model(x), other(x))


@pytest.mark.parametrize(
    ("saved", "loaded"), [({"relu": "a"}, {"relu": "b"}), ({"relu": "b"}, {"relu": "ab"}), ({}, {"relu": "a"})]
)
def test_unnamed_layers_that_only_order_tells_apart_are_refused_u01(saved: Any, loaded: Any) -> None:
    model, other = unnamed(**saved)[0], unnamed(**loaded)[0]
    before = state_of(other)
    with pytest.raises(
        AnyrigError, match=r"model/dense\.[01]/(kernel|bias) and model/dense\.[01]/.*told apart"
    ) as caught:
        restore(Source(capture(model)), other)
    assert caught.value.code == "ANY-STATE-006"
    assert "name=" in caught.value.hint
    assert state_of(other) == before


def test_ambiguity_names_the_sibling_that_has_the_place_u01() -> None:
    def build(joined: str) -> keras.Model:
        inputs = keras.Input((4,))
        a, b = layers.Dense(4)(inputs), layers.Dense(4)(layers.Dense(4, name="pre")(inputs))
        outputs = {"a": layers.ReLU()(layers.ReLU()(a)), "b": b}
        return keras.Model(inputs, [outputs[which] for which in joined])

    model, other = build("ab"), build("ba")
    assert [item.place for item in model_variables(model)] != [item.place for item in model_variables(other)]
    with pytest.raises(AnyrigError, match="told apart"):
        restore(Source(capture(model)), other)


def random_graph(rng: random.Random) -> list[tuple[str, list[int]]]:
    """Return nodes (kind, inputs) of a random graph of equal Dense layers; node 0 is the input, the last the output."""
    nodes: list[tuple[str, list[int]]] = [("input", [])]
    for index in range(1, rng.randrange(4, 9)):
        kind = rng.choice(["dense", "dense", "relu", "subtract"])
        nodes.append((kind, [rng.randrange(index) for _ in range(2 if kind == "subtract" else 1)]))
    used = {source for _, sources in nodes for source in sources}
    for loose in [index for index in range(1, len(nodes)) if index not in used]:
        nodes.append(("subtract", [loose, len(nodes) - 1]))
    return nodes


def model_of_graph(nodes: list[tuple[str, list[int]]], created: list[int]) -> keras.Model:
    """Build the graph with its layers made in the order `created`."""
    kinds = {"dense": lambda: layers.Dense(4), "relu": layers.ReLU, "subtract": layers.Subtract}
    made = {index: kinds[nodes[index][0]]() for index in created}
    tensors = [keras.Input((4,))]
    for index, (_, sources) in enumerate(nodes[1:], 1):
        inputs = [tensors[source] for source in sources]
        tensors.append(made[index](inputs if len(inputs) > 1 else inputs[0]))
    return keras.Model(tensors[0], tensors[-1])


def test_any_graph_of_unnamed_twins_comes_back_whatever_the_creation_order_u01(rng: random.Random) -> None:
    x = np.random.default_rng(0).normal(size=(2, 4)).astype("float32")
    for _ in range(5):
        nodes = random_graph(rng)
        order = list(range(1, len(nodes)))
        model = model_of_graph(nodes, order)
        other = model_of_graph(nodes, rng.sample(order, len(order)))
        restore(Source(capture(model)), other)
        assert np.array_equal(model(x), other(x)), nodes


def test_an_unnamed_layer_alone_of_its_shape_may_move() -> None:
    def build(*, relu: bool) -> keras.Model:
        inputs = keras.Input((4,))
        x = layers.Dense(4)(inputs)
        return keras.Model(inputs, layers.Dense(3)(layers.ReLU()(x) if relu else x))

    model, other = build(relu=True), build(relu=False)
    restore(Source(capture(model)), other)
    assert [t.array.tobytes() for t in capture(other).tensors] == [t.array.tobytes() for t in capture(model).tensors]


def test_frozen_part_into_unfrozen_twin_b004() -> None:
    model, other = ZOO["frozen_part"](), ZOO["frozen_part"]()
    other.layers[0].layers[0].trainable = True
    restore(Source(capture(model)), other)
    x = np.ones((2, 4), "float32")
    assert np.array_equal(model(x), other(x))


def test_functional_from_sequential_with_unnamed_twins_is_refused() -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4), layers.Dense(4)])
    inputs = keras.Input((4,))
    with pytest.raises(AnyrigError, match="told apart"):
        restore(Source(capture(model)), keras.Model(inputs, layers.Dense(4)(layers.Dense(4)(inputs))))


def small(*units: int, name: str = "d", dtype: str = "float32", optimizer: str | None = None) -> keras.Model:
    stack = [layers.Dense(size, name=f"{name}{index}", dtype=dtype) for index, size in enumerate(units)]
    model = keras.Sequential([keras.Input((4,)), *stack])
    if optimizer:
        model.compile(optimizer, "mse")
    return model


@pytest.mark.parametrize(
    ("saved", "loaded", "says"),
    [
        (
            lambda: small(4, 2),
            lambda: small(4, 3),
            r"stored  model/d1/kernel  float32 \[4, 2\]\n  wanted  model/d1/kernel  float32 \[4, 3\]",
        ),
        (lambda: small(4), lambda: small(4, 3), r"stored  nothing.*\n  wanted  model/d1/kernel  float32 \[4, 3\]"),
        (lambda: small(4, 3), lambda: small(4), r"stored  model/d1/kernel  float32 \[4, 3\]\n  wanted  nothing"),
        (
            lambda: small(4),
            lambda: small(4, dtype="bfloat16"),
            r"float32 \[4, 4\]\n  wanted  model/d0/kernel  bfloat16 ",
        ),
        (
            lambda: small(4, name="old"),
            lambda: small(4, name="new"),
            r"nothing \(nearest: model/old0/kernel  float32",
        ),
        (
            lambda: small(4, optimizer="adam"),
            lambda: small(4),
            r"stored  optimizer/main/iterations  int64 \[\]\n ",
        ),
        (lambda: small(4), lambda: small(4, optimizer="adam"), r"stored  nothing\n  wanted  optimizer/main/iterations"),
    ],
)
def test_a_difference_is_shown_and_nothing_is_assigned(saved: Any, loaded: Any, says: str) -> None:
    model, source = loaded(), Source(capture(saved()))
    before = state_of(model)
    with pytest.raises(AnyrigError, match=says) as caught:
        restore(source, model)
    assert caught.value.code == "ANY-STATE-005"
    assert source.reads == []
    assert state_of(model) == before


def test_hint_says_compile_or_weights_only() -> None:
    with pytest.raises(AnyrigError, match="weights_only=True"):
        restore(Source(capture(small(4, optimizer="adam"))), small(4))


def test_a_long_difference_is_cut_and_counted() -> None:
    with pytest.raises(AnyrigError, match=r"and 24 more"):
        restore(Source(capture(small(*[4] * 11))), small(*[4] * 11, name="other"))


def test_weights_only_leaves_the_rest_and_says_so_b066() -> None:
    model, other = small(4, optimizer="adam"), small(4)
    report = restore(Source(capture(model)), other, weights_only=True)
    assert isinstance(report, LoadReport)
    assert tuple(report.restored) == ("model/d0/kernel", "model/d0/bias")
    assert set(report.ignored) == {t.name for t in capture(model).tensors} - set(report.restored)
    assert set(report.ignored.values()) == {"not asked for"}
    assert np.array_equal(other.layers[0].kernel, model.layers[0].kernel)


def test_weights_only_restores_seeds_and_keeps_the_optimizer() -> None:
    model, other = ZOO["sequential"](), ZOO["sequential"]()
    other.compile("adam", "mse")
    other.optimizer.iterations.assign(9)
    restore(Source(capture(model)), other, weights_only=True)
    assert int(other.optimizer.iterations) == 9
    seed = "model/dropout.0/seed_generator/state"
    assert state_of(other)[seed] == state_of(model)[seed]


def test_tensors_of_the_training_loop_are_left_to_it() -> None:
    captured = capture(small(4))
    extra = type(captured.tensors[0])(name="callbacks/EarlyStopping.0/x", array=np.ones(1))
    captured.tensors.append(extra)
    report = restore(Source(captured), small(4))
    assert report.ignored == {"callbacks/EarlyStopping.0/x": "not part of the model; for the training loop"}


def test_an_unbuilt_model_is_refused_with_the_call_that_builds_it_b026() -> None:
    class Lazy(keras.Model):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.d = layers.Dense(4)

        def call(self, x: Any) -> Any:
            return self.d(x)

    for call in (lambda: capture(Lazy()), lambda: restore(Source(capture(small(4))), Lazy())):
        with pytest.raises(AnyrigError, match=r"not built.*\n.*model\(x\)") as caught:
            call()
        assert caught.value.code == "ANY-STATE-001"


@pytest.mark.filterwarnings("ignore:`build:UserWarning")
def test_a_sublayer_that_is_not_built_is_named_b181() -> None:
    class Half(keras.Model):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = layers.Dense(4), layers.Dense(4)
            self.both = False

        def call(self, x: Any) -> Any:
            return self.used(self.unused(x) if self.both else x)

    whole, half = Half(), Half()
    whole.both = True
    for model in (whole, half):
        model(np.ones((1, 4)))
    with pytest.raises(AnyrigError, match="layers not built yet: unused"):
        restore(Source(capture(whole)), half)


def test_metrics_that_see_their_first_batch_later() -> None:
    def build() -> keras.Model:
        model = small(4)
        model.compile("sgd", "mse", metrics=["mae"], run_eagerly=True)
        return model

    model, other = build(), build()
    model.test_on_batch(np.ones((2, 4)), np.ones((2, 4)))
    source = Source(capture(model))
    with pytest.raises(AnyrigError, match="metrics=False") as caught:
        restore(source, other)
    assert caught.value.code == "ANY-STATE-007"
    report = restore(source, other, metrics=False)
    assert {name.partition("/")[0] for name in report.ignored} == {"metrics"}
    other.test_on_batch(np.ones((1, 4)), np.ones((1, 4)))
    restore(source, other)
    assert state_of(other) == state_of(model)


def test_capture_without_optimizer_and_metrics() -> None:
    model = small(4, optimizer="adam")
    without: list[dict[str, Any]] = [
        {},
        {"optimizer": False},
        {"metrics": False},
        {"optimizer": False, "metrics": False},
    ]
    groups = [{t.name.partition("/")[0] for t in capture(model, **given).tensors} for given in without]
    assert groups == [{"model", "optimizer", "metrics"}, {"model", "metrics"}, {"model", "optimizer"}, {"model"}]


def adapted(text: list[str], **given: Any) -> keras.Model:
    words = layers.TextVectorization(**given)
    words.adapt(text)
    inputs = keras.Input((), dtype="string")
    return keras.Model(inputs, words(inputs))


@pytest.mark.parametrize("mode", ["int", "tf_idf", "multi_hot"])
def test_vocabulary_comes_back(mode: str) -> None:
    model = adapted(["b a c", "a d"], output_mode=mode)
    other = adapted(["x y z", "x w"], output_mode=mode)
    stored = capture(model)
    assert list(stored.assets) == ["text_vectorization.0/vocabulary.txt"]
    restore(Source(stored), other)
    assert other.layers[1].get_vocabulary() == model.layers[1].get_vocabulary()
    assert state_of(other) == contents(stored)
    text = keras.ops.convert_to_tensor(["a d q"])
    assert np.array_equal(model(text), other(text))


@pytest.mark.parametrize(("kind", "words"), [("StringLookup", ["b", "é", "a b"]), ("IntegerLookup", [30, 10, 20])])
def test_lookups_come_back(kind: str, words: list[Any]) -> None:
    def build(words: list[Any]) -> keras.Model:
        lookup = getattr(layers, kind)()
        lookup.set_vocabulary(words)
        inputs = keras.Input((1,), dtype=lookup.vocabulary_dtype)
        return keras.Model(inputs, lookup(inputs))

    model, other = build(words), build(words[:1])
    restore(Source(capture(model)), other)
    assert other.layers[1].get_vocabulary() == model.layers[1].get_vocabulary()


@pytest.mark.parametrize("mode", ["int", "tf_idf"])
def test_a_lookup_without_words_keeps_nothing_and_takes_what_is_stored(mode: str) -> None:
    def fresh() -> keras.Model:
        return keras.Sequential([keras.Input((), dtype="string"), layers.TextVectorization(output_mode=mode)])

    empty = capture(fresh())
    assert contents(empty) == {}
    restore(Source(empty), fresh())
    with pytest.raises(AnyrigError, match=r"stored  nothing|but not stored"):
        restore(Source(empty), adapted(["a b"], output_mode=mode))
    other = fresh()
    restore(Source(capture(adapted(["a b"], output_mode=mode))), other)
    assert other.layers[0].get_vocabulary(include_special_tokens=False) == ["b", "a"]


def test_a_fixed_vocabulary_is_compared_not_replaced() -> None:
    def build(words: list[str] | None) -> keras.Model:
        lookup = layers.StringLookup(vocabulary=words)
        inputs = keras.Input((1,), dtype="string")
        return keras.Model(inputs, lookup(inputs))

    source = Source(capture(build(["a", "b"])))
    restore(source, build(["a", "b"]))
    with pytest.raises(AnyrigError, match=r"another vocabulary.*\n  stored .*'a', 'b'.*\n  wanted .*'b', 'a'"):
        restore(source, build(["b", "a"]))


@pytest.mark.parametrize("word", ["two\nlines", "line\u2028separator", "form\x0cfeed", ""])
def test_a_word_that_a_vocabulary_file_would_break_is_refused(word: str) -> None:
    lookup = layers.StringLookup(vocabulary=["a", word])
    inputs = keras.Input((1,), dtype="string")
    with pytest.raises(AnyrigError, match="does not survive"):
        capture(keras.Model(inputs, lookup(inputs)))


def test_missing_and_unwanted_files_are_refused() -> None:
    words, plain = adapted(["a b"]), small(4)
    with pytest.raises(AnyrigError, match=r"no layer takes it: \['text_vectorization.0/vocabulary.txt'\]"):
        restore(Source(capture(words)), keras.Model(words.inputs, words.inputs))
    captured = capture(words)
    captured.assets.clear()
    with pytest.raises(AnyrigError, match=r"not stored: \['text_vectorization.0/vocabulary.txt'\]"):
        restore(Source(captured), adapted(["c"]))
    assert capture(plain).assets == {}


def test_a_layers_own_saving_is_used() -> None:
    model = ZOO["saves_itself"]()
    model.layers[2].note = "kept"
    captured = capture(model)
    assert {t.name for t in captured.tensors if "saves_itself" in t.name} == {
        "model/saves_itself.0/weight in metres",
        "model/saves_itself.0/doubled",
    }
    assert captured.assets == {"saves_itself.0/sub/note.txt": b"kept"}
    other = ZOO["saves_itself"]()
    restore(Source(captured), other)
    assert other.layers[2].note == "kept"
    assert np.array_equal(other.layers[2].w, model.layers[2].w)


def test_a_layer_whose_loading_fails_is_named_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = ZOO["saves_itself"](), ZOO["saves_itself"]()
    before = {t.name: t.array.tobytes() for t in capture(other).tensors}

    def fail(store: Any) -> None:
        other.layers[2].w.assign(np.zeros(4))
        raise KeyError("weight in feet")

    captured = capture(model)
    monkeypatch.setattr(SavesItself, "load_own_variables", lambda self, store: fail(store))
    with pytest.raises(AnyrigError, match=r"SavesItself 'saves_\w*': load_own_variables failed.*weight in feet"):
        restore(Source(captured), other)
    assert {t.name: t.array.tobytes() for t in capture(other).tensors} == before


def test_when_a_layers_loading_fails_those_loaded_before_it_are_put_back() -> None:
    class Keeps(layers.Layer):  # type: ignore[misc, unused-ignore]
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.bound, self.filled, self.words, self.table = np.zeros(4), np.zeros(4), ["a"], {"a": 1}
            self.built = True

        def call(self, x: Any) -> Any:
            return x

        def save_own_variables(self, store: Any) -> None:
            store["bound"] = self.bound

        def load_own_variables(self, store: Any) -> None:
            self.bound = store["bound"]
            self.filled[:] = store["bound"]
            self.words.append("b")
            self.table["b"] = 2
            self.new = keras.Variable(1.0)

    class Fails(Keeps):
        def load_own_variables(self, store: Any) -> None:
            super().load_own_variables(store)
            raise RuntimeError("no")

    def build() -> keras.Model:
        norm = layers.Normalization(axis=-1, name="norm")
        words = layers.StringLookup(name="words")
        model = keras.Sequential([keras.Input((4,)), norm, Keeps(name="keeps"), Fails(name="fails")])
        model.words = words
        return model

    def state(model: keras.Model) -> Any:
        kept = [(list(k.bound), list(k.filled), list(k.words), dict(k.table)) for k in model.layers[1:]]
        counts = [(hasattr(k, "new"), len(k.variables)) for k in model.layers[1:]]
        norm = model.layers[0]
        return kept, counts, np.array(norm(np.ones((1, 4)))).tolist(), model.words.get_vocabulary()

    model, other = build(), build()
    for one, (scale, word) in ((model, (3.0, "x")), (other, (1.0, "y"))):
        one.layers[0].adapt(np.arange(8.0).reshape(2, 4) * scale)
        one.words.adapt([word])
        one.layers[1].bound = one.layers[2].bound = np.full(4, scale)
    before = state(other)
    assert state(model) != before
    with pytest.raises(AnyrigError, match=r"Fails 'fails': load_own_variables failed"):
        restore(Source(capture(model)), other)
    assert state(other) == before


def test_a_layer_that_writes_other_arrays_now_is_refused() -> None:
    captured = capture(ZOO["saves_itself"]())
    captured.tensors[:] = [t for t in captured.tensors if "doubled" not in t.name]
    with pytest.raises(AnyrigError, match=r"stored  nothing.*\n  wanted  model/saves_itself.0/doubled"):
        restore(Source(captured), ZOO["saves_itself"]())


def test_a_layer_that_derives_from_its_variables_is_loaded_by_itself() -> None:
    class Derives(layers.Layer):  # type: ignore[misc, unused-ignore]
        def build(self, shape: Any) -> None:
            self.b = self.add_weight(name="b", shape=(1,), trainable=False)
            self.a = self.add_weight(name="a", shape=(1,), initializer="uniform")
            self.twice = self.a * 2

        def call(self, x: Any) -> Any:
            return x * self.twice

        def load_own_variables(self, store: Any) -> None:
            super().load_own_variables(store)
            self.twice = self.a * 2

    model, other = (keras.Sequential([keras.Input((1,)), Derives()]) for _ in range(2))
    restore(Source(capture(model)), other)
    assert set(contents(capture(model))) == {"model/derives.0/a", "model/derives.0/b"}
    assert np.array_equal(other.layers[0].twice, model.layers[0].twice)


def test_adapted_normalisation_is_used_after_a_restore() -> None:
    model, other = ZOO["normalised"](), ZOO["normalised"]()
    restore(Source(capture(model)), other)
    x = np.ones((3, 4), "float32")
    assert all(np.array_equal(one, two) for one, two in zip(model(x), other(x), strict=True))


def test_lora_weights_are_stored_apart_not_merged() -> None:
    model = ZOO["low_rank"]()
    scramble(model)
    names = set(state_of(model))
    assert {"model/dense.0/kernel", "model/dense.0/lora_kernel_a", "model/dense.0/lora_kernel_b"} <= names
    dense = next(layer for layer in model.layers if isinstance(layer, layers.Dense))
    stored = {t.name: t.array for t in capture(model).tensors}
    assert np.array_equal(stored["model/dense.0/kernel"], dense._kernel)


@pytest.mark.filterwarnings("ignore:.*will be cast")
def test_a_quantised_base_under_lora_comes_back_b170() -> None:
    def build() -> keras.Model:
        model = small(4)
        model.layers[-1].quantize("int8")
        model.layers[-1].enable_lora(2)
        return model

    model, other = build(), build()
    model.layers[-1].lora_kernel_b.assign(keras.ops.ones_like(model.layers[-1].lora_kernel_b))
    stored = capture(model)
    assert {"int8", "float32"} <= {str(tensor.array.dtype) for tensor in stored.tensors}
    assert contents(stored) != state_of(other)
    restore(Source(stored), other)
    assert state_of(other) == contents(stored)
    plain = small(4)
    before = state_of(plain)
    with pytest.raises(AnyrigError, match="int8"):
        restore(Source(stored), plain)
    assert state_of(plain) == before


def test_a_model_compiled_twice_has_one_optimizer_and_one_set_of_metrics_b082() -> None:
    def build(times: int) -> keras.Model:
        model = small(4, optimizer="adam")
        for _ in range(times):
            model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
        model.fit(np.ones((2, 4)), np.ones((2, 4)), verbose=0)
        return model

    twice, once = build(2), build(1)
    stored = capture(twice)
    assert contents(stored).keys() == state_of(once).keys()
    restore(Source(stored), once)
    assert state_of(once) == contents(stored)


def test_model_document_is_the_config_without_compile() -> None:
    model = small(4, optimizer="adam")
    document = json.loads(capture(model).documents["model.json"])
    assert document["class_name"] == "Sequential"
    assert "compile_config" not in json.dumps(document)
    assert capture(model).documents == capture(model).documents
    again = keras.saving.deserialize_keras_object(document)
    assert [layer.name for layer in again.layers] == ["d0"]


def test_model_document_says_why_there_is_no_config() -> None:
    class NoConfig(layers.Layer):  # type: ignore[misc, unused-ignore]
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.function = function

        def get_config(self) -> Any:
            raise NotImplementedError("no config here")

        def call(self, x: Any) -> Any:
            return x

    document = json.loads(capture(keras.Sequential([keras.Input((4,)), NoConfig(print)])).documents["model.json"])
    assert document["config"] is None
    assert "no config here" in document["reason"]
