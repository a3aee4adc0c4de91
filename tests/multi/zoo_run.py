"""Train cases of the table on the devices of this process; append hashes of what each ends with to a file, as JSON.

Arguments: file, number of devices, then "case:V" for each run. A run that fails is reported, and the next one goes on.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from anyrig.topology.devices import configure

FILE, DEVICES = Path(sys.argv[1]), int(sys.argv[2])
configure(DEVICES)

import keras  # noqa: E402

from anyrig.state.capture import capture  # noqa: E402
from anyrig.store.digest import tensor_hash  # noqa: E402
from anyrig.train.batch import Batch  # noqa: E402
from anyrig.train.rig import Rig  # noqa: E402
from tests.multi.zoo_table import CASES  # noqa: E402

EPOCHS = 2


def train(name: str, virtual_replicas: int) -> dict[str, Any]:
    """Return the hash of every tensor of the state after two epochs, and the history."""
    case = CASES[name].make()
    rig = Rig(DEVICES, precision=case.precision)
    model = rig.build(case.build)
    arguments: dict[str, Any] = {
        "batch": Batch(virtual_replicas=virtual_replicas),
        "epochs": EPOCHS,
        "shuffle": False,
        "verbose": 0,
    }
    history = rig.fit(model, **case.fit(), **arguments).history
    tensors = {tensor.name: tensor_hash(tensor.array) for tensor in capture(model).tensors}
    return {"tensors": tensors, "history": json.dumps(history)}


def attempt(name: str, virtual_replicas: int) -> dict[str, Any]:
    """Return what `train` does, or the error, and the time it took."""
    started = time.perf_counter()
    try:
        result = train(name, virtual_replicas)
    except Exception as error:  # noqa: BLE001 - shown in the table and failed by the test
        result = {"error": getattr(error, "code", type(error).__name__), "message": str(error)[:500]}
    keras.backend.clear_session()
    return {**result, "seconds": round(time.perf_counter() - started, 2)}


for argument in sys.argv[3:]:
    case_name, _, replicas = argument.partition(":")
    line = json.dumps([argument, attempt(case_name, int(replicas))])
    with FILE.open("a", encoding="utf-8") as stream:
        stream.write(f"{line}\n")
