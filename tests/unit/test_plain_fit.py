"""`anyrig.Checkpoint` as an ordinary Keras callback: run directories and named saves in plain `model.fit`."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import anyrig
from anyrig.errors import AnyrigError, UsageError
from anyrig.state.capture import capture
from anyrig.state.restore import restore
from anyrig.store.commit import committed_steps, newest_sound
from anyrig.store.digest import model_digest_of
from anyrig.store.known import stored_rule
from anyrig.store.lock import RunLock
from anyrig.store.read import Checkpoint, open_checkpoint
from anyrig.store.remote.listing import Shelf
from anyrig.store.remote.objects import Objects
from anyrig.store.retain import Keep
from anyrig.testing.processes import run_python
from anyrig.train.fork import fork
from anyrig.train.plain_fit import refuse_workers
from tests.unit.plain_fits import X, Y, build, fit

PROGRAM = Path(__file__).with_name("plain_fits.py").read_text()


def _digest(model: Any) -> str:
    return model_digest_of(capture(model).tensors)


def _newest(run: Path) -> Checkpoint:
    found, rejected = newest_sound(run / "checkpoints")
    assert found is not None
    assert rejected == []
    return found


class Raise(keras.callbacks.Callback):
    """Ends a fit as Ctrl-C does."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == self.epoch:
            raise KeyboardInterrupt


def test_a_killed_fit_goes_on_after_its_last_epoch_to_the_same_weights(tmp_path: Path) -> None:
    run_python(PROGRAM, "kill", tmp_path / "run", expect=9)
    assert _newest(tmp_path / "run").step == 6
    model, whole = build(eager=False), build(eager=False)
    history = fit(model, 4, anyrig.Checkpoint(tmp_path / "run"))
    expected = fit(whole, 4)
    assert history.epoch == [2, 3]
    assert _digest(model) == _digest(whole)
    assert int(model.optimizer.iterations) == 12
    newest = _newest(tmp_path / "run")
    assert newest.progress["history"]["loss"] == expected.history["loss"]
    assert (newest.step, newest.model_digest) == (12, _digest(whole))


def test_mirrored_batch_normalization_is_saved_as_the_mean_of_the_replicas(tmp_path: Path) -> None:
    found = run_python(PROGRAM, "mirrored", tmp_path / "run", devices=2).json()
    assert found == {"copies_differ": True, "is_mean": True, "epochs": [1], "iterations": 6}
    alone = build()
    assert fit(alone, 3, anyrig.Checkpoint(tmp_path / "run")).epoch == [2]


def test_epochs_are_those_of_the_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = build()
    saver = anyrig.Checkpoint(tmp_path / "run")
    assert isinstance(saver, keras.callbacks.Callback)
    assert fit(model, 1, saver).epoch == [0]
    assert fit(model, 2, saver).epoch == [1]
    model.fit(X, Y, epochs=2, verbose=2, callbacks=[saver])
    assert "nothing is left to train: all is done after epoch 2 of 2" in capsys.readouterr().out
    assert fit(model, 1).epoch == [0]  # a fit without it is not told where to begin


def test_a_run_at_a_url_is_called_by_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANYRIG_SPOOL", str(tmp_path))
    fit(build(), 1, anyrig.Checkpoint("memory://me@bucket/plain"))
    build().fit(X, Y, epochs=2, verbose=2, batch_size=8, callbacks=[anyrig.Checkpoint("memory://me@bucket/plain")])
    assert "resuming memory://***@bucket/plain at step 3, after epoch 1 of 2" in capsys.readouterr().out


def test_a_fit_that_a_callback_ended_has_ended(tmp_path: Path) -> None:
    stops = keras.callbacks.EarlyStopping("loss", mode="max", patience=1, restore_best_weights=True)
    model = build()
    assert fit(model, 9, stops, anyrig.Checkpoint(tmp_path / "run")).epoch == [0, 1]
    newest = _newest(tmp_path / "run")
    assert (newest.progress["stop_training"], newest.progress["changed_at_end"]) == (True, True)
    assert newest.model_digest == _digest(model)
    again = build()
    assert fit(again, 9, anyrig.Checkpoint(tmp_path / "run")).epoch == []
    assert _digest(again) == _digest(model)


