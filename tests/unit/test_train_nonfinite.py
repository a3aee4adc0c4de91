"""Numbers that are not finite: the step that meets them changes nothing, and raises, is skipped, or is undone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anyrig
from anyrig.errors import AnyrigError
from anyrig.state.capture import capture
from anyrig.store.commit import newest_sound
from anyrig.store.digest import state_digest_of
from anyrig.train.rig import Rig

layers = keras.layers
Fit = Callable[..., keras.callbacks.History]
ROWS, SIZE, BAD_ROW = 48, 8, 21  # step 3 of 6 holds the bad row, in the second of its two virtual replicas
Y = np.arange(ROWS, dtype="float32")[:, None] / ROWS


def data(bad: float = np.nan, rows: int = 1) -> Any:
    x = np.random.default_rng(0).normal(size=(ROWS, 6)).astype("float32")
    x[BAD_ROW : BAD_ROW + rows, 2] = bad
    return x


@keras.saving.register_keras_serializable("nonfinite")
class Root(layers.Layer):
    """The gradient of the square root is infinite at zero, where its value is finite."""

    def call(self, inputs: Any) -> Any:
        return keras.ops.sqrt(keras.ops.relu(inputs))


def build() -> keras.Model:
    model = keras.Sequential([keras.Input((6,)), layers.BatchNormalization(), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


@pytest.fixture(scope="module")
def built() -> tuple[Rig, keras.Model, list[Any]]:
    """One model for all tests, which is traced once, and its state before any training."""
    rig = Rig(1)
    model = rig.build(build)
    model.optimizer.build(model.trainable_variables)
    return rig, model, [(v, v.numpy()) for v in [*model.variables, *model.optimizer.variables]]


@pytest.fixture
def model(built: tuple[Rig, keras.Model, list[Any]]) -> keras.Model:
    for variable, value in built[2]:
        variable.assign(value)
    return built[1]


@pytest.fixture
def fit(built: tuple[Rig, keras.Model, list[Any]], model: keras.Model) -> Callable[..., keras.callbacks.History]:
    def fit(x: Any, **given: Any) -> keras.callbacks.History:
        batch = anyrig.Batch(global_size=SIZE, virtual_replicas=2)
        return built[0].fit(model, x, Y, **{"batch": batch, "shuffle": False, "verbose": 0, **given})

    return fit


def newest(run: Path) -> Any:
    checkpoint, _ = newest_sound(run / "checkpoints")
    assert checkpoint is not None
    return checkpoint


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def digest(model: keras.Model) -> str:
    return state_digest_of(capture(model).tensors, 0)


class Digests(keras.callbacks.Callback):
    """Notes the state after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def on_train_batch_end(self, _batch: int, logs: Any = None) -> None:
        self.seen.append(digest(self.model))


def test_raise_names_step_batch_and_rows_and_leaves_the_state_before_the_step(fit: Fit, model: keras.Model) -> None:
    notes = Digests()
    with pytest.raises(AnyrigError) as error:
        fit(data(np.inf), callbacks=[notes])
    assert error.value.code == "ANY-TRAIN-017"
    assert "step 3 (epoch 1, batch 3): the loss of rows 4 to 7 of the batch is not finite" in str(error.value)
    assert f"x is not finite in row {BAD_ROW % SIZE} of the batch" in str(error.value)
    assert len(notes.seen) == 2
    assert digest(model) == notes.seen[-1]


def test_raise_names_the_gradients_where_the_loss_is_finite() -> None:
    def with_root() -> keras.Model:
        model = keras.Sequential([keras.Input((6,)), layers.Dense(4, name="first", kernel_initializer="zeros"), Root()])
        model.compile("sgd", "mse")
        return model

    rig = Rig(1)
    model = rig.build(with_root)
    before = model.get_weights()
    with pytest.raises(AnyrigError, match="the gradient of model/first/kernel, the gradient of model/first/bias are"):
        rig.fit(model, data(0.0), Y, verbose=0)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))


def test_skip_leaves_out_one_update_and_says_so(fit: Fit, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    notes = Digests()
    checkpoint = anyrig.Checkpoint(tmp_path, every="1 epoch")
    fit(data(), on_nonfinite="skip", callbacks=[notes, checkpoint], verbose=2)
    assert "batch 3): the loss of rows 4 to 7" in (printed := capsys.readouterr().out)
    assert "step left out (1 so far)" in printed
    assert notes.seen[2] == notes.seen[1]
    assert len(set(notes.seen)) == 5
    stored = newest(tmp_path)
    assert (stored.progress["step"], stored.progress["updates"]) == (6, 5)
    assert [event["step"] for event in events(tmp_path) if event["kind"] == "skip"] == [3]


def test_skip_ends_where_the_weights_themselves_are_not_finite(fit: Fit, model: keras.Model) -> None:
    model.layers[-1].bias.assign([np.inf])
    with pytest.raises(AnyrigError, match="because the weights are not finite"):
        fit(data(0.0), on_nonfinite="skip")


def test_rollback_goes_back_and_does_without_the_batch(
    fit: Fit, model: keras.Model, built: tuple[Rig, keras.Model, list[Any]], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    fit(data(), epochs=2, on_nonfinite="skip", callbacks=[anyrig.Checkpoint(tmp_path / "skip")])
    skipped = digest(model)
    for variable, value in built[2]:
        variable.assign(value)
    history = fit(data(), epochs=2, on_nonfinite="rollback", callbacks=[anyrig.Checkpoint(run, every="2 steps")])
    assert digest(model) == skipped
    assert history.epoch == [0, 1]
    assert len(history.history["loss"]) == 2
    assert newest(run).progress["left_out"] == [2, 8]
    assert newest(run).progress["updates"] == 10
    assert [event["kind"] for event in events(run)].count("rollback") == 2


def test_rollback_without_a_checkpoint_or_more_often_than_three_times_ends_the_run(fit: Fit, tmp_path: Path) -> None:
    with pytest.raises(AnyrigError, match="no checkpoint to go back to"):
        fit(data(), on_nonfinite="rollback")
    with pytest.raises(AnyrigError, match="no checkpoint of this phase"):
        fit(data(), on_nonfinite="rollback", callbacks=[anyrig.Checkpoint(tmp_path / "none", every="1 epoch")])
    with pytest.raises(AnyrigError, match="after 3 rollbacks"):
        fit(data(rows=48), on_nonfinite="rollback", callbacks=[anyrig.Checkpoint(tmp_path / "many", every="1 steps")])
    assert newest(tmp_path / "many").step == 5


def test_an_unknown_choice_is_refused(fit: Fit) -> None:
    with pytest.raises(AnyrigError, match="expected one of raise, skip, rollback, found 'ignore'"):
        fit(data(), on_nonfinite="ignore")
