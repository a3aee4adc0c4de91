"""Virtual replicas give what Keras gives for the whole batch: logs of every output, masks refused, calls that go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anyrig
from anyrig.errors import AnyrigError
from anyrig.train.rig import Rig

layers = keras.layers
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(23, 5)).astype("float32")
Y = GENERATOR.integers(0, 3, (23, 1)).astype("float32")


def rule(v: int, size: int = 8) -> anyrig.Batch:
    return anyrig.Batch(global_size=size, virtual_replicas=v)


def single(loss: Any = "mse", optimizer: Any = "sgd", metrics: Any = None) -> Callable[[], keras.Model]:
    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((5,)), layers.Dense(4, activation="tanh"), layers.Dense(3)])
        model.compile(optimizer, loss, metrics=metrics)
        return model

    return build


def two_outputs() -> keras.Model:
    inputs = keras.Input((5,))
    outputs = {"p": layers.Dense(1, name="p")(inputs), "q": layers.Dense(1, name="q")(inputs)}
    model = keras.Model(inputs, outputs)
    losses = {"p": keras.losses.MeanSquaredError(reduction="sum"), "q": "mae"}
    model.compile("sgd", losses, loss_weights={"p": 0.01, "q": 1.0}, metrics={"q": ["mse"]})
    return model


@pytest.mark.parametrize("v", [1, 3, 4])
def test_logs_of_several_outputs_are_those_of_the_whole_batch(v: int) -> None:
    rig = Rig(1)
    ours, theirs = rig.build(two_outputs), rig.build(two_outputs)
    y = {"p": Y, "q": -Y}
    found = rig.fit(ours, X, y, batch=rule(v), epochs=2, shuffle=False, verbose=0).history
    expected = theirs.fit(X, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)


def test_weights_that_are_all_zero_give_a_loss_of_zero() -> None:
    loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    rig = Rig(1)
    history = rig.fit(rig.build(single(loss)), X, Y, batch=rule(4), sample_weight=np.zeros(23), verbose=0).history
    assert history["loss"] == [0.0]


def test_a_second_fit_has_other_orders_and_masks_than_the_first() -> None:
    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((5,)), layers.Dropout(0.5), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
        return model

    rig = Rig(1)
    model, at_once = rig.build(build), rig.build(build)
    losses = [rig.fit(model, X, Y, batch=rule(2), verbose=0).history["loss"][0] for _ in range(3)]
    assert losses == rig.fit(at_once, X, Y, batch=rule(2), epochs=3, verbose=0).history["loss"]
    assert len(set(losses)) == 3


def test_a_dataset_may_be_used_again_and_again() -> None:
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(23).batch(8)
    rig = Rig(1)
    model = rig.build(single())
    for _ in range(2):
        rig.fit(model, dataset, epochs=2, validation_data=dataset, verbose=0)
    assert int(model.optimizer.iterations) == 12


def test_no_gradient_for_any_weight_is_an_error_as_in_keras() -> None:
    rig = Rig(1)
    model = rig.build(single(lambda _, y_pred: keras.ops.stop_gradient(y_pred)))
    with pytest.raises(ValueError, match="No gradients provided"):
        rig.fit(model, X, Y, batch=rule(1), verbose=0)


def test_B071_backup_and_restore_goes_on_where_it_was(tmp_path: Path) -> None:
    seen: list[int] = []

    def train(act: Callable[[], None]) -> None:
        def begin(epoch: int, _logs: Any) -> None:
            seen.append(epoch)
            act()

        watch = keras.callbacks.LambdaCallback(on_epoch_begin=begin)
        callbacks = [keras.callbacks.BackupAndRestore(tmp_path / "backup"), watch]
        rig = Rig(1)
        rig.fit(rig.build(single()), X, Y, batch=rule(1), epochs=3, callbacks=callbacks, verbose=0)

    def fail() -> None:
        if len(seen) == 2:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        train(fail)
    train(lambda: None)
    assert seen == [0, 1, 1, 2]


def test_compiling_anew_in_a_callback_is_refused() -> None:
    rig = Rig(1)
    model = rig.build(single())
    again = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: model.compile("sgd", "mse"))
    with pytest.raises(AnyrigError, match="compiled anew"):
        rig.fit(model, X, Y, batch=rule(1), epochs=2, callbacks=[again], verbose=0)
    other_loss = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: model.compile(model.optimizer, "mae"))
    with pytest.raises(AnyrigError, match="compiled anew"):
        rig.fit(model, X, Y, batch=rule(1), epochs=2, callbacks=[other_loss], verbose=0)


def test_freezing_a_layer_in_a_callback_is_refused() -> None:
    rig = Rig(1)
    model = rig.build(single())
    freeze = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: setattr(model.layers[-1], "trainable", False))
    with pytest.raises(AnyrigError, match="frozen"):
        rig.fit(model, X, Y, batch=rule(1), epochs=2, callbacks=[freeze], verbose=0)


@pytest.mark.parametrize(
    ("loss", "y"),
    [("categorical_crossentropy", Y.astype("int64")), ("mse", None), ("mse", np.zeros((23, 2, 2), "float32"))],
)
def test_model_and_data_that_do_not_fit_are_told_with_their_shapes(loss: str, y: Any) -> None:
    rig = Rig(1)
    with pytest.raises(AnyrigError, match=r"x: float32 \(rows, 5\)") as refused:
        rig.fit(rig.build(single(loss)), X, y, batch=rule(1), verbose=0)
    assert refused.value.code == "ANY-TRAIN-012"
    assert ("sparse_categorical_crossentropy" in refused.value.hint) == (y is not None and y.dtype == np.int64)


@pytest.mark.parametrize("stop_at", [2, 3])
def test_stopping_in_mid_epoch_ends_that_epoch_also_after_a_signal(tmp_path: Path, stop_at: int) -> None:
    """`stop_training` at step 2 of 3, and a stop request at that step or in the validation after it."""

    class Ends(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = batch == 1

    class Requests(keras.callbacks.Callback):
        calls = 0

        def _count(self) -> None:
            Requests.calls += 1
            if Requests.calls == stop_at:
                rig.request_stop()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self._count()

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            self._count()

    def train(*callbacks: Any) -> None:
        given = [Ends(), *callbacks, anyrig.Checkpoint(tmp_path)]
        model = rig.build(single())
        rig.fit(model, X, Y, batch=rule(1), epochs=4, validation_data=(X, Y), callbacks=given, resume="auto", verbose=0)

    rig = Rig(1)
    with pytest.raises(anyrig.Stopped):
        train(Requests())
    train()
    from anyrig.store.commit import newest_sound

    checkpoint, _ = newest_sound(tmp_path / "checkpoints")
    assert checkpoint is not None
    assert checkpoint.progress["position"] == {"step": 2, "epoch": 1, "batch": 0, "rows": 16}