def test_an_interrupted_fit_can_be_made_again_in_the_same_process(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit(build(), 3, anyrig.Checkpoint(tmp_path / "run"), Raise(2))
    model, whole = build(), build()
    assert fit(model, 3, anyrig.Checkpoint(tmp_path / "run")).epoch == [2]
    fit(whole, 3)
    assert _digest(model) == _digest(whole)
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_fit_that_is_still_training_is_not_taken_over(tmp_path: Path) -> None:
    run, refused, done = tmp_path / "run", [], keras.callbacks.LambdaCallback

    def again() -> None:
        with pytest.raises(AnyrigError) as raised:
            fit(build(), 2, anyrig.Checkpoint(run))
        refused.append(raised.value.code)

    def meanwhile(epoch: int, logs: Any) -> None:
        again()
        other = threading.Thread(target=again)
        other.start()
        other.join()

    assert fit(build(), 1, done(on_epoch_begin=meanwhile), anyrig.Checkpoint(run)).epoch == [0]
    assert refused == ["ANY-LOCK-001"] * 2


@pytest.mark.parametrize("same_thread", [True, False])
def test_an_interrupted_fit_is_taken_over_in_whichever_thread(tmp_path: Path, same_thread: bool) -> None:
    run, epochs = tmp_path / "run", []
    with pytest.raises(KeyboardInterrupt):
        fit(build(), 3, anyrig.Checkpoint(run), Raise(2))
    second = threading.Thread(target=lambda: epochs.extend(fit(build(), 3, anyrig.Checkpoint(run)).epoch))
    second.run() if same_thread else second.start()
    if not same_thread:
        second.join()
    assert epochs == [2]


@pytest.mark.parametrize("limit", [None, 2])  # with 2 the data ends in the second epoch
def test_steps_are_counted_as_they_were_made_when_several_are_executed_at_once(
    tmp_path: Path, limit: int | None
) -> None:
    model = build()
    model.compile("adam", "mse", steps_per_execution=2)  # an epoch has three batches
    fit(model, 2, anyrig.Checkpoint(tmp_path / "run"), steps_per_epoch=limit)
    assert _newest(tmp_path / "run").step == int(model.optimizer.iterations) == (3 if limit else 6)


def test_a_fit_that_ends_before_its_first_epoch_leaves_the_next_one_alone(tmp_path: Path) -> None:
    def refuse(logs: Any) -> None:
        raise RuntimeError("before the first epoch")

    fit(build(), 2, anyrig.Checkpoint(tmp_path / "run"))
    model = build()
    with pytest.raises(RuntimeError, match="before the first"):
        fit(model, 4, anyrig.Checkpoint(tmp_path / "run"), keras.callbacks.LambdaCallback(on_train_begin=refuse))
    assert fit(model, 3).epoch == [0, 1, 2]
    assert fit(model, 3, anyrig.Checkpoint(tmp_path / "run")).epoch == [2]


@pytest.mark.parametrize("name", ["run", "w-{epoch}"])
def test_a_relative_directory_stays_where_it_was_when_the_fit_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    moves = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: os.chdir(tmp_path / "there"))
    fit(build(), 2, moves, anyrig.Checkpoint(name))
    assert os.listdir(tmp_path / "there") == []
    assert sorted(os.listdir()) == []
    assert sorted(os.listdir(tmp_path / "here")) == (["run"] if name == "run" else ["w-1", "w-2"])


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    fit(build(), 1, anyrig.Checkpoint(tmp_path / "run"))
    with RunLock(tmp_path / "run"), pytest.raises(AnyrigError, match=rf"is in use: process {os.getpid()} on"):
        fit(build(), 2, anyrig.Checkpoint(tmp_path / "run"))


