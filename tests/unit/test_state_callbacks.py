"""Callback state: JSON that keeps every bit of a number, arrays by name, and the decisions of a resumed run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from anyrig.errors import AnyrigError
from anyrig.state.callbacks import CallbackStates, callbacks_state, restore_callbacks
from anyrig.state.plainvalues import decode, encode
from tests.unit.state_models import layers

callbacks = keras.callbacks


class Own(callbacks.Callback):
    """A user's callback that takes part."""

    def __init__(self, state: Any = None) -> None:
        super().__init__()
        self.state = state

    def get_state(self) -> Any:
        return self.state

    def set_state(self, state: Any) -> None:
        self.state = state


class Silent(callbacks.Callback):
    """A user's callback that does not."""


def through_json(states: CallbackStates) -> tuple[Any, Any]:
    return json.loads(json.dumps(states.json, allow_nan=False)), states.arrays


def model_of(*units: int) -> keras.Model:
    stack = [layers.Dense(size, name=f"d{index}") for index, size in enumerate(units)]
    model = keras.Sequential([keras.Input((2,)), *stack])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    "value",
    [
        0.1, 5e-324, -0.0, math.inf, -math.inf, 3, 2**70, True, None, "text", [], [1, [2.5, None]], (1, (2, "x")), {},
        {"a": {"b": 1}}, {"float": "nan"}, {"array": 1, "x": 2}, {"dict": {"dict": 1}}, {"scalar": 1, "value": 2},
        np.float32(0.1), np.float64(0.1), np.int64(-3), np.bool_(True), np.float16(0.1), np.float32(np.inf),
        {"tuple": [1]},
    ],
)  # fmt: skip
def test_values_come_back_exactly_with_their_type(value: Any) -> None:
    arrays: dict[str, Any] = {}
    back = decode(json.loads(json.dumps(encode(value, "x", arrays), allow_nan=False)), arrays)
    assert type(back) is type(value)
    assert back == value
    assert repr(back) == repr(value)
    assert arrays == {}


def test_nan_comes_back() -> None:
    for value in (math.nan, np.float32("nan")):
        back = decode(json.loads(json.dumps(encode(value, "x", {}), allow_nan=False)), {})
        assert type(back) is type(value)
        assert math.isnan(back)


def test_arrays_are_kept_apart_by_path() -> None:
    arrays: dict[str, Any] = {}
    value = {"a": [np.arange(3), {"b/c": np.ones((2, 2), "float16")}], "n": np.array(2.5)}
    encoded = json.loads(json.dumps(encode(value, "x", arrays)))
    assert set(arrays) == {"a/0", "a/1/b%2Fc", "n"}
    back = decode(encoded, arrays)
    assert back["a"][0].tolist() == [0, 1, 2]
    assert back["a"][1]["b/c"].dtype == np.float16
    assert back["n"].shape == ()


@pytest.mark.parametrize("value", [object(), {1: 2}, b"bytes", {1, 2}, 1j, np.array(["text"])])
def test_what_cannot_be_kept_exactly_is_refused_by_path(value: Any) -> None:
    with pytest.raises(AnyrigError, match=r"Own\.0\.state\.deep") as caught:
        callbacks_state([Own({"deep": value})])
    assert caught.value.code == "ANY-STATE-012"


def test_table_covers_every_callback_of_keras() -> None:
    from anyrig.state.callbacks import _FIELDS

    known = {name for name in dir(callbacks) if isinstance(getattr(callbacks, name), type)}
    assert known - {"Callback", "CallbackList"} == set(_FIELDS)


def test_a_callback_that_keeps_nothing_has_no_key(tmp_path: Path) -> None:
    quiet = [
        callbacks.ProgbarLogger(),
        callbacks.LearningRateScheduler(float),
        callbacks.TerminateOnNaN(),
        callbacks.LambdaCallback(),
        callbacks.RemoteMonitor(),
    ]
    assert callbacks_state(quiet) == CallbackStates()


def test_keys_count_callbacks_of_one_class() -> None:
    early = [callbacks.EarlyStopping("a"), callbacks.ReduceLROnPlateau("b"), callbacks.EarlyStopping("c")]
    assert list(callbacks_state(early).json) == ["EarlyStopping.0", "ReduceLROnPlateau.0", "EarlyStopping.1"]


