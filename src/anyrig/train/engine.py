"""The seam between what a step means and how it is executed.

A step is described by the device plan (who does which virtual replicas) and by `microbatch.MicroBatch` (what is done
for each). An engine executes it: the owner engine in `owner.py` on the devices of one TensorFlow process. Another
engine has to give the same numbers, which `tests/multi` checks.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras

from anyrig.data.source import Batch
from anyrig.topology.plan import DevicePlan


class Engine(Protocol):
    """Executes the steps of one model by one device plan."""

    plan: DevicePlan

    def scope(self) -> AbstractContextManager[None]:
        """Return the context in which models and optimizers are to be created."""

    def bind(self, model: keras.Model, sample: Batch, seed: int) -> None:
        """Build what is not built yet and take `model` as the one to run; `sample` is any batch of its data."""

    def train(self, batch: Batch, step: int) -> dict[str, Any]:
        """Do training step number `step` on one global batch; return Keras's logs so far in this epoch."""

    def test(self, batch: Batch) -> dict[str, Any]:
        """Do one evaluation step; return Keras's logs so far."""

    def predict(self, batch: Batch) -> Any:
        """Return the model's outputs for one global batch, rows in order."""
