"""Training goes on while a checkpoint is written: the bytes of the moment, no silent failure, nobody leaves early."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anyrig
from anyrig.errors import AnyrigError, Stopped
from anyrig.events import read_events
from anyrig.report.reports import SaveReport
from anyrig.state import values
from anyrig.state.capture import capture, plan_capture, take
from anyrig.store.commit import committed_steps, newest_sound
from anyrig.store.local import LocalFiles
from anyrig.store.write import drained, write_checkpoint
from anyrig.train import session
from anyrig.train.rig import Rig

layers = keras.layers
ROWS, SIZE = 32, 8  # an epoch has four steps
X = np.arange(ROWS, dtype="int32")[:, None] % 7
Y = np.linspace(-1, 1, ROWS, dtype="float32")[:, None]


def build() -> keras.Model:
    """Sparse gradients, moving averages, dropout seeds, Adam's slots, averaged weights and a metric."""
    model = keras.Sequential([keras.Input((1,), dtype="int32"), layers.Embedding(7, 4), layers.Flatten()])
    for layer in (layers.BatchNormalization(), layers.Dropout(0.2), layers.Dense(1)):
        model.add(layer)
    model.compile(keras.optimizers.Adam(0.1, use_ema=True, ema_overwrite_frequency=3), "mse", metrics=["mae"])
    return model


class Hooks(keras.callbacks.Callback):
    """Calls functions after given batches, counted over the fit from 1, and keeps an array that it writes into."""

    def __init__(self, **after: Callable[[], Any]) -> None:
        super().__init__()
        self.after = {int(name.removeprefix("batch_")): act for name, act in after.items()}
        self.done = 0
        self.counts = np.zeros(3)
        self.saves: list[SaveReport] = []
        self.threads: set[int] = set()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.done += 1
        self.counts += 1
        self.after.get(self.done, lambda: None)()

    def on_save_report(self, save: SaveReport) -> None:
        self.saves.append(save)
        self.threads.add(threading.get_ident())

    def get_state(self) -> dict[str, Any]:
        return {"counts": self.counts}

    def set_state(self, state: dict[str, Any]) -> None:
        self.counts = state["counts"]


