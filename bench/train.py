"""Rows per second of training: `Rig.fit` against Keras's `fit` and a hand-written `tf.function` loop, side by side.

Each subject is a process of its own, since a process holds one device count. For each model all subjects are started,
and then take turns: every round one epoch each, so that a noisy machine disturbs all alike. Medians are compared.
`jit_compile=False` everywhere: with XLA, Keras's numbers are those of another compiler.

Prints ratios with their goals and writes them, for the models measured, into `train.json`, of which `page.py` makes a
part of `docs/performance.md`.
Use: python bench/train.py [--rounds 5] [--models cnn,mlp] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from page import machine, reached


class Subject(NamedTuple):
    """Who trains: `keras` (fit), `loop` (hand-written) or `anyrig`; `part` is its share of the global batch."""

    how: str
    devices: int = 1
    replicas: int = 1
    part: float = 1.0


SUBJECTS = {
    "keras fit": Subject("keras"),
    "tf.function loop": Subject("loop"),
    "anyrig, V = 1": Subject("anyrig"),
    "anyrig, V = 4": Subject("anyrig", replicas=4),
    "anyrig, V = 1, a quarter of the rows": Subject("anyrig", part=0.25),
    "keras fit, MirroredStrategy, 2 devices": Subject("keras", devices=2),
    "anyrig, 2 devices, V = 2": Subject("anyrig", devices=2, replicas=2),
    "anyrig, 2 devices, V = 4": Subject("anyrig", devices=2, replicas=4),
}


class Task(NamedTuple):
    """A model function, the shape of a row, rows per step, steps per epoch."""

    build: Callable[[], Any]
    shape: tuple[int, ...]
    rows: int
    steps: int


def cnn() -> Any:
    from keras import Input, Sequential, layers

    blocks = [b for n in (32, 64) for b in (layers.Conv2D(n, 3), layers.BatchNormalization(), layers.ReLU())]
    return Sequential([Input((32, 32, 3)), *blocks, layers.GlobalAveragePooling2D(), layers.Dense(10, "softmax")])


def mobilenet() -> Any:
    import keras

    return keras.applications.MobileNetV2((96, 96, 3), weights=None, classes=10)


def mlp() -> Any:
    from keras import Input, Sequential, layers

    hidden = [layers.Dense(3500, "relu") for _ in range(5)]
    return Sequential([Input((512,)), *hidden, layers.Dense(10, "softmax")])


def transformer() -> Any:
    import keras
    from keras import layers

    words = keras.Input((64,), dtype="int32")
    x = layers.Embedding(5000, 128)(words)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 32)(x, x))
        x = layers.LayerNormalization()(x + layers.Dense(128)(layers.Dense(512, "gelu")(x)))
    return keras.Model(words, layers.Dense(10, "softmax")(layers.GlobalAveragePooling1D()(x)))


TASKS = {
    "cnn": Task(cnn, (32, 32, 3), 128, 8),
    "mobilenet": Task(mobilenet, (96, 96, 3), 32, 3),
    "mlp": Task(mlp, (512,), 128, 3),
    "transformer": Task(transformer, (64,), 64, 6),
}


def compiled(task: Task) -> Any:
    model = task.build()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    return model


def data(task: Task, rows: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    if task.build is transformer:
        return generator.integers(0, 5000, (rows, *task.shape)).astype("int32"), generator.integers(0, 10, rows)
    return generator.normal(size=(rows, *task.shape)).astype("float32"), generator.integers(0, 10, rows)


def serve(subject: Subject, task: Task) -> None:
    """For each number on stdin train that many steps; print seconds per step and the peak of memory in bytes."""
    import resource

    import anyrig

    rig = anyrig.Rig(subject.devices)
    size = int(task.rows * subject.part)
    epoch = trainer(rig, subject, task, size)
    for line in sys.stdin:
        seconds = epoch(*data(task, size * int(line))) / int(line)
        print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]), flush=True)


def trainer(rig: Any, subject: Subject, task: Task, size: int) -> Callable[[Any, Any], float]:
    """Return a function that trains one epoch and returns its seconds, without what comes before and after it."""
    import tensorflow as tf

    import anyrig

    if subject.how == "anyrig":
        model = rig.build(compiled, task)
        batch = anyrig.Batch(global_size=size, virtual_replicas=subject.replicas)
        return lambda x, y: timed(rig.fit, model, x, y, batch=batch)
    strategy = tf.distribute.MirroredStrategy(rig.devices) if subject.devices > 1 else tf.distribute.get_strategy()
    with strategy.scope():
        model = compiled(task)
    if subject.how == "keras":
        return lambda x, y: timed(model.fit, x, y, batch_size=size)
    return hand_written(model, size)


def timed(fit: Callable[..., Any], *arguments: Any, **named: Any) -> float:
    import keras

    clock: list[float] = []

    def note(*_: Any) -> None:
        clock.append(time.perf_counter())

    callback = keras.callbacks.LambdaCallback(on_epoch_begin=note, on_epoch_end=note)
    fit(*arguments, **named, shuffle=False, verbose=0, callbacks=[callback])
    return clock[1] - clock[0]


def hand_written(model: Any, size: int) -> Callable[[Any, Any], float]:
    """Return an epoch as one writes it by hand: one tf.function, a tf.data pipeline, no callbacks."""
    import keras
    import tensorflow as tf

    loss_of, accuracy = keras.losses.SparseCategoricalCrossentropy(), keras.metrics.SparseCategoricalAccuracy()
    model.optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=False, reduce_retracing=True)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            predicted = model(x, training=True)
            loss = loss_of(y, predicted)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply(gradients, model.trainable_variables)
        accuracy.update_state(y, predicted)
        return loss

    def epoch(x: Any, y: Any) -> float:
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(size).prefetch(2)
        begun, loss = time.perf_counter(), 0.0
        for rows in dataset:
            loss = step(*rows)
        float(loss)
        return time.perf_counter() - begun

    return epoch


class Server:
    """A subject's process, which is started anew if it dies: TensorFlow's MirroredStrategy does now and then."""

    def __init__(self, subject: str, task: str) -> None:
        self.command = [sys.executable, __file__, "--serve", subject, task]
        self.died = 0
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, steps: int) -> tuple[float, int]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if answer:
            seconds, peak = json.loads(answer)
            return seconds, peak
        self.died += 1
        if self.died > 3:
            raise RuntimeError(f"{self.command[-2]} died {self.died} times")
        self.start()
        self.ask(steps)  # traces
        return self.ask(steps)

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)


def measure(name: str, rounds: int) -> dict[str, dict[str, Any]]:
    """Return for each subject its first step, seconds per step of each round, rows per second and peak memory."""
    servers = {subject: Server(subject, name) for subject in SUBJECTS}
    found: dict[str, dict[str, Any]] = {}
    try:
        for subject, server in servers.items():
            found[subject] = {"first_step": server.ask(1)[0], "seconds": []}
            server.ask(TASKS[name].steps)
        for _ in range(rounds):
            for subject, server in servers.items():
                seconds, found[subject]["peak_bytes"] = server.ask(TASKS[name].steps)
                found[subject]["seconds"].append(seconds)
    finally:
        for server in servers.values():
            server.end()
    for subject, server in servers.items():
        found[subject]["died"] = server.died
    for subject, result in found.items():
        result["rows_per_second"] = TASKS[name].rows * SUBJECTS[subject].part / statistics.median(result["seconds"])
    return found


def ratios(found: dict[str, dict[str, Any]], gradient: int) -> list[tuple[str, float, str]]:
    """Return (what, ratio, goal) where a goal is ">= n", "<= n" or "" for what is only shown; `gradient` in bytes."""

    def speed(subject: str, than: str) -> float:
        return float(found[subject]["rows_per_second"] / found[than]["rows_per_second"])

    def peak(subject: str, than: str, gradients: float = 0) -> float:
        return float(found[subject]["peak_bytes"] / (found[than]["peak_bytes"] + gradients * gradient))

    one, two = "keras fit", "keras fit, MirroredStrategy, 2 devices"
    first = found["anyrig, V = 1"]["first_step"] / found[one]["first_step"]
    return [
        ("rows/s, V = 1, to keras fit", speed("anyrig, V = 1", one), ">= 1"),
        ("rows/s, V = 1, to the tf.function loop", speed("anyrig, V = 1", "tf.function loop"), ""),
        ("rows/s, 2 devices, V = 2, to keras fit mirrored", speed("anyrig, 2 devices, V = 2", two), ">= 2"),
        ("rows/s, 2 devices, V = 4, to keras fit mirrored", speed("anyrig, 2 devices, V = 4", two), ""),
        (
            "rows/s, V = 4, to V = 1 at the same micro-batch",
            speed("anyrig, V = 4", "anyrig, V = 1, a quarter of the rows"),
            ">= 0.95",
        ),
        ("peak memory, V = 1, to keras fit", peak("anyrig, V = 1", one), "<= 1.05"),
        ("peak memory, V = 4, to keras fit + 3 gradients", peak("anyrig, V = 4", one, 1 + math.log2(4)), "<= 1.05"),
        ("peak memory, 2 devices, to keras fit mirrored", peak("anyrig, 2 devices, V = 2", two), "<= 1.05"),
        ("first step, V = 1, to keras fit", first, "<= 2"),
    ]


def gradient_bytes(name: str) -> int:
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import train; "
    code += f"print(4 * train.TASKS[{name!r}].build().count_params())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default=",".join(TASKS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "measured")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(SUBJECTS[given.serve[0]], TASKS[given.serve[1]])
        return
    file = given.out / "train.json"
    models: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name in given.models.split(","):
        on = machine()
        found = measure(name, given.rounds)
        compared = ratios(found, gradient_bytes(name))
        listed = [[what, round(ratio, 3), goal] for what, ratio, goal in compared]
        models[name] = {"made_on": on, "subjects": found, "ratios": listed}
        print(f"\n{name}, {TASKS[name].rows} rows a step", flush=True)
        for subject, result in found.items():
            died = f", died {result['died']} times" if result["died"] else ""
            print(
                f"  {subject:<40} {statistics.median(result['seconds']) * 1000:>8.1f} ms/step "
                f"{result['rows_per_second']:>9.1f} rows/s {result['peak_bytes'] / 2**20:>7.0f} MiB, "
                f"first step {result['first_step']:.1f} s{died}"
            )
        for what, ratio, goal in compared:
            print(f"  {what:<50} {ratio:>6.2f}  {goal and f'goal {goal}'}{'' if reached(ratio, goal) else ': missed'}")
        file.write_text(json.dumps(models, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
