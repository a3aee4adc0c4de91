"""One device, V = 1: train cases with Keras's own `fit` and with `Rig.fit`; append the differences to a file, as JSON.

Arguments: file, cases. Keras computes without XLA and in the same order of rows, and its seed generators are given,
before each of its steps, the keys that the rig computes: random layers draw the same numbers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from anyrig.topology.devices import configure

configure(1)

import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras.src.random.seed_generator import global_seed_generator  # noqa: E402
from keras.src.utils.naming import reset_uids  # noqa: E402

from anyrig.state.seeds import seed_generators  # noqa: E402
from anyrig.state.values import to_array  # noqa: E402
from anyrig.train.batch import Batch  # noqa: E402
from anyrig.train.rig import Rig  # noqa: E402
from anyrig.train.step.seeds import keys  # noqa: E402
from tests.multi.zoo_table import CASES  # noqa: E402

STEPS, EPOCHS = 10, 5  # three steps in an epoch, or two, or four


class SameKeys(keras.callbacks.Callback):
    """Gives every seed generator of a model in Keras's `fit` the key that the rig computes for the step."""

    def __init__(self, run_seed: int) -> None:
        super().__init__()
        self.run_seed, self.step = run_seed, 0
        self.own: list[tuple[str, int]] = []
        self.generators: list[Any] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Count the steps of the epochs that `initial_epoch` leaves out, as the rig does."""
        if epoch and not self.generators:
            self.step = epoch * self.params["steps"]

    def on_train_batch_begin(self, _batch: int, logs: Any = None) -> None:
        """Set the states."""
        if not self.generators:
            found = seed_generators(self.model)
            self.own = [*((path, int(to_array(generator.state)[0])) for path, generator in found), ("/global", 0)]
            self.generators = [*(generator for _, generator in found), global_seed_generator()]
        for generator, key in zip(self.generators, keys(self.run_seed, self.own, self.step, 1)[0], strict=True):
            generator.state.assign(key)
        self.step += 1


class Snapshots(keras.callbacks.Callback):
    """Keeps the values of all variables, but seeds, after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, Any]] = []

    def on_train_batch_end(self, _batch: int, logs: Any = None) -> None:
        """Take the values."""
        seeds = {id(generator.state) for _, generator in seed_generators(self.model)}
        held = [*self.model.variables, *self.model.optimizer.variables]
        named = {f"{i}:{v.path}": v for i, v in enumerate(held) if id(v) not in seeds}
        self.steps.append({name: np.array(to_array(variable)) for name, variable in named.items()})


def compare(name: str) -> dict[str, Any]:
    """Return the largest difference of any variable after one step and after the last, and of the history."""
    case = CASES[name].make()
    rig = Rig(1, precision=case.precision)
    ours = rig.build(case.build)
    reset_uids()  # the second is to have the names of the first
    theirs = rig.build(case.build)
    theirs.jit_compile = False
    arguments: dict[str, Any] = {"epochs": EPOCHS, "shuffle": False, "verbose": 0}
    seen, expected = Snapshots(), Snapshots()
    given = case.fit()
    listed = given.pop("callbacks", [])
    wanted = theirs.fit(**given, **arguments, callbacks=[*listed, SameKeys(rig.seed), expected]).history
    given = case.fit()
    listed = given.pop("callbacks", [])
    found = rig.fit(ours, **given, **arguments, callbacks=[*listed, seen], batch=Batch(virtual_replicas=1)).history
    assert found.keys() == wanted.keys(), (sorted(found), sorted(wanted))
    assert len(seen.steps) == len(expected.steps), (len(seen.steps), len(expected.steps))
    last = min(STEPS, len(seen.steps)) - 1
    return {
        "optimizer": type(ours.optimizer).__name__,
        "steps": last + 1,
        "first": difference(seen.steps[0], expected.steps[0]),
        "last": difference(seen.steps[last], expected.steps[last]),
        "history": largest(np.subtract(found[key][0], wanted[key][0]) for key in wanted),
    }


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """Return the largest absolute difference of any number."""
    pairs = list(zip(ours.values(), theirs.values(), strict=True))
    assert all(a.shape == b.shape for a, b in pairs)
    return largest(a.astype("float64") - b.astype("float64") for a, b in pairs)


def largest(differences: Iterable[Any]) -> float:
    """Return the largest absolute number, NaN if there is one."""
    return float(np.max([np.max(np.abs(difference), initial=0) for difference in differences]))


def attempt(name: str) -> dict[str, Any]:
    """Return what `compare` does, or the error, and the time it took."""
    started = time.perf_counter()
    try:
        result = compare(name)
    except Exception as error:  # noqa: BLE001 - shown in the table and failed by the test
        result = {"error": getattr(error, "code", type(error).__name__), "message": str(error)[:500]}
    keras.backend.clear_session()
    return {**result, "seconds": round(time.perf_counter() - started, 2)}


for case_name in sys.argv[2:]:
    line = json.dumps([case_name, attempt(case_name)])
    with Path(sys.argv[1]).open("a", encoding="utf-8") as stream:
        stream.write(f"{line}\n")