@pytest.fixture(scope="module")
def built() -> tuple[Rig, keras.Model, list[Any]]:
    """One model for all tests, traced once, and its state before any training."""
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
def fit(built: tuple[Rig, keras.Model, list[Any]], model: keras.Model, tmp_path: Path) -> Callable[..., Hooks]:
    def fit(hooks: Hooks | None = None, every: str = "1 epoch", **given: Any) -> Hooks:
        hooks = hooks or Hooks()
        checkpoint = anyrig.Checkpoint(tmp_path, every=every, keep_last=None)
        batch = anyrig.Batch(global_size=SIZE, virtual_replicas=1)
        given = {"epochs": 2, "batch": batch, "shuffle": False, "verbose": 0, **given}
        built[0].fit(model, X, Y, callbacks=[hooks, checkpoint], **given)
        return hooks

    return fit


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Each save begins to write after 0.4 seconds, or as soon as the event is set."""
    go = threading.Event()
    hold_back(monkeypatch, go, 0.4)
    yield go
    go.set()


def hold_back(monkeypatch: pytest.MonkeyPatch, go: threading.Event, seconds: float) -> None:
    def write(*given: Any, **named: Any) -> Any:
        go.wait(seconds)
        return write_checkpoint(*given, **named)

    monkeypatch.setattr(session, "write_checkpoint", write)


def nothing_in_flight() -> None:
    """Return when no save is going on."""
    while any(thread.name == "anyrig-save" for thread in threading.enumerate()):
        time.sleep(0.001)


def steps(run: Path) -> list[int]:
    return committed_steps(run / "checkpoints")


def contents(tensors: Any) -> dict[str, bytes]:
    return {tensor.name: np.asarray(tensor.array).tobytes() for tensor in tensors}


def test_a_save_has_the_bytes_of_its_moment(
    fit: Callable[..., Hooks], model: keras.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    hold_back(monkeypatch, go, 60)
    moments: dict[int, dict[str, bytes]] = {}
    later: dict[str, bytes] = {}
    begin = session.Session.save

    def save(self: Any, step: int, tensors: Any, **given: Any) -> None:
        moments[step] = contents(tensors)
        begin(self, step, tensors, **given)

    def change() -> None:
        model.set_weights([weight + 1 for weight in model.get_weights()])
        model.reset_metrics()

    def look() -> None:
        assert steps(tmp_path) == []  # two steps later nothing is written yet
        later.update(contents(capture(model).tensors))
        go.set()

    monkeypatch.setattr(session.Session, "save", save)
    hooks = fit(Hooks(batch_3=change, batch_4=look), every="2 steps")
    stored = {step: anyrig_checkpoint(tmp_path, step) for step in steps(tmp_path)}
    assert sorted(stored) == sorted(moments) == [2, 4, 6, 8]
    assert hooks.threads == {threading.get_ident()}
    for step, checkpoint in stored.items():
        assert {name: checkpoint.tensor(name).tobytes() for name in checkpoint.names} == moments[step]
    assert np.frombuffer(moments[2]["callbacks/Hooks.0/state/counts"]).tolist() == [2, 2, 2]
    same = {name for name in later if later[name] == moments[2][name]}
    assert all(name.endswith(("learning_rate", "state")) for name in same), same


def anyrig_checkpoint(run: Path, step: int) -> Any:
    from anyrig.store.read import open_checkpoint

    return open_checkpoint(run / "checkpoints" / f"step-{step:09d}")


def test_one_save_at_a_time_and_the_wait_for_it_is_its_pause(
    fit: Callable[..., Hooks], slow: threading.Event, tmp_path: Path
) -> None:
    hooks = fit(every="1 step", epochs=1)
    assert [save.step for save in hooks.saves] == [1, 2, 3, 4, 4]  # the averages taken over at the end
    assert all(save.pause_seconds > 0.1 for save in hooks.saves)  # a step takes less time than a save
    events = [event for event in read_events(tmp_path / "events.jsonl") if event["kind"] == "save"]
    assert [event["pause_seconds"] for event in events] == [round(save.pause_seconds, 4) for save in hooks.saves]


def test_a_save_that_fails_ends_training_at_the_next_boundary_and_harms_nothing(
    fit: Callable[..., Hooks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = threading.Event()
    write = LocalFiles.write

    def fails(self: LocalFiles, descriptor: int, data: memoryview) -> None:
        if full.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, descriptor, data)

    monkeypatch.setattr(LocalFiles, "write", fails)
    hooks = Hooks(batch_3=nothing_in_flight, batch_4=full.set, batch_5=nothing_in_flight)
    with pytest.raises(AnyrigError, match="ANY-STORE-007") as raised:
        fit(hooks, every="2 steps")
    assert "Step 4 was not saved" in str(raised.value)
    assert hooks.done == 5
    assert {"at_boundary", "write_checkpoint"} <= {entry.name for entry in raised.traceback}
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000002"]
    full.clear()
    fit(resume="auto")
    assert steps(tmp_path) == [2, 4, 8]
    assert newest_sound(tmp_path / "checkpoints")[1] == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_whoever_leaves_waits_for_the_save_in_flight(
    fit: Callable[..., Hooks], slow: threading.Event, tmp_path: Path, error: type[BaseException]
) -> None:
    def leave() -> None:
        raise error("enough")

    with pytest.raises(error, match="enough"):
        fit(Hooks(batch_3=leave), every="2 steps")
    assert steps(tmp_path) == [2]
    assert not (tmp_path / ".lock").exists()


def test_the_first_error_is_seen_and_the_failed_save_is_its_note(
    fit: Callable[..., Hooks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(*_: Any, **__: Any) -> None:
        time.sleep(0.2)
        raise OSError("the disk is gone")

    def leave() -> None:
        raise ValueError("enough")

    monkeypatch.setattr(session, "write_checkpoint", write)
    with pytest.raises(ValueError, match="enough") as raised:
        fit(Hooks(batch_3=leave), every="2 steps")
    assert raised.value.__notes__ == ["and the save that was going on failed: the disk is gone"]


def test_a_stop_and_a_limit_say_saved_when_it_is(
    built: Any, fit: Callable[..., Hooks], slow: threading.Event, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        fit(Hooks(batch_3=built[0].request_stop), every="2 steps")
    assert steps(tmp_path) == [2, 3]
    hooks = fit(every="8 steps", limits=anyrig.Limits(max_steps=5), resume="auto")
    assert steps(tmp_path) == [2, 3, 5]
    assert [save.step for save in hooks.saves] == [5]


def test_going_back_waits_for_the_newest(
    fit: Callable[..., Hooks], model: keras.Model, slow: threading.Event, tmp_path: Path
) -> None:
    def spoil() -> None:
        model.layers[-1].kernel.assign(model.layers[-1].kernel * np.nan)

    fit(Hooks(batch_3=spoil), every="2 steps", on_nonfinite="rollback")
    assert [event["step"] for event in read_events(tmp_path / "events.jsonl") if event["kind"] == "rollback"] == [4]
    assert steps(tmp_path) == [2, 4, 6, 8]


def test_numbers_that_are_not_finite_are_never_committed(
    fit: Callable[..., Hooks], model: keras.Model, tmp_path: Path
) -> None:
    def spoil() -> None:
        model.optimizer.variables[-1].assign(model.optimizer.variables[-1] + np.inf)

    with pytest.raises(AnyrigError, match=r"optimizer/main/.* is not finite at step 4"):
        fit(Hooks(batch_4=spoil), every="4 steps", epochs=1)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_what_lives_on_an_accelerator_is_brought_over_by_the_writer(
    model: keras.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = contents(capture(model).tensors)
    brought: list[Any] = []
    array_of = values._array_of

    def bring(tensor: Any) -> Any:
        brought.append(tensor)
        return array_of(tensor)

    monkeypatch.setattr(values, "_on_accelerator", lambda tensor: True)
    monkeypatch.setattr(values, "_array_of", bring)
    tensors = take(plan_capture(model)).tensors
    assert brought == []
    for variable in model.variables:
        variable.assign(variable + 1)
    made = write_checkpoint(tmp_path, 1, drained(tensors), progress={})
    assert len(brought) == len(expected)
    assert {name: made.tensor(name).tobytes() for name in made.names} == expected


def test_names_are_found_again_when_there_are_other_variables(model: keras.Model) -> None:
    plan = plan_capture(model)
    assert plan.still_holds(model)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse", metrics=["mae"])
    assert not plan.still_holds(model)
    plan = plan_capture(model)
    model.evaluate(X, Y, verbose=0)  # metrics get their variables with the first batch
    assert not plan.still_holds(model)
    assert any(tensor.name.startswith("metrics/mae") for tensor in take(plan_capture(model)).tensors)
