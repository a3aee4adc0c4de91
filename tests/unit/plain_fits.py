"""Plain `model.fit` with `anyrig.Checkpoint` in processes of their own: killed, or under MirroredStrategy.

Arguments: what to do, and the run directory. Prints one line of JSON.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import anyrig

X = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def build(*, eager: bool = True) -> Any:
    """A model with moving statistics and an optimizer with slots, the same weights each time; it needs no tracing."""
    keras.utils.set_random_seed(7)
    layers = keras.layers
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.BatchNormalization(), layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"], run_eagerly=eager)
    return model


def fit(model: Any, epochs: int, *callbacks: Any, **more: Any) -> Any:
    """Train without shuffling, so that an epoch is the same wherever it is made."""
    return model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, shuffle=False, callbacks=list(callbacks), **more)


class KillAt(keras.callbacks.Callback):
    """Ends the process in the middle of the third epoch, as SIGKILL would, once that of the second is saved."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self.saved = Path(run, "checkpoints", "step-000000006")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch) == (2, 1):
            deadline = time.monotonic() + 60
            while not self.saved.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            print(json.dumps("killed"), flush=True)
            os._exit(9)


def _copies(variable: Any) -> list[Any]:
    return [copy.numpy() for copy in variable.value.values]


def mirrored(run: str) -> dict[str, Any]:
    """Train on two replicas, twice; return what they hold, and what was stored after the first fit."""
    import tensorflow as tf

    from anyrig.store.commit import newest_sound

    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = build()
    fit(model, 1, anyrig.Checkpoint(run))
    means = _copies(model.layers[1].moving_mean)
    stored, _ = newest_sound(os.path.join(run, "checkpoints"))
    assert stored is not None
    with strategy.scope():
        again = build()
    history = fit(again, 2, anyrig.Checkpoint(run))
    return {
        "copies_differ": bool((means[0] != means[1]).any()),
        "is_mean": bool((stored.tensor("model/batch_normalization.0/moving_mean") == np.mean(means, axis=0)).all()),
        "epochs": history.epoch,
        "iterations": int(again.optimizer.iterations.value.numpy()),
    }


if __name__ == "__main__":
    if sys.argv[1] == "kill":
        fit(build(eager=False), 4, KillAt(sys.argv[2]), anyrig.Checkpoint(sys.argv[2]))
    else:
        print(json.dumps(mirrored(sys.argv[2])))
