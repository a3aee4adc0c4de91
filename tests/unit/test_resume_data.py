"""Every kind of data is entered again at the step where a run was stopped; what changed is refused, nothing touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import anyrig
from anyrig.errors import AnyrigError
from anyrig.events import read_events
from anyrig.report.reports import RunReport, SaveReport, StepReport
from anyrig.store.commit import newest_sound
from anyrig.store.read import Checkpoint
from anyrig.train.rig import Rig

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(22, 4)).astype("float32")
Y = GENERATOR.normal(size=(22, 1)).astype("float32")
RIG = Rig(1)
pytestmark = pytest.mark.filterwarnings("ignore:the data ran out")


def build() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def generate() -> Iterator[Any]:
    index = 0
    while True:
        rows = np.arange(index * 5, index * 5 + 5) % 22
        yield X[rows], Y[rows]
        index += 1


class Batches(keras.utils.PyDataset):
    """Batches of four rows, in an order that the dataset itself changes after each epoch."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.order, self.epochs = np.arange(22), 0

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        rows = self.order[index * 4 : index * 4 + 4]
        return X[rows], Y[rows]

    def on_epoch_end(self) -> None:
        self.epochs += 1
        self.order = np.random.default_rng(self.epochs).permutation(22)


def endless() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(22, seed=3).repeat().batch(5)


DATA: dict[str, Callable[[], dict[str, Any]]] = {
    "arrays over epochs": lambda: {"x": X, "y": Y, "batch_size": 6, "steps_per_epoch": 3},
    "class weights": lambda: {"x": X, "y": np.round(Y), "batch_size": 8, "class_weight": {0: 2.0}, "shuffle": "batch"},
    "an endless dataset": lambda: {"x": endless(), "steps_per_epoch": 3},
    "a PyDataset": lambda: {"x": Batches()},
    "a PyDataset with workers": lambda: {"x": Batches(workers=2), "steps_per_epoch": 3},
    "a generator": lambda: {"x": generate(), "steps_per_epoch": 3},
}


class At(keras.callbacks.Callback):
    """Calls a function after the given number of training batches."""

    def __init__(self, at: int, act: Callable[[], Any]) -> None:
        super().__init__()
        self.left, self.act = at, act

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            self.act()


def train(folder: Path, case: str = "a generator", **given: Any) -> keras.Model:
    model = RIG.build(build)
    callbacks = [*given.pop("callbacks", []), anyrig.Checkpoint(folder, every=given.pop("every", "1 epoch"))]
    settings = {"epochs": 3, "verbose": 0, "resume": "auto", "validation_data": (X, Y), "callbacks": callbacks}
    rule = anyrig.Batch(virtual_replicas=2)
    RIG.fit(model, **{**settings, "batch": rule, **DATA[case](), **given})
    return model


def newest(folder: Path) -> Checkpoint:
    found, _ = newest_sound(folder / "checkpoints")
    assert found is not None
    return found


@pytest.mark.parametrize("case", DATA)
@pytest.mark.sampled(2)
def test_U04_stopped_at_any_step_and_carried_on(case: str, tmp_path: Path) -> None:
    train(tmp_path / "straight", case)
    expected = newest(tmp_path / "straight")
    for stop in (2, 4):  # within an epoch, and in the one after it
        with pytest.raises(anyrig.Stopped):
            train(tmp_path / str(stop), case, callbacks=[At(stop, RIG.request_stop)])
        assert newest(tmp_path / str(stop)).step == stop
        train(tmp_path / str(stop), case)
        found = newest(tmp_path / str(stop))
        assert found.state_digest == expected.state_digest
        assert found.progress["history"] == expected.progress["history"]
        assert found.progress["stream"] == expected.progress["stream"]


def test_a_generator_needs_to_be_fresh_and_the_header_says_so(tmp_path: Path, capsys: Any) -> None:
    used = generate()
    next(used)
    train(tmp_path, epochs=1, verbose=2, x=used)
    assert "give a fresh one that yields the same batches" in capsys.readouterr().out
    with pytest.raises(AnyrigError, match="already given 3 batches"):
        train(tmp_path, x=used)
    with pytest.raises(AnyrigError, match="data: hash"):
        train(tmp_path)