def test_retention_is_that_of_the_settings(tmp_path: Path) -> None:
    saver = anyrig.Checkpoint(tmp_path / "run", keep_last=1, monitor="loss", mode="max", every="2 epochs")
    fit(build(), 7, saver)
    losses = _newest(tmp_path / "run").progress["history"]["loss"]
    assert losses[0] == max(losses)  # not due, but the best
    assert committed_steps(tmp_path / "run" / "checkpoints") == [3, 21]


def test_a_state_that_is_not_finite_is_never_committed(tmp_path: Path) -> None:
    model = build()
    fit(model, 1, anyrig.Checkpoint(tmp_path / "run"))
    model.optimizer.learning_rate.assign(np.inf)
    _newest(tmp_path / "run")
    other = build()
    other.compile(keras.optimizers.SGD(np.inf), "mse", run_eagerly=True)
    with pytest.raises(AnyrigError, match="is not finite at step 3") as caught:
        fit(other, 1, anyrig.Checkpoint(tmp_path / "other"))
    assert caught.value.code == "ANY-RUN-008"
    assert committed_steps(tmp_path / "other" / "checkpoints") == []


def test_another_model_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    fit(build(), 1, anyrig.Checkpoint(tmp_path / "run"))
    other = build()
    other.compile("sgd", "mse", run_eagerly=True)
    before = _digest(other)
    with pytest.raises(AnyrigError, match="does not fit the model; nothing was changed"):
        fit(other, 2, anyrig.Checkpoint(tmp_path / "run"))
    assert _digest(other) == before
    assert fit(build(), 2, anyrig.Checkpoint(tmp_path / "run")).epoch == [1]


def test_runs_of_the_two_loops_do_not_mix(tmp_path: Path) -> None:
    fit(build(), 1, anyrig.Checkpoint(tmp_path / "plain"))
    rig = anyrig.Rig(devices=1)
    model = rig.build(build, eager=False)
    given: dict[str, Any] = {"batch_size": 8, "epochs": 2, "verbose": 0}
    with pytest.raises(UsageError, match=r"was trained by model\.fit, and cannot be carried on by Rig.fit") as caught:
        rig.fit(model, X, Y, **given, callbacks=[anyrig.Checkpoint(tmp_path / "plain")], resume="auto")
    assert caught.value.code == "ANY-RUN-052"
    rig.fit(model, X, Y, **given, callbacks=[anyrig.Checkpoint(tmp_path / "rig")])
    with pytest.raises(UsageError, match=r"was trained by Rig\.fit, and cannot be carried on by model.fit"):
        fit(build(), 3, anyrig.Checkpoint(tmp_path / "rig"))
    with pytest.raises(UsageError, match="is no checkpoint of a run"):
        fork(tmp_path / "plain", tmp_path / "new", virtual_replicas=2)


def test_the_rules_are_stored_with_the_run(tmp_path: Path) -> None:
    fit(build(), 1, anyrig.Checkpoint(tmp_path / "run", keep_last=2, monitor="loss"))
    assert stored_rule(_newest(tmp_path / "run")) == Keep(last=2, best=1, monitor="loss")


@pytest.mark.parametrize(
    ("monitor", "more"), [("los_loss", {}), ("val_loss", {}), ("val_a_loss", {"validation_data": (X, Y)})]
)
def test_a_monitor_that_no_metric_has_is_an_error_after_the_first_epoch(
    tmp_path: Path, monitor: str, more: dict[str, Any]
) -> None:
    model = build()
    with pytest.raises(UsageError, match=f"no metric '{monitor}' after epoch 1; there are loss, mae") as caught:
        fit(model, 3, anyrig.Checkpoint(tmp_path / "run", monitor=monitor), **more)
    assert caught.value.code == "ANY-RUN-041"
    assert int(model.optimizer.iterations) == 3
    assert not (tmp_path / "run" / ".lock").exists()
    assert fit(build(), 2, anyrig.Checkpoint(tmp_path / "run")).epoch == [1]


