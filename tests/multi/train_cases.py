"""Train cases on the devices of this process and print, as JSON, the hash of every tensor of the last checkpoint.

Arguments: number of devices, folder for the runs, then "case:V" or "case:V:kill_at" for each run, where the process
ends itself by SIGKILL after that many steps of this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from anyrig.topology.devices import configure

configure(int(sys.argv[1]))

import keras  # noqa: E402

from anyrig.store.commit import newest_sound  # noqa: E402
from anyrig.train.batch import Batch  # noqa: E402
from anyrig.train.checkpoint import CheckpointSettings  # noqa: E402
from anyrig.train.run import Run  # noqa: E402
from tests.multi.cases import CASES, GLOBAL_SIZE  # noqa: E402

EPOCHS = 3


class KillAt(keras.callbacks.Callback):
    """Ends the process, as a power cut would, after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.remaining = steps

    def on_train_batch_end(self, _batch: int, logs: Any = None) -> None:
        self.remaining -= 1
        if self.remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, name: str, virtual_replicas: int, kill_at: int) -> dict[str, Any]:
    """Train one case to its end and return what the last checkpoint holds."""
    case = CASES[name]()
    size = None if name == "weighted" else GLOBAL_SIZE
    run = Run(
        folder,
        case.build,
        train=case.train,
        validation=case.validation,
        batch=Batch(global_size=size, virtual_replicas=virtual_replicas),
        epochs=EPOCHS,
        devices=int(sys.argv[1]),
        checkpoint=CheckpointSettings(every="2 steps", keep_last=2),
        callbacks=[keras.callbacks.ReduceLROnPlateau(patience=1), KillAt(kill_at)],
    )
    history = run.train(verbose=0)
    checkpoint, rejected = newest_sound(folder / "checkpoints")
    assert not rejected
    assert checkpoint is not None
    return {
        "tensors": {entry.name: entry.checksum for entry in checkpoint.manifest.tensors},
        "digest": checkpoint.state_digest,
        "history": history,
        "predictions": float(keras.ops.sum(keras.tree.flatten(run.predict(_inputs(case)))[0])),
        **{key: checkpoint.progress[key] for key in ("position", "updates")},
    }


def _inputs(case: Any) -> Any:
    return case.validation[0]


results = {}
for argument in sys.argv[3:]:
    case_name, replicas, *kill = argument.split(":")
    kill_at = int(kill[0]) if kill else 0
    folder = Path(sys.argv[2]) / f"{case_name}-{replicas}"
    results[f"{case_name}:{replicas}"] = train(folder, case_name, int(replicas), kill_at)
print(json.dumps(results))
