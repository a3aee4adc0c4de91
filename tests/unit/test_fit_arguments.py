"""Every argument of Keras's fit, evaluate and predict, and every kind of data: the numbers and calls are Keras's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import anyrig
from anyrig.errors import UsageError
from anyrig.store.commit import committed_steps
from anyrig.train.rig import Rig

layers = keras.layers
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(22, 4)).astype("float32")
Y = GENERATOR.integers(0, 3, (22, 1))
WEIGHT = GENERATOR.uniform(0.5, 2, 22).astype("float32")
Arguments = dict[str, Any]


def build(execution: int = 1, *, eager: bool = False) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(5, activation="tanh"), layers.Dense(3, "softmax")])
    model.compile(
        "sgd",
        "sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=execution,
        jit_compile=False,
        run_eagerly=eager,
    )
    return model


def two_outputs() -> keras.Model:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, {name: layers.Dense(1, name=name)(inputs) for name in ("p", "q")})
    model.compile("sgd", {"p": "mse", "q": "mae"}, jit_compile=False)
    return model


class Batches(keras.utils.PyDataset):
    """Batches of four rows; remembers the indices asked for and the hooks called."""

    def __init__(self, *, length: int | None = 6, weights: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = length
        self.weights = weights
        self.seen: list[Any] = []

    @property
    def num_batches(self) -> int | None:
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.seen.append(index)
        rows = np.arange(index * 4, index * 4 + (4 if index % 6 < 5 else 2)) % 22
        return (X[rows], Y[rows], WEIGHT[rows]) if self.weights else (X[rows], Y[rows])

    def on_epoch_begin(self) -> None:
        self.seen.append("begin")

    def on_epoch_end(self) -> None:
        self.seen.append("end")


def generate(count: int | None = None) -> Iterator[Any]:
    index = 0
    while count is None or index < count:
        rows = np.arange(index * 3, index * 3 + 3) % 22
        yield X[rows], Y[rows]
        index += 1


def dataset(size: int = 8) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size)


def unknown(size: int = 8) -> tf.data.Dataset:
    return dataset(size).filter(lambda *_: True)


FIT: dict[str, Callable[[], Arguments]] = {
    "a batch size": lambda: {"x": X, "y": Y, "batch_size": 5},
    "steps from which the batch size follows": lambda: {"x": X, "y": Y, "steps_per_epoch": 4},
    "fewer steps than batches": lambda: {"x": X, "y": Y, "batch_size": 6, "steps_per_epoch": 2, "epochs": 4},
    "an initial epoch": lambda: {"x": X, "y": Y, "initial_epoch": 1, "epochs": 3},
    "validation split": lambda: {"x": X, "y": Y, "sample_weight": WEIGHT, "validation_split": 0.3},
    "validation of arrays": lambda: {"x": X, "y": Y, "validation_data": (X, Y, WEIGHT), "validation_batch_size": 7},
    "validation steps": lambda: {"x": X, "y": Y, "validation_data": (X, Y), "validation_steps": 2, "batch_size": 5},
    "validation of a dataset": lambda: {"x": X, "y": Y, "validation_data": dataset(7)},
    "an endless validation": lambda: {"x": X, "y": Y, "validation_data": dataset().repeat(), "validation_steps": 4},
    "validation of a PyDataset": lambda: {"x": X, "y": Y, "validation_data": Batches()},
    "validation every second epoch": lambda: {
        "x": X, "y": Y, "validation_data": (X, Y), "validation_freq": 2, "epochs": 3
    },
    "validation in some epochs": lambda: {
        "x": X, "y": Y, "validation_data": (X, Y), "validation_freq": [1, 3], "epochs": 3
    },
    "class weights": lambda: {"x": X, "y": Y, "class_weight": {0: 1.0, 2: 3.0}},
    "class weights of one-hot labels": lambda: {
        "x": X, "y": np.eye(3, dtype="float32")[Y[:, 0]], "class_weight": {0: 2, 1: 0.5}
    },
    "class weights of a dataset": lambda: {"x": dataset(), "class_weight": {0: 1.0, 1: 2.0, 2: 3.0}},
    "class weights of a PyDataset": lambda: {"x": Batches(), "class_weight": {0: 1.0, 1: 2.0, 2: 3.0}},
    "sample weights in a column": lambda: {"x": X, "y": Y, "sample_weight": WEIGHT[:, None]},
    "a dataset": lambda: {"x": dataset()},
    "a dataset of unknown length": lambda: {"x": unknown()},
    "an endless dataset": lambda: {"x": dataset().repeat(), "steps_per_epoch": 4},
    "a dataset over epochs": lambda: {"x": dataset(6).repeat(3), "steps_per_epoch": 5},
    "a PyDataset": lambda: {"x": Batches()},
    "a PyDataset with weights": lambda: {"x": Batches(weights=True)},
    "a PyDataset with workers": lambda: {"x": Batches(workers=2)},
    "an endless PyDataset": lambda: {"x": Batches(length=None), "steps_per_epoch": 5},
    "an endless PyDataset with workers": lambda: {"x": Batches(length=None, workers=2), "steps_per_epoch": 5},
    "a generator": lambda: {"x": generate(), "steps_per_epoch": 5},
    "tensors": lambda: {"x": tf.constant(X), "y": tf.constant(Y)},
    "float64": lambda: {"x": X.astype("float64"), "y": Y},
    "pandas": lambda: {"x": pd.DataFrame(X), "y": pd.Series(Y[:, 0]), "sample_weight": pd.Series(WEIGHT)},
}  # fmt: skip


def one_hot() -> keras.Model:
    model = build()
    model.compile("sgd", "categorical_crossentropy", jit_compile=False)
    return model


# Keras, too, cannot train one model with weights of several ranks.
OTHER_MODELS = {"class weights of one-hot labels": one_hot, "sample weights in a column": build, "pandas": build}


def same(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.fixture(scope="module")
def pair() -> tuple[Rig, keras.Model, keras.Model]:
    """A rig and two equal models, which serve many cases, so that they are traced once."""
    rig = Rig(1)
    return rig, rig.build(build), rig.build(build)


@pytest.mark.parametrize("case", FIT)
@pytest.mark.filterwarnings("ignore:.*ran out of data")  # Keras says so when it meets the end of a dataset
@pytest.mark.sampled(8)
def test_fit_gives_what_keras_gives(case: str, pair: Any) -> None:
    rig, ours, theirs = pair
    if case in OTHER_MODELS:
        ours, theirs = OTHER_MODELS[case](), OTHER_MODELS[case]()
    theirs.set_weights(ours.get_weights())
    found = rig.fit(ours, **{"epochs": 2, "shuffle": False, "verbose": 0, **FIT[case]()})
    expected = theirs.fit(**{"epochs": 2, "shuffle": False, "verbose": 0, **FIT[case]()})
    same(found.history, expected.history)
    assert found.epoch == expected.epoch
    assert found.params == expected.params
    for mine, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_weights_of_several_outputs() -> None:
    rig = Rig(1)
    ours, theirs = rig.build(two_outputs), rig.build(two_outputs)
    y = {"p": Y, "q": -Y}
    for weights in ({"p": WEIGHT, "q": WEIGHT[::-1].copy()}, WEIGHT):
        given: Arguments = {"sample_weight": weights, "shuffle": False, "verbose": 0}
        same(rig.fit(ours, X, y, **given).history, theirs.fit(X, y, **given).history)


EVALUATE: dict[str, Callable[[], Arguments]] = {
    "arrays": lambda: {"x": X, "y": Y, "sample_weight": WEIGHT, "batch_size": 5},
    "steps": lambda: {"x": X, "y": Y, "steps": 3},
    "one row": lambda: {"x": X[:1], "y": Y[:1]},
    "an endless dataset": lambda: {"x": dataset().repeat(), "steps": 4},
    "a generator": lambda: {"x": generate(6)},
    "a PyDataset": lambda: {"x": Batches(), "steps": 4},
}


@pytest.mark.parametrize("case", EVALUATE)
@pytest.mark.filterwarnings("ignore:.*ran out of data")  # Keras says so at the end of every generator
@pytest.mark.sampled(2)
def test_evaluate_and_predict_give_what_keras_gives(case: str, pair: Any) -> None:
    rig, model, _ = pair
    found = rig.evaluate(model, **EVALUATE[case](), verbose=0)
    np.testing.assert_allclose(found, model.evaluate(**EVALUATE[case](), verbose=0), rtol=1e-5)
    assert list(rig.evaluate(model, **EVALUATE[case](), verbose=0, return_dict=True)) == ["loss", "accuracy"]
    rows = {name: value for name, value in EVALUATE[case]().items() if name not in ("y", "sample_weight")}
    again = {**rows, "x": EVALUATE[case]()["x"]}
    np.testing.assert_allclose(rig.predict(model, **rows, verbose=0), model.predict(**again, verbose=0), rtol=1e-5)


class Record(keras.callbacks.Callback):
    """Writes down every call: hook, index, names of the logs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []
        for hook in [name for name in dir(self) if name.startswith("on_") and name[3:6] != "bat"]:
            setattr(self, hook, lambda *given, hook=hook, **named: self._call(hook, *given, **named))

    def _call(self, hook: str, *given: Any, logs: Any = None) -> None:
        indices = [item for item in given if isinstance(item, int)]
        logs = logs or next((item for item in given if isinstance(item, dict)), None) or {}
        self.calls.append((hook, *indices, sorted(logs)))


