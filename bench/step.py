"""Time of a training step: `Rig.fit` against Keras's `fit`, side by side, as ratios.

Each subject is a process of its own, since a process holds one device count; the subjects are run in turn, several
rounds, and medians are compared, because machines are noisy. Prints a table and writes `step.json`.
Use: python bench/step.py [--rounds 3] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

# name: (how, devices, virtual replicas)
SUBJECTS = {
    "keras fit, 1 device": ("keras", 1, 1),
    "anyrig, 1 device, V = 1": ("anyrig", 1, 1),
    "anyrig, 1 device, V = 4": ("anyrig", 1, 4),
    "anyrig, 2 devices, V = 2": ("anyrig", 2, 2),
    "keras fit, MirroredStrategy, 2 devices": ("mirrored", 2, 2),
}
MODELS = ("cnn", "mlp")
ROWS, EPOCH_STEPS = 128, 12


def build(name: str) -> Any:
    import keras
    from keras import layers

    if name == "cnn":
        model = keras.Sequential(
            [
                keras.Input((32, 32, 3)),
                *(
                    part
                    for size in (32, 64)
                    for part in (layers.Conv2D(size, 3), layers.BatchNormalization(), layers.ReLU())
                ),
                layers.GlobalAveragePooling2D(),
                layers.Dense(10, activation="softmax"),
            ]
        )
    else:
        hidden = [layers.Dense(1024, activation="relu") for _ in range(4)]
        model = keras.Sequential([keras.Input((512,)), *hidden, layers.Dense(10, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    return model


def measure(how: str, devices: int, replicas: int, name: str) -> float:
    """Return seconds per step of the second epoch, after tracing."""
    import time

    import anyrig

    rig = anyrig.Rig(devices)
    import keras
    import numpy as np
    import tensorflow as tf

    shape = (32, 32, 3) if name == "cnn" else (512,)
    x = np.random.default_rng(0).normal(size=(ROWS * EPOCH_STEPS, *shape)).astype("float32")
    y = np.random.default_rng(1).integers(0, 10, len(x))
    begins: list[float] = []
    clock = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: begins.append(time.perf_counter()))
    if how == "anyrig":
        batch = anyrig.Batch(global_size=ROWS, virtual_replicas=replicas)
        rig.fit(rig.build(build, name), x, y, batch=batch, epochs=3, callbacks=[clock], verbose=0)
    else:
        names = [f"CPU:{d}" for d in range(devices)]
        with (tf.distribute.MirroredStrategy(names) if how == "mirrored" else tf.distribute.get_strategy()).scope():
            model = build(name)
        model.fit(x, y, batch_size=ROWS, epochs=3, callbacks=[clock], verbose=0)
    return (begins[2] - begins[1]) / EPOCH_STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--one", nargs=2, metavar=("SUBJECT", "MODEL"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(measure(*SUBJECTS[given.one[0]], given.one[1]))
        return
    times: dict[str, dict[str, list[float]]] = {m: {s: [] for s in SUBJECTS} for m in MODELS}
    for _ in range(given.rounds):
        for model, by_subject in times.items():
            for subject, found in by_subject.items():
                command = [sys.executable, __file__, "--one", subject, model]
                done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
                found.append(float(done.stdout.split()[-1]))
    print(f"{'model':<5} {'subject':<40} {'ms/step':>8} {'ratio':>6}")
    for model, by_subject in times.items():
        first = statistics.median(next(iter(by_subject.values())))
        for subject, found in by_subject.items():
            median = statistics.median(found)
            print(f"{model:<5} {subject:<40} {median * 1000:>8.1f} {median / first:>6.2f}")
    (given.out / "step.json").write_text(json.dumps(times, indent=1) + "\n")


if __name__ == "__main__":
    main()
