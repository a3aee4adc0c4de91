"""A run from start to end in one process: stopped, damaged, changed, ended by a callback, carried on."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anyrig
from anyrig.errors import AnyrigError
from anyrig.events import read_events
from anyrig.store.commit import committed_steps, newest_sound
from anyrig.store.read import Checkpoint
from anyrig.train.run import Run

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(22, 4)).astype("float32")
Y = GENERATOR.normal(size=(22, 1)).astype("float32")
STEPS = 3  # an epoch of 22 rows in batches of 8


def build(units: int = 6) -> keras.Model:
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


def make(folder: Path, *, epochs: int = 3, batch: anyrig.Batch | None = None, **given: Any) -> Run:
    settings: dict[str, Any] = {
        "build_model": build,
        "train": (X, Y),
        "validation": (X, Y),
        "checkpoint": anyrig.Checkpoint(every="1 epoch"),
        **given,
    }
    build_model = settings.pop("build_model")
    rule = batch or anyrig.Batch(global_size=8, virtual_replicas=2)
    return Run(folder, build_model, batch=rule, epochs=epochs, devices=1, **settings)


def train(folder: Path, **given: Any) -> Run:
    run = make(folder, **given)
    run.train(verbose=0)
    return run


def newest(folder: Path) -> Checkpoint:
    found, _ = newest_sound(folder / "checkpoints")
    assert found is not None
    return found


def steps(folder: Path) -> list[int]:
    return committed_steps(folder / "checkpoints")


def kinds(folder: Path) -> list[object]:
    return [event["kind"] for event in read_events(folder / "events.jsonl")]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three epochs that nothing disturbed."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    train(folder)
    return folder


@pytest.fixture
def two_epochs(straight: Path, tmp_path: Path) -> Path:
    """A run of two epochs, to be carried on."""
    folder = tmp_path / "run"
    train(folder, epochs=2)
    return folder


class Do(keras.callbacks.Callback):
    """Calls a function once, at the given call of a hook."""

    def __init__(self, hook: str, at: int, act: Callable[[], Any]) -> None:
        super().__init__()
        self.calls, self.at, self.act = 0, at, act
        setattr(self, hook, self._count)

    def _count(self, *_: Any, **__: Any) -> None:
        self.calls += 1
        if self.calls == self.at:
            self.act()


class Masks(keras.layers.Layer):
    """Holds a constant of minus infinity, as attention masks do."""

    def build(self, _: Any) -> None:
        infinite = keras.initializers.Constant(-np.inf)
        self.mask = self.add_weight(shape=(2,), initializer=infinite, trainable=False, name="mask")

    def call(self, inputs: Any) -> Any:
        return inputs


def test_the_straight_run(straight: Path) -> None:
    assert steps(straight) == [3, 6, 9]
    told = kinds(straight)
    assert [kind for kind in told if kind != "save"] == ["start", *["epoch"] * 3, "end"]
    assert told.count("save") == 3  # each when it is on the disk, which may be after the next epoch
    progress = newest(straight).progress
    assert progress["position"] == {"step": 9, "epoch": 3, "batch": 0, "rows": 66}
    assert (progress["updates"], len(progress["history"]["val_mae"])) == (9, 3)


def test_more_epochs_carry_on_to_the_same_bytes(straight: Path, two_epochs: Path) -> None:
    run = train(two_epochs)
    assert newest(two_epochs).state_digest == newest(straight).state_digest
    assert len(run.history["loss"]) == 3
    assert kinds(two_epochs)[-5:] == ["resume", "load", "epoch", "save", "end"]


def test_a_finished_run_has_nothing_left_to_train(straight: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = newest(straight).path.stat()
    make(straight).train(verbose=2)
    assert "nothing is left to train: all is done after epoch 3 of 3" in capsys.readouterr().out
    assert newest(straight).path.stat() == before


def test_U06_a_damaged_checkpoint_is_set_aside_and_the_one_before_takes_its_place(
    straight: Path, two_epochs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = next((two_epochs / "checkpoints" / "step-000000006").glob("model-*"))
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.chmod(0o600)
    data.write_bytes(content)
    make(two_epochs).train(verbose=2)
    out = capsys.readouterr().out
    assert "step-000000006 cannot be used and was set aside" in out
    assert "at step 3, after epoch 1 of 3" in out
    assert newest(two_epochs).state_digest == newest(straight).state_digest


def test_a_start_that_is_refused_leaves_a_damaged_checkpoint_where_it_is(two_epochs: Path) -> None:
    data = next((two_epochs / "checkpoints" / "step-000000006").glob("model-*"))
    data.chmod(0o600)
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(AnyrigError, match="recipe: seed: 0 -> 1"):
        train(two_epochs, seed=1)
    assert sorted(path.name for path in (two_epochs / "checkpoints").iterdir()) == ["step-000000003", "step-000000006"]


def test_U05_a_half_written_checkpoint_is_not_one(straight: Path, two_epochs: Path) -> None:
    folder = two_epochs / "checkpoints"
    shutil.copytree(folder / "step-000000006", folder / ".step-000000009.partial-00000000")
    train(two_epochs)
    assert newest(two_epochs).state_digest == newest(straight).state_digest
    assert sorted(path.name for path in folder.iterdir()) == [f"step-{step:09d}" for step in (3, 6, 9)]


@pytest.mark.parametrize(
    ("hook", "at", "step"),
    [
        ("on_train_batch_end", 1, 1),
        ("on_train_batch_end", 5, 5),
        ("on_train_batch_end", 6, 6),
        ("on_test_batch_end", 2, 3),
    ],
)
def test_U04_B075_stopped_by_a_signal_anywhere_and_carried_on(
    straight: Path, tmp_path: Path, hook: str, at: int, step: int
) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(anyrig.Stopped, match=f"stopped by SIGTERM: saved .* at step {step}, ") as stopped:
        train(tmp_path / "run", callbacks=[Do(hook, at, lambda: os.kill(os.getpid(), signal.SIGTERM))])
    assert stopped.value.exit_code == 75
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert newest(tmp_path / "run").step == step
    train(tmp_path / "run")
    assert newest(tmp_path / "run").state_digest == newest(straight).state_digest
    assert newest(tmp_path / "run").progress["history"] == newest(straight).progress["history"]


def test_an_exception_in_a_callback_leaves_a_committed_state(straight: Path, tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        train(tmp_path / "run", callbacks=[Do("on_train_batch_end", 5, fail)])
    assert steps(tmp_path / "run") == [3]
    train(tmp_path / "run")
    assert newest(tmp_path / "run").state_digest == newest(straight).state_digest


def test_a_state_that_is_not_finite_is_never_committed(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    poison = Do("on_train_batch_end", 6, lambda: run.model.layers[0].kernel.assign(np.full((4, 6), np.nan)))
    run._callbacks.append(poison)
    with pytest.raises(AnyrigError, match=r"model/dense\.0/.* is not finite at step 6"):
        run.train(verbose=0)
    assert steps(tmp_path / "run") == [3]


def test_B069_an_early_stop_ends_the_run_for_good_and_keeps_the_best_weights(tmp_path: Path) -> None:
    def stopper() -> keras.callbacks.EarlyStopping:
        return keras.callbacks.EarlyStopping("loss", patience=1, min_delta=10, restore_best_weights=True)

    run = train(tmp_path, epochs=9, callbacks=[stopper()])
    assert newest(tmp_path).progress["position"]["epoch"] == 2
    first_epoch = train(tmp_path.with_name("one"), epochs=1)
    assert newest(tmp_path).model_digest == newest(tmp_path.with_name("one")).model_digest
    assert np.array_equal(run.model.get_weights()[0], first_epoch.model.get_weights()[0])
    before = newest(tmp_path).path.stat()
    train(tmp_path, epochs=9, callbacks=[stopper()])
    assert newest(tmp_path).path.stat() == before


CHANGED: dict[str, tuple[dict[str, Any], str, str]] = {
    "recipe": ({"seed": 1}, "recipe", "recipe: seed: 0 -> 1"),
    "batch": ({"batch": anyrig.Batch(global_size=4, virtual_replicas=2)}, "recipe", "batch.global_size: 8 -> 4"),
    "rows": ({"train": (X[:-1], Y[:-1])}, "data", "data: rows: 22 -> 21"),
    "values": ({"train": (X, Y + 1)}, "data", "data: hash"),
    "model": ({"build_model": lambda: build(7)}, "model", "model: its configuration"),
}


@pytest.mark.parametrize("change", CHANGED)
def test_what_changed_is_listed_and_refused(straight: Path, change: str) -> None:
    given, aspect, line = CHANGED[change]
    before = sorted((straight / "checkpoints").rglob("*"))
    with pytest.raises(AnyrigError, match=line) as refused:
        train(straight, **given)
    assert aspect in refused.value.hint
    assert sorted((straight / "checkpoints").rglob("*")) == before


def test_a_change_that_is_allowed_is_told(two_epochs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(two_epochs, train=(X, Y + 1), allow_changes=["data"]).train(verbose=2)
    assert "changed: data: hash" in capsys.readouterr().out
    assert steps(two_epochs) == [3, 6, 9]


def test_virtual_replicas_never_change(straight: Path) -> None:
    rule = anyrig.Batch(global_size=8, virtual_replicas=4)
    with pytest.raises(AnyrigError, match="started with 2, and 4 was asked for"):
        train(straight, batch=rule, allow_changes=["recipe"])


def test_virtual_replicas_that_are_not_asked_for_are_the_runs_own(straight: Path, two_epochs: Path) -> None:
    train(two_epochs, batch=anyrig.Batch(global_size=8))
    assert newest(two_epochs).state_digest == newest(straight).state_digest


@pytest.mark.parametrize(
    ("resume", "exists", "message"),
    [
        ("never", True, "already holds a run"),
        ("must", False, "no checkpoint to resume from"),
        ("maybe", False, "expected"),
    ],
)
def test_resume_says_what_it_needs(straight: Path, tmp_path: Path, resume: str, exists: bool, message: str) -> None:
    with pytest.raises(AnyrigError, match=message):
        train(straight if exists else tmp_path / "run", resume=resume)


def test_B115_a_second_writer_is_refused(tmp_path: Path) -> None:
    refused: list[str] = []

    def second() -> None:
        try:
            train(tmp_path / "run")
        except AnyrigError as error:
            refused.append(error.code)

    train(tmp_path / "run", callbacks=[Do("on_train_batch_end", 2, second)])
    assert refused == ["ANY-LOCK-001"]


def test_U12_a_new_process_predicts_with_the_newest_checkpoint(straight: Path) -> None:
    trained, opened = train(straight), make(straight)
    assert np.array_equal(opened.predict(X, verbose=0), trained.predict(X, verbose=0))
    assert opened.evaluate(verbose=0)[0] == newest(straight).progress["metrics"]["val_loss"]


def test_a_cut_line_of_events_does_not_keep_a_run_from_starting(two_epochs: Path) -> None:
    log = two_epochs / "events.jsonl"
    for _ in range(2):
        log.write_bytes(log.read_bytes() + b'{"time": 1')
        train(two_epochs)
    assert kinds(two_epochs)[-1] == "end"
    assert read_events(log)[-1]["attempt"] == 3


def test_B5_a_run_directory_that_was_taken_away_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AnyrigError, match="no longer held by this process"):
        train(tmp_path / "run", callbacks=[Do("on_train_batch_end", 2, lambda: shutil.rmtree(tmp_path / "run"))])


def test_a_constant_of_minus_infinity_is_saved(tmp_path: Path) -> None:
    def masked() -> keras.Model:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1), Masks()])
        model.compile("sgd", "mse")
        return model

    train(tmp_path / "run", epochs=1, build_model=masked)
    assert steps(tmp_path / "run") == [3]


def test_other_validation_data_is_a_change(straight: Path) -> None:
    with pytest.raises(AnyrigError, match=r"data: validation\.hash"):
        train(straight, validation=(X, Y + 1))


def test_going_on_after_the_end_changed_the_state_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def averaged() -> keras.Model:
        model = build()
        model.compile(keras.optimizers.SGD(0.01, use_ema=True), "mse")
        return model

    train(tmp_path, epochs=1, build_model=averaged)
    make(tmp_path, epochs=2, build_model=averaged).train(verbose=2)
    assert "the end of the earlier training changed the state" in capsys.readouterr().out


def test_a_stop_without_a_checkpoint_is_told(straight: Path) -> None:
    rig = anyrig.Rig(1)
    model = rig.build(build)
    with pytest.raises(anyrig.Stopped, match="nothing was saved"):
        rig.fit(model, X, Y, verbose=0, callbacks=[Do("on_train_batch_end", 1, rig.request_stop)])


def test_B072_a_model_that_its_first_batch_builds_is_carried_on(tmp_path: Path) -> None:
    def build() -> keras.Model:
        model = keras.Sequential([keras.layers.Dense(6), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    train(tmp_path / "whole", build_model=build, epochs=2)
    for epochs in (1, 2):
        train(tmp_path / "resumed", build_model=build, epochs=epochs)
    assert newest(tmp_path / "resumed").state_digest == newest(tmp_path / "whole").state_digest


def test_a_run_at_a_url_is_called_by_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANYRIG_SPOOL", str(tmp_path))
    url: Any = "memory://bucket/cats"
    stop = Do("on_train_batch_end", 2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(anyrig.Stopped, match=f"stopped by SIGTERM: saved {url} at step 2, "):
        train(url, callbacks=[stop])
    make(url).train(verbose=2)
    assert f"resuming {url} at step 2, " in capsys.readouterr().out