@pytest.mark.parametrize("execution", [1, 2, 4])
def test_callbacks_are_called_as_keras_calls_them(execution: int) -> None:
    calls, history, outputs = [], [], []
    rig = Rig(1)
    for keras_own in (False, True):
        model, record = rig.build(build, execution), Record()
        fit, evaluate, predict = (getattr(model if keras_own else rig, name) for name in ("fit", "evaluate", "predict"))
        first = () if keras_own else (model,)
        given: Arguments = {"batch_size": 5, "verbose": 0, "callbacks": [record]}
        history.append(fit(*first, X, Y, epochs=2, shuffle=False, validation_data=(X, Y), **given).history)
        evaluate(*first, X, Y, **given)
        outputs.append(predict(*first, X, **given))
        calls.append(record.calls)
    assert calls[0] == calls[1]
    same(history[0], history[1])
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-5)


def test_numbers_do_not_depend_on_steps_per_execution() -> None:
    rig = Rig(1)
    models = [rig.build(build, execution) for execution in (1, 2, 3)]
    rule = anyrig.Batch(global_size=4, virtual_replicas=2)
    histories = [rig.fit(model, X, Y, batch=rule, epochs=2, verbose=0).history for model in models]
    assert histories[0] == histories[1] == histories[2]
    weights = [[w.tobytes() for w in model.get_weights()] for model in models]
    assert weights[0] == weights[1] == weights[2]