def fit(model: keras.Model, made: list[Any], losses: list[float], *, start: int = 0, state: Any = None) -> list[int]:
    """Drive callbacks as a loop would, with given losses; return the epochs that ran."""
    listed = callbacks.CallbackList(made, model=model, epochs=99, steps=1, verbose=0)
    model.stop_training = False
    listed.on_train_begin()
    if state is not None:
        restore_callbacks(made, *state)
    ran = []
    for epoch in range(start, len(losses)):
        listed.on_epoch_begin(epoch)
        model.layers[0].bias.assign([float(epoch)] * 2)
        listed.on_epoch_end(epoch, {"loss": losses[epoch], "val_loss": losses[epoch]})
        ran.append(epoch)
        if model.stop_training:
            break
    return ran


LOSSES = [3.0, 2.0, 2.5, 1.9, 2.2, 2.1, 2.3, 2.4, 2.5]


@pytest.mark.parametrize("stop", range(1, 7))
@pytest.mark.sampled(2)
def test_resumed_early_stopping_and_plateau_decide_alike(stop: int) -> None:
    def made() -> list[Any]:
        return [
            callbacks.EarlyStopping("loss", patience=3, restore_best_weights=True),
            callbacks.ReduceLROnPlateau("loss", patience=2, factor=0.5, cooldown=1, min_delta=0),
        ]

    whole, whole_callbacks = model_of(2), made()
    ran = fit(whole, whole_callbacks, LOSSES)
    assert ran[-1] == 6, "the case needs a run that stops early"
    first, first_callbacks = model_of(2), made()
    fit(first, first_callbacks, LOSSES[:stop])
    state = through_json(callbacks_state(first_callbacks))
    second, second_callbacks = model_of(2), made()
    second.optimizer.learning_rate.assign(first.optimizer.learning_rate)
    assert fit(second, second_callbacks, LOSSES, start=stop, state=state) == list(range(stop, 7))
    assert callbacks_state(second_callbacks).json == callbacks_state(whole_callbacks).json
    assert float(second.optimizer.learning_rate) == float(whole.optimizer.learning_rate)
    best = second_callbacks[0].best_weights
    assert best[1].tolist() == whole_callbacks[0].best_weights[1].tolist() == [3.0, 3.0]


def test_best_of_model_checkpoint_survives_b069_b070(tmp_path: Path) -> None:
    def made() -> Any:
        return callbacks.ModelCheckpoint(
            tmp_path / "best.weights.h5", "loss", save_best_only=True, save_weights_only=True
        )

    first = made()
    fit(model_of(2), [first], [1.4])
    kept = (tmp_path / "best.weights.h5").read_bytes()
    second = made()
    fit(model_of(2), [second], [1.4, 3572.0], start=1, state=through_json(callbacks_state([first])))
    assert second.best == 1.4
    assert (tmp_path / "best.weights.h5").read_bytes() == kept


def test_saving_every_n_batches_counts_on(tmp_path: Path) -> None:
    def made() -> list[Any]:
        return [
            callbacks.ModelCheckpoint(tmp_path / "x.keras", save_freq=3),
            callbacks.BackupAndRestore(str(tmp_path / "b"), save_freq=3),
        ]

    def saves(made: list[Any], batches: range) -> list[list[bool]]:
        return [[callback._should_save_on_batch(batch) for callback in made] for batch in batches]

    whole = saves(made(), range(8))
    first, second = made(), made()
    head = saves(first, range(4))
    restore_callbacks(second, *through_json(callbacks_state(first)))
    assert head + saves(second, range(4, 8)) == whole


def test_history_tensorboard_csv_and_ema_flag(tmp_path: Path) -> None:
    first = [
        callbacks.History(),
        callbacks.TensorBoard(tmp_path),
        callbacks.CSVLogger(tmp_path / "log"),
        callbacks.SwapEMAWeights(),
    ]
    history, board, table, swap = first
    history.on_train_begin()
    history.epoch, history.history = [0, 1], {"loss": [np.float32(0.1), math.inf]}
    board._global_train_batch, board._global_test_batch = 7, 3
    board._previous_epoch_iterations = keras.ops.convert_to_tensor(5.0)
    table.keys, swap._ema_weights_in_model = ["loss", "val_loss"], True
    second = [
        callbacks.History(),
        callbacks.TensorBoard(tmp_path),
        callbacks.CSVLogger(tmp_path / "log"),
        callbacks.SwapEMAWeights(),
    ]
    restore_callbacks(second, *through_json(callbacks_state(first)))
    assert second[0].epoch == [0, 1]
    assert second[0].history == {"loss": [np.float32(0.1), math.inf]}
    assert (second[1]._global_train_batch, second[1]._global_test_batch) == (7, 3)
    assert float(second[1]._previous_epoch_iterations) == 5.0
    assert second[2].keys == ["loss", "val_loss"]
    assert second[3]._ema_weights_in_model is True


