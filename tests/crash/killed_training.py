"""The program of test_training_kill.py: trains, is killed at random moments and goes on; TensorFlow is imported once.

And `anyrig.save` over an existing checkpoint, killed and failed at every call: what it writes, without a model.

The parent has TensorFlow imported but never used, so it can fork; each child trains until it is killed. Each attempt
goes on with the same run directory. At the end an undisturbed run says what the state of each step is. Prints JSON.

    killed_training.py FOLDER KILLS SEED
"""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

import anyrig
import anyrig.checkpoints as checkpoints
import anyrig.train.fitting
import anyrig.train.rig
from anyrig.errors import AnyrigError
from anyrig.state.capture import Captured
from anyrig.store.commit import committed_steps, newest_sound, sweep_partials
from anyrig.store.local import LOCAL
from anyrig.store.plan import BY_SIZE
from anyrig.store.read import open_checkpoint, verify_checkpoint
from anyrig.store.tensors import StoredTensor
from anyrig.testing.faults import Fault, Faults, fail, halfway, in_child, kill, walk
from anyrig.train.run import Run

ROWS, BATCH = 64, 8
X = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
STARTING, TRAINING = 0.25, 0.6  # share of kills before the first new commit; seconds after it
PATIENCE = 120.0


def build() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.001, momentum=0.9), "mse")
    return model


def train(folder: Path, epochs: int, keep_last: int | None) -> None:
    rule = anyrig.Checkpoint(every="1 step", keep_last=keep_last)
    batch = anyrig.Batch(global_size=BATCH, virtual_replicas=1)
    Run(folder, build, train=(X, Y), batch=batch, epochs=epochs, devices=1, checkpoint=rule).train(verbose=0)


def forked(act: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return child


def newest_step(folder: Path) -> int:
    return max(committed_steps(folder / "checkpoints"), default=0)


def killed_once(folder: Path, moment: Callable[[float], float], last: float) -> tuple[str, float]:
    """Start, kill after `moment(seconds to the first commit of the last attempt)`; return when and how long it took."""
    before, began = newest_step(folder), time.monotonic()
    child = forked(lambda: train(folder, 10**6, 3))
    until = moment(last)
    first = None
    while time.monotonic() - began < PATIENCE:
        time.sleep(0.001)
        passed = time.monotonic() - began
        if first is None and newest_step(folder) > before:
            first = passed
        if until < 0 and first is not None and passed > first - until:
            break
        if 0 < until < passed:
            break
        if os.waitpid(child, os.WNOHANG)[0]:
            raise SystemExit("the training ended by itself")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return ("while it started" if first is None else "while it trained"), first or last


def look(folder: Path) -> tuple[int, str, bool]:
    """Return the newest sound step, its state, and whether a save was unfinished; every committed one is whole."""
    root = folder / "checkpoints"
    found, rejected = newest_sound(root)
    assert [item.name for item in rejected if not item.name.startswith(".")] == []
    for step in committed_steps(root):
        assert verify_checkpoint(open_checkpoint(root / f"step-{step:09d}")) == []
    assert found is not None
    assert found.step == newest_step(folder)
    return found.step, found.state_digest, any(name.startswith(".step") for name in os.listdir(root))


def save_over(path: Path, value: int, faults: Faults) -> None:
    tensors = [StoredTensor(name="model/kernel", array=np.full((4, 8), value, np.float32))]
    captured = Captured(tensors, {"model.json": b"{}"}, {"a/v.txt": b"x"})
    with faults.on(LOCAL):
        checkpoints._write(path, value, captured, {}, {}, BY_SIZE)


def killed_save(path: Path, faults: Faults) -> None:
    ended = in_child(lambda: save_over(path, 2, faults))
    assert ended == (-signal.SIGKILL if faults.hits else 0)


def failed_save(path: Path, faults: Faults) -> None:
    try:
        save_over(path, 2, faults)
    except AnyrigError:
        return
    assert open_checkpoint(path).step == 2, "what returned is there"


def own_loop(
    folder: Path, attempt: Callable[[Path, Faults], None], fault: Fault, kinds: set[str] | None = None
) -> dict[str, int]:
    """Break `anyrig.save` of step 2 over step 1 at every call; return how often the old and the new one was found."""
    found: Counter[str] = Counter()
    for at, faults in enumerate(walk(fault, kinds=kinds)):
        path = folder / f"{at}" / "checkpoint"
        path.parent.mkdir(parents=True)
        save_over(path, 1, Faults(fault, kinds=()))
        attempt(path, faults)
        opened, _ = checkpoints._open(path, None)
        assert verify_checkpoint(opened) == []
        assert opened.tensor("model/kernel").tobytes() == np.full((4, 8), opened.step, np.float32).tobytes()
        if faults.hits:
            found[{1: "as before", 2: "as after"}[opened.step]] += 1
        save_over(path, 3, Faults(fault, kinds=()))
        assert os.listdir(path.parent) == ["checkpoint"]
        assert open_checkpoint(path).step == 3
    return dict(found)


def main(folder: Path, kills: int, seed: int) -> None:
    own = {
        "kill -9 before each call": own_loop(folder / "kill", killed_save, kill),
        "kill -9 in the middle of each write": own_loop(folder / "half", killed_save, halfway(kill), {"write"}),
        "EIO at each call": own_loop(folder / "fail", failed_save, fail(errno.EIO)),
    }
    rng = random.Random(seed)
    killed, seen, found, last = folder / "killed", {}, Counter[str](), 0.0

    def moment(last: float) -> float:
        """Seconds after the start, or, negative, after the first new commit."""
        starting = last and rng.random() < STARTING
        return rng.uniform(0, last) if starting else -rng.uniform(0, TRAINING)

    (killed / "checkpoints").mkdir(parents=True)
    for _ in range(kills):
        when, last = killed_once(killed, moment, last)
        step, state, unfinished = look(killed)
        seen[step] = state
        found[f"{when}, {'in the middle of a save' if unfinished else 'between saves'}"] += 1
    most = max(seen)
    child = forked(lambda: train(folder / "whole", -(-most * BATCH // ROWS), None))
    assert os.waitpid(child, 0)[1] == 0
    root = folder / "whole" / "checkpoints"
    whole = {step: open_checkpoint(root / f"step-{step:09d}").state_digest for step in committed_steps(root)}
    others = [step for step, state in seen.items() if whole[step] != state]
    left = sweep_partials(killed / "checkpoints")
    clean = all(name.startswith("step-") for name in os.listdir(killed / "checkpoints"))
    print(
        json.dumps(
            {"own": own, "kills": kills, "steps": most, "different": others, "when": found, "clean": clean or left}
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
