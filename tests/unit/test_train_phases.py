"""Runs of several phases, limits of a start, and warm starts, on one device."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import anyrig
from anyrig.errors import AnyrigError, Stopped, UsageError
from anyrig.state.capture import capture
from anyrig.store.commit import committed_steps, newest_sound
from anyrig.store.digest import state_digest_of
from anyrig.train.limits import parse_duration

X = np.random.default_rng(0).normal(size=(40, 6)).astype("float32")
Y = np.random.default_rng(1).normal(size=(40, 1)).astype("float32")
STEPS = 5  # of an epoch
HEAD = anyrig.Phase(name="head", epochs=2, freeze=["body"])
FINE = anyrig.Phase(name="fine", epochs=2, learning_rate=0.003)


def build() -> keras.Model:
    body = keras.Sequential([layers.Dense(5, "tanh"), layers.BatchNormalization()], name="body")
    model = keras.Sequential([keras.Input((6,)), body, layers.Dropout(0.2), layers.Dense(1, name="head")])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


class StopAt(keras.callbacks.Callback):
    def __init__(self, run: anyrig.Run, steps: int) -> None:
        super().__init__()
        self.run, self.left = run, steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            self.run.rig.request_stop()


def make(folder: Path, **more: Any) -> anyrig.Run:
    given = {"phases": [HEAD, FINE], "train": (X, Y), "batch": anyrig.Batch(global_size=8, virtual_replicas=2), **more}
    return anyrig.Run(folder, build, **given)


def digest(run: anyrig.Run) -> str:
    stored, _ = newest_sound(run.directory / "checkpoints")
    assert stored is not None
    return f"{stored.step} {stored.state_digest}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> anyrig.Run:
    run = make(tmp_path_factory.mktemp("phases") / "whole")
    run.train(verbose=0)
    return run


@pytest.mark.parametrize("stop_after", [3, 2 * STEPS, 2 * STEPS + 1, 3 * STEPS])
def test_a_run_stopped_in_any_phase_goes_on_to_the_same_bytes(
    whole: anyrig.Run, tmp_path: Path, stop_after: int
) -> None:
    first = make(tmp_path / "run")
    first._callbacks = [StopAt(first, stop_after)]
    with pytest.raises(Stopped):
        first.train(verbose=0)
    second = make(tmp_path / "run")
    assert second.train(verbose=0) == whole.history
    assert digest(second) == digest(whole)


def test_epochs_are_counted_on_and_the_frozen_part_stays(whole: anyrig.Run, tmp_path: Path) -> None:
    assert len(whole.history["loss"]) == 4
    assert float(whole.model.optimizer.learning_rate) == np.float32(0.003)
    head = make(tmp_path / "head", phases=[HEAD])
    head.train(verbose=0)
    start = head.rig.build(build)
    frozen = [variable.numpy() for variable in head.model.get_layer("body").trainable_variables]
    assert frozen == []
    for trained, new in zip(head.model.get_layer("body").weights, start.get_layer("body").weights, strict=True):
        assert trained.numpy().tobytes() == new.numpy().tobytes()
    assert head.model.get_layer("head").kernel.numpy().tobytes() != start.get_layer("head").kernel.numpy().tobytes()


def test_a_phase_added_later_goes_on_from_the_end(
    whole: anyrig.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "run", phases=[HEAD]).train(verbose=0)
    run = make(tmp_path / "run")
    run.train(verbose=2)
    assert "phase fine begins at step 10, after epoch 2 of 4" in capsys.readouterr().out
    assert digest(run) == digest(whole)


def test_a_phase_ended_early_shortens_the_run(tmp_path: Path) -> None:
    stopper = keras.callbacks.EarlyStopping(monitor="loss", patience=0, min_delta=100.0)
    run = make(tmp_path / "run", callbacks=[stopper])
    run.train(verbose=0)
    stored, _ = newest_sound(run.directory / "checkpoints")
    assert stored is not None
    assert [(phase["name"], phase["began"]) for phase in stored.progress["phases"]] == [("head", 0), ("fine", 2)]
    assert len(run.history["loss"]) == 4  # the first epoch of each is the best so far, the second stops it


def test_fit_twice_in_a_script_is_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def script() -> str:
        rig = anyrig.Rig()
        model = rig.build(build)
        more: dict[str, Any] = {"epochs": 1, "batch_size": 8, "resume": "auto", "verbose": 2}
        saver = anyrig.Checkpoint(tmp_path / "run")
        rig.fit(model, X, Y, phase="head", callbacks=[saver], **more)
        model.compile(keras.optimizers.SGD(0.01), "mse")
        rig.fit(model, X, Y, phase="fine", callbacks=[saver], **more)
        return state_digest_of(capture(model).tensors, 0)

    first = script()
    capsys.readouterr()
    assert script() == first
    assert "phase head is over" in capsys.readouterr().out


def test_a_phase_does_not_begin_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    run._callbacks = [StopAt(run, 3)]
    with pytest.raises(Stopped):
        run.train(verbose=0)
    rig = anyrig.Rig()
    saver = anyrig.Checkpoint(tmp_path / "run")
    with pytest.raises(UsageError, match="ANY-RUN-033"):
        rig.fit(rig.build(build), X, Y, phase="other", callbacks=[saver], resume="auto", verbose=0)


def test_a_phase_is_not_rolled_back_into_the_one_before(tmp_path: Path) -> None:
    make(tmp_path / "run", phases=[HEAD]).train(verbose=0)
    poisoned = X.copy()
    poisoned[:] = np.nan
    run = make(tmp_path / "run", train=(poisoned, Y), allow_changes=["data"], on_nonfinite="rollback")
    with pytest.raises(AnyrigError, match="ANY-TRAIN-020"):
        run.train(verbose=0)


def test_a_pattern_that_fits_no_layer_is_told_with_the_names(tmp_path: Path) -> None:
    run = make(tmp_path / "run", phases=[anyrig.Phase(name="a", epochs=1, freeze=["bdy"])])
    with pytest.raises(UsageError, match=r"(?s)no layer is called bdy; there are input_layer.0, body.*ANY-RUN-031"):
        run.train(verbose=0)


def test_epochs_beside_phases_and_doubled_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ANY-RUN-034"):
        make(tmp_path / "run", epochs=3)
    with pytest.raises(UsageError, match="ANY-RUN-034"):
        make(tmp_path / "run", phases=[HEAD, HEAD])


@pytest.mark.parametrize(
    "given", [{"epochs": 1.5}, {"epochs": -1}, {"epochs": 1, "learning_rate": -1.0}, {"epochs": 1, "freeze": "body"}]
)
def test_a_phase_that_cannot_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="ANY-RUN-034"):
        anyrig.Phase(name="a", **given)


def test_a_run_of_phases_does_not_go_on_without_one(whole: anyrig.Run) -> None:
    with pytest.raises(UsageError, match=r"(?s)made of phases \(head, fine\).*ANY-RUN-033"):
        make(whole.directory, phases=(), epochs=9).train(verbose=0)


def test_a_rollback_stays_within_its_phase(tmp_path: Path) -> None:
    """The checkpoint before holds the state of another optimizer."""
    make(tmp_path / "run", phases=[HEAD], on_nonfinite="rollback").train(verbose=0)
    bad = np.where(np.arange(len(X))[:, None] == 3, np.nan, X)
    run = make(tmp_path / "run", on_nonfinite="rollback", train=(bad, Y), allow_changes=["data"])
    with pytest.raises(AnyrigError, match=r"(?s)no checkpoint of this phase.*ANY-TRAIN-020"):
        run.train(verbose=0)


def test_phases_of_a_loss_scale_optimizer(tmp_path: Path) -> None:
    def scaled() -> keras.Model:
        model = build()
        model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01)), "mse")
        return model

    run = make(tmp_path / "run", limits=anyrig.Limits(batches_per_epoch=1))
    run._build_model = scaled
    run.train(verbose=0)
    assert type(run.model.optimizer) is keras.optimizers.LossScaleOptimizer
    assert float(run.model.optimizer.inner_optimizer.learning_rate) == np.float32(0.003)


class OwnCompile(keras.Sequential):
    def compile(self, player: Any) -> None:
        super().compile(player, "mse")


def test_a_model_that_cannot_be_compiled_for_each_phase_is_refused(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    run._build_model = lambda: keras.Sequential([keras.Input((6,)), layers.Dense(1)])
    with pytest.raises(UsageError, match="ANY-TRAIN-007"):
        run.train(verbose=0)

    def own() -> keras.Model:
        model = OwnCompile([keras.Input((6,)), layers.Dense(1)])
        model.compile("sgd")
        return model

    run = make(tmp_path / "run")
    run._build_model = own
    with pytest.raises(UsageError, match="ANY-RUN-038"):
        run.train(verbose=0)


def test_a_signal_at_the_end_of_a_phase_stops_the_next(whole: anyrig.Run, tmp_path: Path) -> None:
    class AtEnd(keras.callbacks.Callback):
        def on_train_end(self, logs: Any = None) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match=r"SIGTERM.* at step 11,"):
        make(tmp_path / "run", callbacks=[AtEnd()]).train(verbose=0)
    run = make(tmp_path / "run")
    run.train(verbose=0)
    assert digest(run) == digest(whole)


def test_all_phases_together_have_the_time_of_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = itertools.count()
    # A second each time it is asked.
    clock = SimpleNamespace(monotonic=lambda: float(next(asked)), perf_counter=time.perf_counter)
    for module in ("saving", "run"):
        monkeypatch.setattr(f"anyrig.train.{module}.time", clock)
    with pytest.raises(Stopped, match=r"limits.max_time \(14\)"):
        make(tmp_path / "run", limits=anyrig.Limits(max_time=14)).train(verbose=0)
    stored, _ = newest_sound(tmp_path / "run" / "checkpoints")
    assert stored is not None
    assert stored.progress["phases"][-1]["name"] == "fine"


def test_a_limit_of_steps_saves_and_ends_and_goes_on_when_raised(
    whole: anyrig.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "run", limits=anyrig.Limits(max_steps=7)).train(verbose=2)
    assert "limits.max_steps (7) reached" in capsys.readouterr().out
    assert committed_steps(tmp_path / "run" / "checkpoints")[-1] == 7
    make(tmp_path / "run", limits=anyrig.Limits(max_steps=7)).train(verbose=0)
    assert committed_steps(tmp_path / "run" / "checkpoints")[-1] == 7
    run = make(tmp_path / "run")
    run.train(verbose=0)
    assert digest(run) == digest(whole)


def test_a_limit_of_steps_is_kept_also_between_the_steps_of_one_execution(tmp_path: Path) -> None:
    """Three batches an execution, five an epoch: the limit lies inside an execution, and the bytes stay the same."""

    def built() -> keras.Model:
        model = build()
        model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=3)
        return model

    def run(name: str, **more: Any) -> anyrig.Run:
        batch = anyrig.Batch(global_size=8, virtual_replicas=2)
        return anyrig.Run(tmp_path / name, built, train=(X, Y), batch=batch, epochs=3, **more)

    reference = run("whole")
    reference.train(verbose=0)
    for limit in (1, 7, 8):
        run("run", limits=anyrig.Limits(max_steps=limit)).train(verbose=0)
        assert committed_steps(tmp_path / "run" / "checkpoints")[-1] == limit
    last = run("run")
    last.train(verbose=0)
    assert digest(last) == digest(reference)


def test_a_limit_of_time_stops_as_a_signal_does(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match=r"stopped by limits.max_time \(0.001\): saved"):
        make(tmp_path / "run", limits=anyrig.Limits(max_time=0.001)).train(verbose=0)
    assert committed_steps(tmp_path / "run" / "checkpoints") == [1]


def test_a_limit_of_batches_shortens_the_epoch(tmp_path: Path) -> None:
    run = make(tmp_path / "run", phases=(), epochs=2, limits=anyrig.Limits(batches_per_epoch=3))
    run.train(verbose=0)
    assert committed_steps(tmp_path / "run" / "checkpoints")[-1] == 6


@pytest.mark.parametrize("given", [{"max_steps": 0}, {"max_time": "soon"}, {"batches_per_epoch": True}])
def test_wrong_limits_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="ANY-RUN-032"):
        anyrig.Limits(**given)


def test_durations() -> None:
    assert [parse_duration(text) for text in (5, 0.5, "90 s", "30min", "2 hours", "1 d")] == [
        5,
        0.5,
        90,
        1800,
        7200,
        86400,
    ]


def test_a_new_run_begins_with_the_weights_of_another(whole: anyrig.Run, tmp_path: Path) -> None:
    run = make(tmp_path / "run", init_from=whole.directory, phases=(), epochs=1, limits=anyrig.Limits(max_steps=1))
    run._start_warm(verbose=0)
    for ours, theirs in zip(run._built.weights, whole.model.weights, strict=True):
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()
    run.train(verbose=0)
    stored, _ = newest_sound(run.directory / "checkpoints")
    assert stored is not None
    assert (stored.step, stored.progress["updates"]) == (1, 1)


def test_a_warm_start_from_a_keras_file_and_one_that_does_not_fit(whole: anyrig.Run, tmp_path: Path) -> None:
    whole.model.save_weights(tmp_path / "a.weights.h5")
    run = make(tmp_path / "run", init_from=tmp_path / "a.weights.h5")
    run._start_warm(verbose=0)
    assert (
        run._built.get_layer("head").kernel.numpy().tobytes() == whole.model.get_layer("head").kernel.numpy().tobytes()
    )
    other = keras.Sequential([keras.Input((6,)), layers.Dense(2)])
    other.save_weights(tmp_path / "b.weights.h5")
    new = make(tmp_path / "other", init_from=tmp_path / "b.weights.h5")
    before = [variable.numpy().tobytes() for variable in new._built.weights]
    with pytest.raises(AnyrigError, match="ANY-RUN-035"):
        new.train(verbose=0)
    assert [variable.numpy().tobytes() for variable in new._built.weights] == before