@pytest.mark.parametrize("where", ["data", "callback"])
def test_an_error_in_data_or_callback_leaves_a_committed_state(where: str, tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError("mine")

    def breaks() -> Iterator[Any]:
        for index, batch in enumerate(generate()):
            if index == 5:
                fail()
            yield batch

    given: dict[str, Any] = {"x": breaks()} if where == "data" else {"callbacks": [At(6, fail)]}
    with pytest.raises(RuntimeError, match="mine"):
        train(tmp_path / "run", every="1 step", **given)
    assert newest(tmp_path / "run").step == 5, "the batches before the error were used"
    train(tmp_path / "run")
    train(tmp_path / "straight")
    assert newest(tmp_path / "run").state_digest == newest(tmp_path / "straight").state_digest


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "lock" not in path.name}


def test_changed_callbacks_and_arguments_are_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    def stopper(**arguments: Any) -> list[Any]:
        return [keras.callbacks.EarlyStopping("val_loss", **{"patience": 5, "min_delta": 0.1, **arguments})]

    train(tmp_path, epochs=1, callbacks=stopper())
    before = contents(tmp_path)
    for given, line in (
        ({"callbacks": stopper(patience=6)}, r"recipe: callbacks.EarlyStopping.0.patience: 5 -> 6"),
        ({"callbacks": stopper(min_delta=0.2)}, r"min_delta: 0.1 -> 0.2"),
        ({"callbacks": [*stopper(), keras.callbacks.ReduceLROnPlateau()]}, r"ReduceLROnPlateau.0.factor: \(not set\)"),
        ({"callbacks": stopper(), "steps_per_epoch": 4}, r"steps_per_epoch: 3 -> 4"),
    ):
        with pytest.raises(AnyrigError, match=line):
            train(tmp_path, **given)
        assert contents(tmp_path) == before
    train(tmp_path, callbacks=stopper(patience=6), allow_changes=["recipe"])
    assert newest(tmp_path).progress["position"]["epoch"] == 3
    assert {event["attempt"] for event in read_events(tmp_path / "events.jsonl")} == {1, 2}


def test_reports_of_the_run_its_steps_and_saves(tmp_path: Path) -> None:
    class Reports(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.reports: list[Any] = []
            self.on_run_begin = self.on_step_report = self.on_save_report = self.reports.append

    seen = Reports()
    train(tmp_path, callbacks=[seen], epochs=2)
    kinds = [type(report) for report in seen.reports]
    assert sorted(kinds, key=str) == sorted([RunReport, *[StepReport] * 6, *[SaveReport] * 2], key=str)
    assert kinds[:4] == [RunReport, *[StepReport] * 3]
    run, step = seen.reports[0], next(r for r in seen.reports if isinstance(r, StepReport) and r.step == 4)
    save = seen.reports[kinds.index(SaveReport)]
    assert (run.steps_per_epoch, run.epochs, run.position.step, run.directory) == (3, 2, 0, tmp_path)
    assert (step.step, step.epoch, step.batch, step.rows) == (4, 1, 1, 5)
    assert step.compute_seconds > 0
    assert (save.step, save.path.name, save.bytes > 0) == (3, "step-000000003", True)


def test_saves_come_between_executions(tmp_path: Path) -> None:
    model = RIG.build(build)
    model.compile("adam", "mse", steps_per_execution=2)
    checkpoint = anyrig.Checkpoint(tmp_path, every="3 steps", keep_last=None)
    RIG.fit(model, X, Y, batch_size=4, epochs=2, callbacks=[checkpoint], verbose=0)
    from anyrig.store.commit import committed_steps

    assert committed_steps(tmp_path / "checkpoints") == [4, 6, 10, 12]


def test_training_and_validation_out_of_one_shuffled_dataset_are_refused(tmp_path: Path) -> None:
    """Each pass over the one moves the order of the other: a resumed run would train on other rows."""
    whole = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(22, seed=3)
    fixed = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(22, seed=3, reshuffle_each_iteration=False)

    def fit(dataset: tf.data.Dataset, name: str) -> None:
        training, validation = dataset.skip(6).batch(4), dataset.take(6).batch(4)
        saver = anyrig.Checkpoint(tmp_path / name)
        RIG.fit(RIG.build(build), training, validation_data=validation, callbacks=[saver], verbose=0)

    with pytest.raises(AnyrigError, match=r"(?s)made from one shuffled dataset.*ANY-DATA-009"):
        fit(whole, "refused")
    fit(fixed, "fixed")