def test_a_list_of_callbacks_is_used_as_it_is(pair: Any) -> None:
    rig, model, _ = pair
    record = Record()
    listed = keras.callbacks.CallbackList([record], model=model, epochs=7)
    history = rig.fit(model, X, Y, callbacks=listed, verbose=0)
    assert record.params == {"epochs": 7}
    assert history is model.history
    assert len(history.history["loss"]) == 1
    assert record.calls[-1][0] == "on_train_end"


def test_stopping_from_callbacks(pair: Any) -> None:
    class Stop(keras.callbacks.Callback):
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_evaluating = batch == 1

        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_predicting = batch == 1

    rig, model, _ = pair
    given: Arguments = {"batch_size": 4, "verbose": 0, "callbacks": [Stop()]}
    np.testing.assert_allclose(rig.evaluate(model, X, Y, **given), model.evaluate(X, Y, **given), rtol=1e-5)
    assert rig.predict(model, X, **given).shape == (8, 3)


def test_data_that_runs_out_ends_the_epoch_and_a_generator_the_training(pair: Any) -> None:
    rig, model, _ = pair
    before = int(model.optimizer.iterations)
    with pytest.warns(UserWarning, match="ran out after 3 of 4 batches"):
        history = rig.fit(model, unknown(), steps_per_epoch=4, epochs=2, verbose=0)
    assert int(model.optimizer.iterations) == before + 6
    assert len(history.history["loss"]) == 2
    with pytest.warns(UserWarning, match="training ends after epoch 1 of 3"):
        history = rig.fit(model, generate(5), epochs=3, verbose=0)
    assert len(history.history["loss"]) == 1
    assert int(model.optimizer.iterations) == before + 11