def test_users_callback_with_nested_state() -> None:
    first, second = Own({"seen": 3, "inner": [{"mean": np.arange(4.0)}], "worst": math.nan}), Own()
    states = callbacks_state([first])
    assert list(states.arrays["Own.0"]) == ["state/inner/0/mean"]
    restore_callbacks([second], *through_json(states))
    assert second.state["seen"] == 3
    assert second.state["inner"][0]["mean"].tolist() == [0, 1, 2, 3]
    assert math.isnan(second.state["worst"])
    assert states.unsupported == []


def test_a_callback_with_nothing_to_keep_may_be_left_out_of_the_resumed_run() -> None:
    states = callbacks_state([Own({})])
    assert states.unsupported == []
    restore_callbacks([], *through_json(states))


def test_what_is_not_kept_is_said(tmp_path: Path) -> None:
    class Mine(callbacks.EarlyStopping):
        """A subclass with state of its own."""

    states = callbacks_state(
        [Silent(), Mine("loss"), callbacks.CSVLogger(tmp_path / "x"), callbacks.CSVLogger(tmp_path / "y", append=True)]
    )
    assert [line.partition(":")[0] for line in states.unsupported] == ["Silent.0", "Mine.0", "CSVLogger.0"]
    assert "get_state" in states.unsupported[0]
    assert "Mine.0" in states.json


def test_a_class_that_only_borrows_a_name_of_keras_is_not_taken_for_it() -> None:
    other = type("EarlyStopping", (callbacks.Callback,), {})()
    states = callbacks_state([other])
    assert states.json == {}
    assert len(states.unsupported) == 1


@pytest.mark.parametrize("base", [callbacks.EarlyStopping, callbacks.Callback])
def test_arrays_that_a_callback_writes_into_stay_as_they_were_whatever_it_is_called(base: type) -> None:
    seen = np.zeros(3)
    own = {"get_state": lambda self: {"seen": seen}, "set_state": lambda self, state: None}
    inherits = {"on_train_batch_end": lambda self, batch, logs=None: None}
    speaks = type("EarlyStopping", (base,), own)()
    stopping = type("EarlyStopping", (callbacks.EarlyStopping,), inherits)("loss")
    stopping.best = seen
    states = callbacks_state([speaks, stopping])
    seen += 1
    assert states.arrays["EarlyStopping.0"]["state/seen"].tolist() == [0, 0, 0]
    assert states.arrays["EarlyStopping.1"]["best"].tolist() == [0, 0, 0]
    assert [line.partition(":")[0] for line in states.unsupported] == ["EarlyStopping.1"]


@pytest.mark.parametrize(
    ("stored", "present", "says"),
    [
        ([callbacks.EarlyStopping("loss")], [], r"no callback EarlyStopping\.0"),
        (
            [callbacks.EarlyStopping("loss")],
            [callbacks.EarlyStopping("val_loss")],
            "watches 'val_loss', the stored one 'loss'",
        ),
    ],
)
def test_state_for_another_callback_is_refused(stored: Any, present: Any, says: str) -> None:
    with pytest.raises(AnyrigError, match=says) as caught:
        restore_callbacks(present, *through_json(callbacks_state(stored)))
    assert caught.value.code == "ANY-STATE-013"


def test_best_weights_of_another_model_are_refused_and_nothing_set() -> None:
    early = callbacks.EarlyStopping("loss", restore_best_weights=True)
    fit(model_of(2), [early], [1.0])
    other, counting = callbacks.EarlyStopping("loss", restore_best_weights=True), Own("before")
    other.set_model(model_of(2, 2))
    with pytest.raises(AnyrigError, match="model/d1/bias"):
        restore_callbacks([counting, other], *through_json(callbacks_state([Own("after"), early])))
    assert counting.state == "before"


def test_a_new_callback_starts_afresh() -> None:
    new = callbacks.EarlyStopping("loss")
    restore_callbacks([new, Own("kept")], *through_json(callbacks_state([Own("stored")])))
    assert new.best is None