def test_a_monitor_waits_for_the_first_epoch_that_is_validated(tmp_path: Path) -> None:
    validation: dict[str, Any] = {"validation_data": (X, Y), "validation_freq": 2}
    assert fit(build(), 3, anyrig.Checkpoint(tmp_path / "run", monitor="val_loss"), **validation).epoch == [0, 1, 2]


def test_a_fit_of_a_finished_run_returns_the_history_of_the_run(tmp_path: Path) -> None:
    trained = fit(build(), 2, anyrig.Checkpoint(tmp_path / "run"), validation_data=(X, Y)).history
    again = fit(build(), 2, anyrig.Checkpoint(tmp_path / "run"), validation_data=(X, Y))
    assert (again.history, again.epoch) == (trained, [])


def test_an_optimizer_set_otherwise_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def train(epochs: int, rate: float, momentum: float, *callbacks: Any) -> str:
        model = build()
        model.compile(keras.optimizers.SGD(rate, momentum=momentum), "mse", run_eagerly=True)
        fit(model, epochs, *callbacks, anyrig.Checkpoint(tmp_path / "run"))
        return capsys.readouterr().out

    slower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.005)
    assert train(1, 0.01, 0.9) == ""
    unused = "learning_rate 0.1 is not used, the run goes on with the stored 0.01 (a LearningRateScheduler changes it)"
    assert train(2, 0.1, 0.8) == f"optimizer: {unused}; momentum was 0.9 and is 0.8 from here on\n"
    assert train(3, 0.1, 0.8) == f"optimizer: {unused}\n"
    assert train(4, 0.01, 0.8, slower) == ""
    assert train(5, 0.01, 0.8, slower) == ""  # the rate that is stored is another, as the program itself has set it


def test_verbose_tells_each_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = anyrig.Checkpoint(str(tmp_path / "w-{step}"), save_weights_only=True, verbose=1)
    fit(build(), 1, named, anyrig.Checkpoint(tmp_path / "run", verbose=1))
    saved = [f"saving {tmp_path / 'w-3'} at step 3", f"saved {tmp_path / 'run' / 'checkpoints' / 'step-000000003'}"]
    assert capsys.readouterr().out.splitlines() == saved


def test_an_unsaved_last_epoch_that_the_end_changed_claims_no_metric(tmp_path: Path) -> None:
    def stops() -> Any:
        return keras.callbacks.EarlyStopping("loss", mode="max", patience=1, restore_best_weights=True)

    for name, callbacks in (("before", [stops()]), ("after", [])):
        saver = anyrig.Checkpoint(tmp_path / name, every="9 epochs")
        fit(build(), 9, *callbacks, saver, *([] if callbacks else [stops()]))
    assert _newest(tmp_path / "before").progress["changed_at_end"]
    fit(build(), 2, anyrig.Checkpoint(tmp_path / "whole", every="9 epochs"))
    newest = _newest(tmp_path / "whole")
    assert (newest.progress["changed_at_end"], newest.progress["boundary"]) == (False, "end")


def test_at_a_url_fit_ends_when_all_is_uploaded_or_says_what_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANYRIG_SPOOL", str(tmp_path / "spool"))
    url = f"memory://{tmp_path.name}/cats"
    put_file, refusals = MemoryFileSystem.put_file, 1

    def refusing(*given: Any, **more: Any) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise PermissionError("no")
        put_file(*given, **more)

    monkeypatch.setattr(MemoryFileSystem, "put_file", refusing)
    fit(build(), 1, anyrig.Checkpoint(url))
    assert [step.step for step in Shelf(Objects(url)).list().steps] == [3]
    assert capsys.readouterr().out == ""
    refusals = 1000
    fit(build(), 2, anyrig.Checkpoint(url))
    assert f"not uploaded to {url} yet: 1 checkpoints (step 6)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "code", "found"),
    [
        (
            {"every": "5 steps"},
            "ANY-RUN-053",
            "every 5 steps, and plain model.fit can only be carried on after an epoch",
        ),
        ({"directory": None}, "ANY-RUN-012", "the Checkpoint has no directory"),
        ({"verbose": 2}, "ANY-RUN-001", "verbose: expected 0 or 1, found 2"),
    ],
)
def test_what_plain_fit_cannot_do_is_refused_before_training(
    tmp_path: Path, given: dict[str, Any], code: str, found: str
) -> None:
    with pytest.raises(UsageError, match=found) as caught:
        fit(build(), 1, anyrig.Checkpoint(**{"directory": tmp_path / "run", **given}))
    assert caught.value.code == code
    assert not (tmp_path / "run").exists()


