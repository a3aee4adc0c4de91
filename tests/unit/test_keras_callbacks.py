"""Every callback that Keras ships goes through fit unchanged, and decides the same after a resume."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anyrig
from anyrig.store.commit import newest_sound
from anyrig.train.rig import Rig
from anyrig.train.run import Run

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(22, 4)).astype("float32")
Y = GENERATOR.normal(size=(22, 1)).astype("float32")
RIG = Rig(1)


def build() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.05, use_ema=True, ema_overwrite_frequency=None)
    model.compile(optimizer, "mse", jit_compile=False)
    return model


@pytest.fixture
def posted() -> Iterator[list[Any]]:
    """What a server on this machine was sent; its port stands first."""
    received: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    received.append(server.server_port)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield received
    server.shutdown()
    thread.join()
    server.server_close()


def callbacks(folder: Path, port: int, *extra: Any) -> list[Any]:
    folder.mkdir(exist_ok=True)
    kinds = keras.callbacks
    return [
        kinds.EarlyStopping("loss", patience=2, min_delta=10, restore_best_weights=True),
        anyrig.Checkpoint(folder / "run"),
        kinds.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10),
        kinds.ModelCheckpoint(folder / "{epoch}.keras", "loss", save_best_only=True),
        kinds.ModelCheckpoint(folder / "every.weights.h5", save_weights_only=True, save_freq=2),
        kinds.TensorBoard(folder / "tensorboard", update_freq=1),
        kinds.CSVLogger(folder / "log.csv", append=True),
        kinds.LearningRateScheduler(halve_once),
        kinds.RemoteMonitor(f"http://127.0.0.1:{port}", send_as_json=True),
        kinds.SwapEMAWeights(),
        kinds.TerminateOnNaN(),
        kinds.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(mine=float(epoch))),
        *extra,
    ]


def halve_once(epoch: int, rate: float) -> float:
    return rate * (0.5 if epoch == 1 else 1.0)


def fit(given: list[Any]) -> keras.Model:
    model = RIG.build(build)
    settings: dict[str, Any] = {"validation_data": (X, Y), "resume": "auto", "verbose": 0}
    RIG.fit(model, X, Y, batch_size=8, epochs=6, callbacks=given, **settings)
    return model


@pytest.mark.parametrize("stop", [2, 4, 6])
def test_B069_all_of_them_decide_the_same_after_a_resume(stop: int, tmp_path: Path, posted: list[Any]) -> None:
    calls: list[int] = []

    def count(batch: int, logs: Any) -> None:
        calls.append(batch)
        if len(calls) == stop:
            RIG.request_stop()

    port = posted.pop(0)
    straight = fit(callbacks(tmp_path / "straight", port))
    sent = list(posted)
    posted.clear()
    given = callbacks(tmp_path / "stopped", port, keras.callbacks.LambdaCallback(on_train_batch_end=count))
    with pytest.raises(anyrig.Stopped):
        fit(given)
    next(c for c in given if isinstance(c, keras.callbacks.CSVLogger)).csv_file.close()  # Keras would at the end
    resumed = fit(callbacks(tmp_path / "stopped", port))
    found = [newest_sound(tmp_path / name / "run" / "checkpoints")[0] for name in ("straight", "stopped")]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].progress["position"]["epoch"] == 3, "patience of 2"
    assert found[1].state_digest == found[0].state_digest
    assert found[1].progress["history"] == found[0].progress["history"]
    assert found[1].progress["callbacks"] == found[0].progress["callbacks"]
    for mine, other in zip(resumed.get_weights(), straight.get_weights(), strict=True):
        assert np.array_equal(mine, other)
    assert posted == sent
    logs = [(tmp_path / name / "log.csv").read_text() for name in ("straight", "stopped")]
    assert logs[0] == logs[1]
    assert logs[0].count("\n") == 4
    written = [sorted(path.name for path in (tmp_path / name).glob("*.*")) for name in ("straight", "stopped")]
    assert written[0] == written[1]
    assert "every.weights.h5" in written[0]


def test_a_run_hands_further_arguments_to_fit(tmp_path: Path) -> None:
    run = Run(tmp_path, build, train=(X, Y), epochs=2, devices=1, fit={"steps_per_epoch": 2, "validation_split": 0.5})
    assert run.train(verbose=0).keys() == {"loss", "val_loss"}
    found, _ = newest_sound(tmp_path / "checkpoints")
    assert found is not None
    assert found.progress["position"] == {"step": 4, "epoch": 2, "batch": 0, "rows": 22}


def test_arrays_that_a_callback_adds_to_the_logs_are_kept(tmp_path: Path) -> None:
    add = keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: logs.update(recall=np.array([0.5, 1.0])))
    RIG.fit(RIG.build(build), X, Y, callbacks=[add, anyrig.Checkpoint(tmp_path / "run")], verbose=0)
    stored, _ = newest_sound(tmp_path / "run" / "checkpoints")
    assert stored is not None
    assert stored.progress["history"]["recall"] == [[0.5, 1.0]]
