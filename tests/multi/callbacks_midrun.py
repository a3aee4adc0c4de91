"""Use the model from a callback in the middle of a run: set_weights, predict, evaluate, save; print digests as JSON.

Also print where the large operations of the step's apply stage were placed. Argument: number of devices, a folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from anyrig.topology.devices import configure

configure(int(sys.argv[1]))

import keras  # noqa: E402
import numpy as np  # noqa: E402

from anyrig.state.capture import capture  # noqa: E402
from anyrig.store.digest import state_digest_of, tensor_hash  # noqa: E402
from anyrig.train.batch import Batch  # noqa: E402
from anyrig.train.rig import Rig  # noqa: E402
from anyrig.train.step.placement import owner  # noqa: E402
from tests.multi.cases import CASES, GLOBAL_SIZE  # noqa: E402
from tests.multi.placements import LARGE, large_updates, misplaced  # noqa: E402

FOLDER = Path(sys.argv[2])
case = CASES["convolutional"]()
x, y = case.validation
seen: dict[str, Any] = {}


class Meddle(keras.callbacks.Callback):
    """Does to the model, once in epoch 1, what callbacks do."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch != 1 or seen:
            return
        self.model.set_weights([weight * 0.5 for weight in self.model.get_weights()])
        seen["iterations"] = int(self.model.optimizer.iterations)  # U10
        seen["predict"] = tensor_hash(self.model.predict(x, verbose=0))
        seen["evaluate"] = self.model.evaluate(x, y, verbose=0)
        self.model.save(FOLDER / "mid-run.keras")
        loaded = keras.models.load_model(FOLDER / "mid-run.keras")
        seen["saved"] = all(
            np.array_equal(a, b) for a, b in zip(loaded.get_weights(), self.model.get_weights(), strict=True)
        )


rig = Rig(int(sys.argv[1]))
model = rig.build(case.build)
rig.fit(
    model,
    case.train[0],
    case.train[1],
    epochs=2,
    batch=Batch(global_size=GLOBAL_SIZE, virtual_replicas=4),
    callbacks=[Meddle()],
    verbose=0,
)
digest = state_digest_of(capture(model).tensors, 0)

# Where the update of each variable runs: from each assignment back through everything of the variable's size.
engine: Any = rig._known._engines_of(model)[False][1]
step: Any = next(function for key, function in engine._functions.items() if key[0] == "_train_step")
checked, apart = misplaced(step.graph)
devices = {device for _, device, _ in large_updates(step.graph)}

owners = sorted({owner(variable) for variable in model.trainable_variables if variable.shape.num_elements() >= LARGE})
slots = all(
    owner(slot) == owner(variable)
    for variable, *others in zip(
        model.trainable_variables, model.optimizer._momentums, model.optimizer._velocities, strict=True
    )
    for slot in others
)
print(
    json.dumps(
        {
            "digest": digest,
            "seen": seen,
            "owners": owners,
            "updated on": sorted(devices),
            "slots with their variable": slots,
            "checked": checked,
            "misplaced": apart,
        }
    )
)