def test_several_processes_are_refused() -> None:
    strategy = SimpleNamespace(extended=SimpleNamespace(_in_multi_worker_mode=lambda: True))
    with pytest.raises(UsageError, match="trains in several processes") as caught:
        refuse_workers(SimpleNamespace(distribute_strategy=strategy))
    assert caught.value.code == "ANY-RUN-054"


def test_names_with_fields_hold_whole_states_or_weights(tmp_path: Path) -> None:
    model = build()
    whole = anyrig.Checkpoint(str(tmp_path / "m-{epoch:02d}-{val_loss:.2f}"))
    weights = anyrig.Checkpoint(filepath=tmp_path / "w-{epoch}-{batch}-{step}", save_weights_only=True, save_freq=2)
    history = fit(model, 2, whole, weights, validation_data=(X, Y)).history
    expected = [f"m-{epoch + 1:02d}-{history['val_loss'][epoch]:.2f}" for epoch in (0, 1)]
    assert sorted(os.listdir(tmp_path)) == [*expected, "w-1-2-2", "w-2-1-4", "w-2-3-6"]
    last = open_checkpoint(tmp_path / expected[1] / "step-000000006")
    assert last.progress["metrics"]["val_loss"] == history["val_loss"][1]
    again = build()
    restore(last, again, metrics=False)
    assert (_digest(again), int(again.optimizer.iterations)) == (_digest(model), 6)
    stored = open_checkpoint(tmp_path / "w-2-3-6" / "step-000000006")
    assert {name.partition("/")[0] for name in stored.names} == {"model"}
    assert stored.model_digest == last.model_digest


def test_save_freq_counts_the_steps_of_the_run(tmp_path: Path) -> None:
    def train(epochs: int) -> None:
        every = anyrig.Checkpoint(str(tmp_path / "w-{step}"), save_weights_only=True, save_freq=4)
        fit(build(), epochs, every, anyrig.Checkpoint(tmp_path / "run"))

    train(1)
    train(3)
    assert sorted(path.name for path in tmp_path.glob("w-*")) == ["w-4", "w-8"]


def test_B091_the_best_is_compared_in_full_precision_and_over_restarts(tmp_path: Path) -> None:
    logs = iter([3e-5, 2.00002e-5, 2.00003e-5, 2.00002e-5, 2.00001e-5])

    class Tiny(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs_: dict[str, float]) -> None:
            logs_["loss"] = next(logs)

    def best() -> Any:
        return anyrig.Checkpoint(tmp_path / "best", save_best_only=True, monitor="loss")

    model = build()
    fit(model, 2, Tiny(), best())
    assert committed_steps(tmp_path / "best") == [6]
    fit(model, 2, Tiny(), best())
    assert committed_steps(tmp_path / "best") == [6]
    fit(model, 1, Tiny(), best())
    assert committed_steps(tmp_path / "best") == [15]
    assert open_checkpoint(tmp_path / "best" / "step-000000015").progress["metrics"]["loss"] == 2.00001e-5


