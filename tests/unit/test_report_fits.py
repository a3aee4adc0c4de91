"""Loggers, the profile and the learning-rate range test, in fits of a small model."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import anyrig
from anyrig.errors import AnyrigError, UsageError
from anyrig.train.signals import StopRequest, stop_on_signals
from anyrig.train.tune import RateTest, has_diverged, rates, smooth

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(24, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
BATCH = anyrig.Batch(global_size=8, virtual_replicas=2)


def build(learning_rate: Any = 0.01, **given: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(learning_rate, **given), "mse")
    return model


@pytest.fixture(scope="module")
def rig() -> anyrig.Rig:
    return anyrig.Rig(devices=1)


def test_a_run_writes_what_its_loggers_say_and_a_profile_of_its_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    given: dict[str, Any] = {"train": (X, Y), "validation": (X, Y), "batch": BATCH, "devices": 1}
    anyrig.Run(folder, build, epochs=2, loggers=["csv"], profile=2, **given).train(verbose=2)
    out = capsys.readouterr().out
    assert "\nepoch 2/2  " in out
    assert out.splitlines()[-2] == f"profile of 2 steps: {folder}/tensorboard/plugins/profile"
    assert len(list((folder / "tensorboard" / "plugins" / "profile").rglob("*.xplane.pb"))) == 1
    stored = anyrig.Run(folder, build, epochs=2, **given)
    stored.train(verbose=0)  # nothing is left to do: the model is the stored one
    kernel, bias = (np.asarray(weight) for weight in stored.model.get_weights())
    first: list[float] = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: first.append(float(logs["loss"])))
    loggers = ["csv", "jsonl", "tensorboard"]
    run = anyrig.Run(folder, build, epochs=3, loggers=loggers, callbacks=[note], **given)
    history = run.train(verbose=0)
    header, *rows = (line.split(",") for line in (folder / "metrics.csv").read_text().splitlines())
    assert [float(row[header.index("val_loss")]) for row in rows] == history["val_loss"]
    load, after, line = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    assert (load["kind"], load["tensors"]) == ("load", 6)  # weights, updates and rate, the loss so far
    spread = load["weights"]["model/dense.0/kernel"]
    assert (spread["elements"], spread["odd"], sum(spread["counts"])) == (kernel.size, 0, kernel.size)
    assert (spread["edges"][0], spread["edges"][-1]) == (kernel.min(), kernel.max())
    assert load["weights"]["model/dense.0/bias"]["mean"] == bias.astype(np.float64).mean()
    assert (after["kind"], after["step"], after["first_loss"]) == ("load", 7, first[0])
    seen = EventAccumulator(str(folder / "tensorboard"), {"histograms": 0}).Reload()
    assert seen.Tags()["histograms"] == ["load/model/dense.0/kernel", "load/model/dense.0/bias"]
    (shown,) = seen.Histograms("load/model/dense.0/kernel")
    assert (shown.step, shown.histogram_value.num, shown.histogram_value.max) == (6, kernel.size, kernel.max())
    assert (line["step"], line["epoch"], line["loss"]) == (9, 3, history["loss"][2])


def test_a_profile_needs_steps_and_a_folder(
    rig: anyrig.Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="found 0"):
        anyrig.Profile(0)
    with pytest.raises(UsageError, match="there is no run directory to write to"):
        rig.fit(rig.build(build), X, Y, batch=BATCH, callbacks=[anyrig.Profile(1)], verbose=0)
    rig.fit(rig.build(build), X, Y, batch=BATCH, callbacks=[anyrig.Profile(1, tmp_path / "logs")], verbose=0)
    assert "no profile: the fit had 3 steps" in capsys.readouterr().out
    assert not (tmp_path / "logs").exists()


def test_each_step_of_the_range_test_has_its_rate_and_its_own_loss(rig: anyrig.Rig) -> None:
    found = anyrig.tune_lr(rig, build, X, Y, batch=BATCH, steps=4, lowest=1e-3, highest=1e-2, shuffle=False)
    model = rig.build(build)
    kernel, bias = (np.asarray(w, np.float64) for w in model.get_weights())
    for rate, loss, start in zip(found.rates, found.losses, (0, 8, 16, 0), strict=True):
        x, y = X[start : start + 8], Y[start : start + 8]
        error = x @ kernel + bias - y
        assert loss == pytest.approx(float(np.mean(error**2)), rel=1e-5)
        kernel, bias = kernel - rate * 2 * x.T @ error / 8, bias - rate * 2 * error.mean(0)
    assert found.smoothed == tuple(smooth(found.losses))


def test_a_schedule_gives_way_and_this_is_said(rig: anyrig.Rig) -> None:
    schedule = keras.optimizers.schedules.CosineDecay(0.5, 10)
    settings: dict[str, Any] = {"batch": BATCH, "steps": 4, "lowest": 1e-3, "highest": 1e-2}
    plain = anyrig.tune_lr(rig, build, X, Y, **settings)
    scheduled = anyrig.tune_lr(rig, lambda: build(schedule), X, Y, **settings)
    assert scheduled.losses == plain.losses
    assert scheduled.notes == ("for the test, the schedule CosineDecay gave way to the rising learning rate",)
    assert plain.notes == ()


def test_the_range_test_ends_when_the_loss_diverges(rig: anyrig.Rig) -> None:
    found = anyrig.tune_lr(rig, build, X, Y, batch=BATCH, steps=60, lowest=1e-4, highest=100.0)
    assert found.diverged
    assert len(found.rates) < 60
    assert found.suggested is not None
    assert 1e-3 < found.suggested < 0.3


def test_a_loss_that_is_not_finite_is_divergence_except_at_the_first_rate(rig: anyrig.Rig) -> None:
    settings: dict[str, Any] = {"batch": BATCH, "steps": 3, "lowest": 1e20, "highest": 1e38}
    found = anyrig.tune_lr(rig, build, X, Y, **settings)
    assert (found.diverged, len(found.losses)) == (True, 1)
    with pytest.raises(AnyrigError, match="not finite"):
        anyrig.tune_lr(rig, build, X * np.nan, Y, **settings)


def test_rates_rise_by_the_same_factor() -> None:
    assert rates(1e-3, 1.0, 4) == pytest.approx([1e-3, 1e-2, 1e-1, 1.0])
    with pytest.raises(UsageError, match="0 < lowest < highest"):
        rates(1.0, 1.0, 4)


def test_the_smoothed_loss_is_not_drawn_to_zero_at_its_beginning() -> None:
    assert smooth([2.0, 2.0, 2.0]) == pytest.approx([2.0, 2.0, 2.0])
    assert smooth([1.0, 3.0]) == pytest.approx([1.0, (0.09 + 0.3) / 0.19])


@pytest.mark.parametrize(
    ("smoothed", "diverged"),
    [([1.0, 4.0], False), ([1.0, 4.1], True), ([-1.0, 1.9], False), ([-1.0, 2.1], True), ([1.0, math.nan], True)],
)
def test_four_times_the_lowest_loss_is_divergence(smoothed: list[float], diverged: bool) -> None:
    assert has_diverged(smoothed) is diverged


def test_what_is_read_from_a_curve() -> None:
    tried = rates(1e-6, 10.0, 8)
    curve = (4.0, 4.0, 4.0, 4.0, 4.0, 3.0, 0.5, 8.0)
    found = RateTest(tuple(tried), curve, curve, True)
    assert (found.lowest, found.steepest) == (tried[6], tried[5])
    assert found.suggested == float(f"{tried[6] / 10:.1e}")
    assert "then the loss diverged" in str(found)
    flat = RateTest(tuple(tried), (4.0,) * 8, (4.0,) * 8, False)
    assert (flat.lowest, flat.steepest, flat.suggested) == (None, None, None)
    assert "the loss never fell" in str(flat)


def test_a_second_interrupt_in_a_notebook_leaves_the_kernel_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyrig.train.signals.in_notebook", lambda: True)
    stop, before = StopRequest(), signal.getsignal(signal.SIGINT)

    def interrupt() -> None:
        with stop_on_signals(stop):
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.reason == "SIGINT"
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert signal.getsignal(signal.SIGINT) == before


def test_a_notebook_shows_the_message_of_a_stop_alone() -> None:
    stopped = anyrig.Stopped("ANY-X-000", "saved", hint="go on")
    assert stopped._render_traceback_() == ["saved\n  next: go on  [ANY-X-000]"]
