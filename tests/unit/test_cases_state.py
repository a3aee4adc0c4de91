"""Failures that others reported of optimizers, paths and types; each name begins with the ids of the reports."""

from __future__ import annotations

import fcntl
import os
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import anyrig
from anyrig.errors import AnyrigError
from anyrig.store.read import open_checkpoint
from tests.unit.state_models import state_of

layers = keras.layers
X, Y = np.ones((8, 4), "float32"), np.ones((8, 2), "float32")


def build(optimizer: Any = "adam") -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, name="body"), layers.Dense(2, name="head")])
    model.compile(optimizer, "mse")
    return model


def trained(optimizer: Any = "adam") -> keras.Model:
    model = build(optimizer)
    for _ in range(3):
        model.train_on_batch(X, Y)
    return model


def without_metrics(model: keras.Model) -> dict[str, Any]:
    return {name: value for name, value in state_of(model).items() if not name.startswith("metrics/")}


def test_B062_slots_are_restored_before_the_first_step_and_told_in_one_line(tmp_path: Path) -> None:
    model, fresh = trained(), build()
    anyrig.save(tmp_path / "c", model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = anyrig.load(tmp_path / "c", into=fresh)
    assert without_metrics(fresh) == without_metrics(model)
    assert report.started == {}
    assert str(report).splitlines()[0].startswith(f"loaded {len(report.restored)} tensors")


def test_B066_whether_the_count_of_steps_comes_along_is_said_by_the_caller(tmp_path: Path) -> None:
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    anyrig.save(tmp_path / "c", trained(keras.optimizers.Adam(schedule)))
    begun, goes_on = (build(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 10))) for _ in range(2))
    anyrig.load(tmp_path / "c", into=begun, weights_only=True)
    anyrig.load(tmp_path / "c", into=goes_on)
    assert [int(model.optimizer.iterations) for model in (begun, goes_on)] == [0, 3]


def test_B081_an_optimizer_that_was_built_in_another_order_gets_its_slots_by_name(tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4, name="body"), layers.Dense(4, name="head")])
    model.compile("adam", "mse")
    model.train_on_batch(X, np.ones((8, 4), "float32"))
    anyrig.save(tmp_path / "c", model)
    other = keras.models.clone_model(model)
    optimizer = keras.optimizers.Adam()
    optimizer.build(other.trainable_variables[::-1])
    anyrig.load(tmp_path / "c", into=other, optimizer=optimizer, metrics=False)
    mine = {v.path.partition("/")[2]: v.numpy().tobytes() for v in model.optimizer.variables}
    assert mine == {v.path.partition("/")[2]: v.numpy().tobytes() for v in optimizer.variables}


def test_B082_a_model_that_was_compiled_again_is_saved_and_opened(tmp_path: Path) -> None:
    model = trained()
    model.compile(model.optimizer, model.loss, metrics=["mae"])
    model.train_on_batch(X, Y)
    for name in ("a.keras", "a.h5"):
        anyrig.save_model(model, tmp_path / name)
        again = anyrig.open_model(tmp_path / name)
        assert without_metrics(again) == without_metrics(model)


def test_B090_a_path_without_a_suffix_is_what_is_in_it(tmp_path: Path) -> None:
    model = trained()
    anyrig.save(tmp_path / "ours", model)
    anyrig.save_model(model, tmp_path / "served")
    model.save_weights(tmp_path / "a.weights.h5")
    (tmp_path / "a.weights.h5").rename(tmp_path / "weights")
    for name in ("ours", "served", "weights"):
        again = build()
        anyrig.open_model(tmp_path / name, into=again)
        assert [v.numpy().tobytes() for v in again.weights] == [v.numpy().tobytes() for v in model.weights]
    (tmp_path / "empty").mkdir()
    with pytest.raises(AnyrigError, match="empty"):
        anyrig.open_model(tmp_path / "empty")


def test_B102_a_file_of_hdf5_opens_inside_the_scope_of_a_strategy(tmp_path: Path) -> None:
    model = trained()
    anyrig.save_model(model, tmp_path / "a.h5")
    keras.backend.clear_session()
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        again = anyrig.open_model(tmp_path / "a.h5")
    assert [v.numpy().tobytes() for v in again.weights] == [v.numpy().tobytes() for v in model.weights]
    assert int(again.optimizer.iterations.value.numpy()) == 3


def test_B155_a_file_that_somebody_holds_a_lock_on_is_read(tmp_path: Path) -> None:
    model = trained()
    anyrig.save_model(model, tmp_path / "a.h5")
    with (tmp_path / "a.h5").open("rb+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="lock"):
            h5py.File(tmp_path / "a.h5")
        again = anyrig.open_model(tmp_path / "a.h5")
    assert without_metrics(again) == without_metrics(model)


def test_B162_tensors_of_many_files_are_read_in_any_order(tmp_path: Path) -> None:
    model = trained()
    anyrig.save(tmp_path / "c", model, max_shard_size=40)
    checkpoint = open_checkpoint(tmp_path / "c")
    names = [name for name in checkpoint.names if name.startswith("model/")]
    assert len({checkpoint.entry(name).pieces[0].file for name in names}) > 2
    expected = state_of(model)
    for order in (names, names[::-1], names[::2] + names[1::2]):
        found = checkpoint.tensors(order, verify="full")
        assert {name: array.tobytes() for name, array in found.items()} == {name: expected[name][2] for name in order}


def test_B170_int8_with_lora_comes_back_and_does_not_go_into_a_model_of_floats(tmp_path: Path) -> None:
    def quantized(seed: int) -> keras.Model:
        keras.utils.set_random_seed(seed)
        model = keras.Sequential([keras.Input((4,)), layers.Dense(8, name="body")])
        model.layers[0].quantize("int8")
        model.layers[0].enable_lora(2)
        return model

    model, other = quantized(1), quantized(2)
    model.layers[0].lora_kernel_b.assign(np.ones((2, 8)))
    anyrig.save(tmp_path / "c", model, optimizer=False)
    anyrig.load(tmp_path / "c", into=other, optimizer=False)
    assert other.predict(X, verbose=0).tobytes() == model.predict(X, verbose=0).tobytes()
    plain = keras.Sequential([keras.Input((4,)), layers.Dense(8, name="body")])
    with pytest.raises(AnyrigError, match="model/body/kernel") as refused:
        anyrig.load(tmp_path / "c", into=plain, optimizer=False)
    assert refused.value.code == "ANY-STATE-005"