def test_B086_a_validation_metric_that_is_not_there_never_costs_an_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = anyrig.Checkpoint(tmp_path / "best", save_best_only=True)
    fit(build(), 2, anyrig.Checkpoint(str(tmp_path / "m-{epoch}-{val_mae:.2f}")), best)
    assert sorted(os.listdir(tmp_path)) == ["m-1-none", "m-2-none"]
    assert capsys.readouterr().out.count("no val_loss after epoch 1; nothing is saved") == 1


@pytest.mark.parametrize("given", [{"directory": "w-{val_acc:.2f}"}, {"save_best_only": True, "monitor": "val_acc"}])
def test_B086_B087_an_unknown_metric_is_an_error_after_the_first_batch(tmp_path: Path, given: dict[str, Any]) -> None:
    given["directory"] = os.path.join(tmp_path, given.get("directory", "best"))
    model = build()
    known = re.escape("there is no metric val_acc; training has loss, mae, and validation the same with val_")
    with pytest.raises(UsageError, match=known):
        fit(model, 1, anyrig.Checkpoint(**given), validation_data=(X, Y))
    assert int(model.optimizer.iterations) == 1


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"save_best_only": True, "save_freq": 5}, "within an epoch there is no val_loss"),  # B085
        ({"directory": "s3://bucket/m-{epoch}"}, "is a URL"),
        ({"directory": "m-{}"}, "has the field ''"),
        ({"directory": "m-{logs[loss]}"}, "has the field 'logs"),
        ({"directory": "m-{epoch"}, "expected '}'"),
        ({"directory": "m-{loss:d}"}, "Unknown format code 'd'"),
        ({"directory": "m-{epoch}", "keep_last": 1}, "are for a run directory"),
        ({"directory": "m-{epoch}", "every": "5 minutes"}, "is for a run directory"),
        ({"save_best_only": True, "monitor": "val_own"}, "give mode 'min' or 'max'"),
        ({"directory": None, "save_weights_only": True}, "there is no name to save under"),
        ({"directory": "best.keras", "save_best_only": True}, "is the name of a file"),
        ({"directory": "w.weights.h5"}, "is the name of a file"),
        ({"filepath": "y"}, "directory and filepath are both set"),
        ({"every": "1 epoch", "save_freq": 3}, "every and save_freq are both set"),
    ],
)
def test_B085_settings_that_cannot_work_are_refused_at_once(given: dict[str, Any], found: str) -> None:
    with pytest.raises(UsageError, match=re.escape(found)):
        anyrig.Checkpoint(**{"directory": "x", **given})


def test_a_named_save_leaves_other_checkpoints_alone(tmp_path: Path) -> None:
    fit(build(), 1, anyrig.Checkpoint(tmp_path / "run"))
    for name in ("run", "run/checkpoints"):
        with pytest.raises(UsageError, match="holds a run"):
            fit(build(), 1, anyrig.Checkpoint(tmp_path / name, save_weights_only=True))
    assert committed_steps(tmp_path / "run" / "checkpoints") == [3]


def test_a_failed_save_ends_the_fit(tmp_path: Path) -> None:
    (tmp_path / "m-1").write_text("in the way")
    with pytest.raises(OSError, match="m-1"):
        fit(build(), 3, anyrig.Checkpoint(str(tmp_path / "m-{epoch}")))
    assert not (tmp_path / "m-3").exists()


def test_named_saves_work_in_rig_fit_and_the_best_value_is_carried_on(tmp_path: Path) -> None:
    def train(epochs: int, resume: str) -> None:
        rig = anyrig.Rig(devices=1)
        named = anyrig.Checkpoint(str(tmp_path / "b-{epoch}"), save_best_only=True, monitor="loss")
        callbacks = [Rises(), named, anyrig.Checkpoint(tmp_path / "run")]
        given: dict[str, Any] = {"batch_size": 8, "epochs": epochs, "verbose": 0, "resume": resume}
        rig.fit(rig.build(build, eager=False), X, Y, **given, callbacks=callbacks)

    class Rises(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            logs["loss"] = epoch

    train(1, "never")
    train(2, "auto")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b-1", "run"]
