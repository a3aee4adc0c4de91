"""Runs that keep their best, save by the clock, are told of limits, and are stopped with little time."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anyrig
from anyrig.errors import AnyrigError, UsageError
from anyrig.events import Event, read_events
from anyrig.store.commit import committed_steps
from anyrig.store.known import known_of
from anyrig.store.local import LocalFiles
from anyrig.store.pins import pin
from anyrig.store.read import Checkpoint, open_checkpoint

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(24, 4)).astype("float32")
Y = GENERATOR.normal(size=(24, 1)).astype("float32")
STEPS = 3  # an epoch of 24 rows in batches of 8
LOSSES = (0.5, 0.2, 0.4, float("nan"), 0.3)


class Report(keras.callbacks.Callback):
    """Puts the losses of `LOSSES` into the logs as val_loss, so that it is known which epoch is best."""

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        assert logs is not None
        logs["val_loss"] = LOSSES[epoch]


class At(keras.callbacks.Callback):
    """Calls a function after the given step of this fit."""

    def __init__(self, step: int, act: Any) -> None:
        super().__init__()
        self.left, self.act = step, act

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            self.act()


@pytest.fixture(scope="module")
def rig() -> anyrig.Rig:
    return anyrig.Rig(devices=1)


def fit(rig: anyrig.Rig, folder: Path | None, *callbacks: Any, epochs: int = 5, **settings: Any) -> keras.Model:
    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    model = rig.build(build)
    given: dict[str, Any] = {"verbose": 0}
    given |= {
        name: settings.pop(name) for name in ("validation_data", "validation_freq", "verbose") if name in settings
    }
    saving = [anyrig.Checkpoint(folder, **settings)] if folder else []
    given |= {"resume": "auto"} if folder else {}
    try:
        rig.fit(model, X, Y, batch_size=8, epochs=epochs, callbacks=[*callbacks, *saving], **given)
    except BaseException as error:
        error.model = model  # type: ignore[attr-defined]
        raise
    return model


def opened(folder: Path) -> dict[int, Checkpoint]:
    root = folder / "checkpoints"
    return {step: open_checkpoint(root / f"step-{step:09d}") for step in committed_steps(root)}


def events(folder: Path, kind: str) -> list[Event]:
    return [event for event in read_events(folder / "events.jsonl") if event["kind"] == kind]


def test_B085_the_best_epoch_is_kept_and_when_it_saves_changes_no_number(rig: anyrig.Rig, tmp_path: Path) -> None:
    rules: dict[str, Any] = {"keep_last": 1, "keep_best": 1, "monitor": "val_loss"}
    by = {every: tmp_path / every for every in ("1 epoch", "2 steps", "1 minute", "auto", "100 epochs")}
    for every, folder in by.items():
        fit(rig, folder, Report(), every=every, **rules)
    kept = {every: opened(folder) for every, folder in by.items()}
    best = 2 * STEPS  # the second epoch, although most of these intervals do not end there
    assert {every: sorted(steps) for every, steps in kept.items()} == {every: [best, 5 * STEPS] for every in by}
    assert {known_of(steps[best]).metrics["val_loss"] for steps in kept.values()} == {0.2}
    for step in (best, 5 * STEPS):
        assert len({steps[step].state_digest for steps in kept.values()}) == 1


def test_B069_B070_the_best_survives_a_restart_and_so_does_a_pin(rig: anyrig.Rig, tmp_path: Path) -> None:
    rules: dict[str, Any] = {"keep_last": 1, "monitor": "val_loss"}
    fit(rig, tmp_path, Report(), epochs=2, **rules)
    fit(rig, tmp_path, Report(), At(1, lambda: pin(tmp_path / "checkpoints", 2 * STEPS)), epochs=3, keep_last=1)
    fit(rig, tmp_path, Report(), epochs=5, **rules)
    assert sorted(opened(tmp_path)) == [2 * STEPS, 5 * STEPS]


def test_B086_B087_a_metric_that_is_not_there_is_named_after_the_first_epoch(rig: anyrig.Rig, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no metric 'val_acc' after epoch 1; there are loss") as caught:
        fit(rig, tmp_path, monitor="val_acc")
    assert caught.value.code == "ANY-RUN-041"
    assert sorted(opened(tmp_path)) == [STEPS]  # the epoch is not lost


def test_an_epoch_without_validation_has_no_metric_and_that_is_no_error(rig: anyrig.Rig, tmp_path: Path) -> None:
    fit(rig, tmp_path, epochs=3, validation_data=(X, Y), validation_freq=2, monitor="val_loss", keep_last=1)
    assert sorted(opened(tmp_path)) == [2 * STEPS, 3 * STEPS]


def test_auto_records_what_a_save_costs(rig: anyrig.Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyrig.train.timing.LEAST", 0.0)
    fit(rig, tmp_path, every="auto")
    found = events(tmp_path, "interval")
    assert found
    assert all(event["seconds"] == pytest.approx(event["cost_seconds"] / 0.02, abs=0.06) for event in found)  # type: ignore[operator]


def test_a_full_disk_ends_the_run_before_anything_is_written(
    rig: anyrig.Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(rig, tmp_path, epochs=1)
    monkeypatch.setattr(LocalFiles, "free", lambda files, path: 0)
    before = sorted(os.listdir(tmp_path / "checkpoints"))
    with pytest.raises(AnyrigError, match=r"a save needs .* and 0 B are free"):
        fit(rig, tmp_path, epochs=2)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == before


def test_limits_that_cannot_be_held_are_told(
    rig: anyrig.Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(rig, tmp_path, epochs=2, max_total_size=1, verbose=2)
    assert capsys.readouterr().out.count("max_total_size (1 B) cannot be held") == 1
    assert len(events(tmp_path, "warning")) == 1
    assert sorted(opened(tmp_path)) == [2 * STEPS]


def test_too_little_time_before_the_kill_is_told_long_before_and_at_the_signal(
    rig: anyrig.Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANYRIG_GRACE", "0.00001")
    with pytest.raises(anyrig.Stopped, match=f"SIGTERM: saved .* step {2 * STEPS + 2},"):  # it was tried, and went well
        fit(rig, tmp_path, At(2 * STEPS + 2, lambda: os.kill(os.getpid(), signal.SIGTERM)), verbose=2)
    said = capsys.readouterr().out
    assert "s are given between SIGTERM and the kill (ANYRIG_GRACE=0.00001)" in said
    assert "SIGTERM: saving takes about 0 s, and 0 s are left (ANYRIG_GRACE=0.00001); it is tried" in said
    assert len(events(tmp_path, "deadline")) >= 2
    monkeypatch.setenv("ANYRIG_GRACE", "soon")
    with pytest.raises(UsageError, match="ANYRIG_GRACE"):
        fit(rig, tmp_path)


def test_enough_time_is_not_spoken_of(rig: anyrig.Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYRIG_GRACE", "10m")
    with pytest.raises(anyrig.Stopped):
        fit(rig, tmp_path, At(STEPS + 2, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    assert events(tmp_path, "deadline") == []


def test_what_an_interrupted_fit_has_trained_is_remembered(rig: anyrig.Rig) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        fit(rig, None, At(2, interrupt))
    assert rig._known.earlier(caught.value.model).step == 2  # type: ignore[attr-defined]
