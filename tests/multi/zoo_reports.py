"""What users reported of other tools, tried on two devices; prints what was found as JSON. Argument: a folder."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from anyrig.topology.devices import configure

configure(2)

import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers  # noqa: E402

from anyrig.errors import Stopped  # noqa: E402
from anyrig.state.capture import capture  # noqa: E402
from anyrig.store.commit import newest_sound  # noqa: E402
from anyrig.store.digest import state_digest_of  # noqa: E402
from anyrig.train.batch import Batch  # noqa: E402
from anyrig.train.rig import Rig  # noqa: E402
from anyrig.train.run import Run  # noqa: E402
from tests.multi.zoo import compiled, floats, stack  # noqa: E402
from tests.multi.zoo_optimizers import mixed_float16  # noqa: E402

FOLDER = Path(sys.argv[1])
BATCH = Batch(global_size=13, virtual_replicas=4)
SCHEDULE = keras.optimizers.schedules.CosineDecay(0.1, 8)
BATCH_NORMS = 60


def averaged() -> keras.Model:
    """Return a model whose optimizer has a schedule and averages of the weights."""
    optimizer = keras.optimizers.SGD(SCHEDULE, use_ema=True, ema_momentum=0.9)
    return compiled(stack((4,), layers.Dense(3), layers.BatchNormalization(), layers.Dense(1)), optimizer=optimizer)


class StopAt(keras.callbacks.Callback):
    """Asks for a stop after so many steps of this process."""

    rig: Rig

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.remaining = steps

    def on_train_batch_end(self, _batch: int, logs: Any = None) -> None:
        """Count."""
        self.remaining -= 1
        if self.remaining == 0:
            self.rig.request_stop()


def train(name: str, build: Callable[[], Any], data: Any, precision: str, stop_at: int = 0) -> tuple[Run, Any]:
    """Return a run of two epochs, stopped after so many steps, and the checksums of its newest checkpoint."""
    stop = StopAt(stop_at)
    run = Run(FOLDER / name, build, train=data, batch=BATCH, epochs=2, devices=2, precision=precision, callbacks=[stop])
    stop.rig = run.rig
    try:
        run.train(verbose=0)
    except Stopped:
        assert stop_at
    checkpoint = newest_sound(FOLDER / name / "checkpoints")[0]
    assert checkpoint is not None
    return run, {entry.name: entry.checksum for entry in checkpoint.manifest.tensors}


def resumed(name: str, build: Callable[[], Any], data: Any, precision: str = "auto") -> tuple[Run, dict[str, Any]]:
    """Return a run that was stopped in its second epoch and carried on, and how it differs from one that was not."""
    _, straight = train(f"{name}-straight", build, data, precision)
    _, stopped = train(name, build, data, precision, stop_at=4)
    run, end = train(name, build, data, precision)
    differing = sorted(key for key in straight.keys() | end.keys() if straight.get(key) != end.get(key))
    return run, {"differing": differing, "stopped": stopped}


def schedule_and_averages() -> dict[str, Any]:
    """A schedule goes on where it was; averages are stored beside the weights."""
    run, found = resumed("averaged", averaged, (floats(4), floats(1, seed=2)))
    optimizer = run.model.optimizer
    rate = (float(optimizer.learning_rate), float(SCHEDULE(int(optimizer.iterations))))
    return {**found, "iterations": int(optimizer.iterations), "rates": rate}


def loss_scale() -> dict[str, Any]:
    """A dynamic loss scale and its counter go on where they were."""
    case = mixed_float16()
    given = case.fit()
    return resumed("mixed", case.build, (given["x"], given["y"]), case.precision)[1]


def made_outside() -> dict[str, Any]:
    """A model that was made before there was a rig trains on two devices as one that the rig built."""
    rig = Rig(2)
    digests = []
    for inside in (True, False):
        keras.utils.set_random_seed(0)
        model = rig.build(averaged) if inside else averaged()
        rig.fit(model, floats(4), floats(1, seed=2), batch=BATCH, shuffle=False, verbose=0)
        digests.append(state_digest_of(capture(model).tensors, 0))
    model.save(FOLDER / "outside.keras")
    loaded = keras.models.load_model(FOLDER / "outside.keras")
    same = np.array_equal(loaded.predict(floats(4), verbose=0), model.predict(floats(4), verbose=0))
    rig.fit(loaded, floats(4), floats(1, seed=2), batch=BATCH, shuffle=False, verbose=0)
    return {"digests": digests, "predicts alike": bool(same), "iterations": int(loaded.optimizer.iterations)}


def many_batch_norms() -> dict[str, Any]:
    """Taking the state for a save costs no more with moving averages on two devices than with none."""

    def build() -> keras.Model:
        blocks = [layer for _ in range(BATCH_NORMS) for layer in (layers.Dense(4), layers.BatchNormalization())]
        return compiled(stack((4,), *blocks, layers.Dense(1)))

    model = Rig(2).build(build)
    started = time.perf_counter()
    tensors = len(capture(model).tensors)
    return {"tensors": tensors, "seconds": time.perf_counter() - started}


print(
    json.dumps({part.__name__: part() for part in (schedule_and_averages, loss_scale, made_outside, many_batch_norms)})
)