def test_a_py_dataset_is_shuffled_by_batches_and_its_hooks_are_called() -> None:
    rig = Rig(1)
    model, data = rig.build(build), Batches()
    rig.fit(model, data, epochs=2, verbose=0)
    assert data.seen[:3] == [0, "end", "begin"]
    epochs = [data.seen[3:9], data.seen[11:17]]
    assert [sorted(epoch) for epoch in epochs] == [list(range(6))] * 2
    assert epochs[0] != epochs[1]
    assert epochs[0] != sorted(epochs[0])
    assert data.seen[9:11] == ["end", "begin"]
    assert data.seen[17:] == ["end"]


def test_a_validation_generator_is_read_once(pair: Any) -> None:
    rig, model, _ = pair
    given: Arguments = {"validation_data": generate(), "validation_steps": 3, "epochs": 2, "verbose": 0}
    history = rig.fit(model, X, Y, **given).history
    expected = model.evaluate(X[:9], Y[:9], batch_size=3, verbose=0)[0]
    assert history["val_loss"][1] == pytest.approx(expected, rel=1e-5)


def test_shuffling_within_batches() -> None:
    rig = Rig(1)
    seen: list[set[float]] = []

    class See(layers.Layer):
        def call(self, inputs: Any) -> Any:
            seen.append(set(np.asarray(inputs)[:, 0].tolist()))
            return inputs

    def watched() -> keras.Model:
        model = keras.Sequential([keras.Input((4,)), See(), layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
        return model

    model = rig.build(watched)
    seen.clear()
    rig.fit(model, X, Y, batch_size=8, shuffle="batch", verbose=0)
    assert seen[-3:] == [set(X[first : first + 8, 0].tolist()) for first in (0, 8, 16)]


@pytest.mark.parametrize("v", [1, 2])
def test_run_eagerly_gives_the_same_within_rounding(v: int) -> None:
    rig = Rig(1)
    given: Arguments = {"batch": anyrig.Batch(global_size=8, virtual_replicas=v), "epochs": 2, "verbose": 0}
    eager, traced = rig.build(build, eager=True), rig.build(build)
    same(rig.fit(eager, X, Y, **given).history, rig.fit(traced, X, Y, **given).history)
    np.testing.assert_allclose(rig.predict(eager, X, verbose=0), rig.predict(traced, X, verbose=0), rtol=1e-4)


def test_text_goes_into_a_model() -> None:
    def words() -> keras.Model:
        lookup = layers.StringLookup(vocabulary=["a", "b", "c"])
        model = keras.Sequential([keras.Input((1,), dtype="string"), lookup, layers.Embedding(5, 1), layers.Flatten()])
        model.compile("sgd", "mse", jit_compile=False)
        return model

    rig = Rig(1)
    model = rig.build(words)
    text = np.array([["a"], ["b"], ["d"], ["a"]])
    found = [rig.predict(model, kind, verbose=0) for kind in (text, text.astype(object), pd.Series(text[:, 0]))]
    assert found[0][0] == found[0][3] != found[0][1]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    rig.fit(model, text, np.ones((4, 1), "float32"), verbose=0)


def test_outputs_of_other_sizes_are_ragged_as_in_keras() -> None:
    def lengths() -> keras.Model:
        return keras.Sequential([keras.Input((None, 2)), layers.Dense(1)])

    def batches() -> tf.data.Dataset:
        rows = [np.ones((2, length, 2), "float32") for length in (3, 3, 5)]
        return tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=tf.TensorSpec((None, None, 2)))

    rig = Rig(1)
    model = rig.build(lengths)
    found = rig.predict(model, batches(), verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras: "ran out of data"
        expected = model.predict(batches(), verbose=0)
    assert found.shape.as_list() == expected.shape.as_list() == [6, None, 1]
    assert found.to_list() == expected.to_list()


REFUSED: dict[str, tuple[Arguments, str, str]] = {
    "y beside a dataset": ({"x": dataset(), "y": Y}, "ANY-DATA-006", "y is given too"),
    "weights beside a PyDataset": ({"x": Batches(), "sample_weight": WEIGHT}, "ANY-DATA-006", "sample_weight"),
    "y beside a generator": ({"x": generate(3), "y": Y}, "ANY-DATA-006", "generator"),
    "an endless dataset": ({"x": dataset().repeat()}, "ANY-DATA-004", "never ends"),
    "an endless PyDataset": ({"x": Batches(length=None)}, "ANY-DATA-004", "never ends"),
    "an endless validation": ({"x": X, "y": Y, "validation_data": dataset().repeat()}, "ANY-DATA-004", "never ends"),
    "both weights": ({"x": X, "y": Y, "sample_weight": WEIGHT, "class_weight": {0: 1}}, "ANY-DATA-015", "too"),
    "class weights without y": ({"x": X, "class_weight": {0: 1}}, "ANY-DATA-015", "no y"),
    "class weights of two outputs": (
        {"x": X, "y": {"p": Y, "q": Y}, "class_weight": {0: 1}},
        "ANY-DATA-015",
        "several",
    ),
    "class weights from JSON": ({"x": X, "y": Y, "class_weight": {"0": 2}}, "ANY-DATA-015", "'0' is not the number"),
    "half a step": ({"x": X, "y": Y, "steps_per_epoch": 2.5}, "ANY-RUN-039", "2.5"),
    "validation never": ({"x": X, "y": Y, "validation_freq": 0}, "ANY-RUN-039", "found 0"),
    "no step": ({"x": X, "y": Y, "steps_per_epoch": 0}, "ANY-RUN-039", "1 or more"),
    "other weights": ({"x": X, "y": [Y, Y], "sample_weight": [WEIGHT]}, "ANY-DATA-016", "structure"),
    "weights a step": ({"x": X, "y": [Y, Y], "sample_weight": X}, "ANY-DATA-016", r"\(22, 4\)"),
    "a split of a dataset": ({"x": dataset(), "validation_split": 0.5}, "ANY-DATA-011", "needs arrays"),
    "a split of nothing": ({"x": X[:1], "y": Y[:1], "validation_split": 0.5}, "ANY-DATA-012", "nothing for training"),
    "ragged": ({"x": tf.ragged.constant([[1.0], [2.0, 3.0]])}, "ANY-DATA-010", "RaggedTensor"),
    "mixed columns": ({"x": pd.DataFrame({"a": [1, 2], "b": ["u", 3]})}, "ANY-DATA-013", "object"),
    "an empty generator": ({"x": generate(0)}, "ANY-DATA-003", "no rows"),
    "an empty PyDataset": ({"x": Batches(length=0)}, "ANY-DATA-003", "no rows"),
    "no rows": ({"x": X[:0], "y": Y[:0]}, "ANY-DATA-003", "no rows"),
    "a number": ({"x": 3}, "ANY-DATA-007", "int"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused_by_name(case: str, pair: Any) -> None:
    given, code, words = REFUSED[case]
    rig, model, _ = pair
    with pytest.raises(UsageError, match=words) as refused:
        rig.fit(model, **given, verbose=0)
    assert refused.value.code == code


def test_counts_may_be_numpys(tmp_path: Path) -> None:
    rig = Rig(1)
    counts: dict[str, Any] = {"epochs": np.int64(1), "steps_per_epoch": np.int64(2)}
    rig.fit(rig.build(build), X, Y, **counts, callbacks=[anyrig.Checkpoint(tmp_path / "run")], verbose=0)
    assert committed_steps(tmp_path / "run" / "checkpoints") == [2]


def test_nothing_to_predict_or_evaluate_is_an_error(pair: Any) -> None:
    rig, model, _ = pair
    empty = dataset().take(0)
    for call in (rig.predict, rig.evaluate):
        with pytest.raises(UsageError, match="no rows"):
            call(model, empty, verbose=0)
