"""The seam between what a step means and how it is executed.

A step is described by the device plan (who does which virtual replicas) and by `microbatch.MicroBatch` (what is done
for each). An engine executes it: the owner engine in `owner.py` on the devices of one TensorFlow process. Another
engine has to give the same numbers, which `tests/multi` checks.
"""

from __future__ import annotations

from typing import Any, Protocol

import keras

from anyrig.data.source import Batch
from anyrig.topology.plan import DevicePlan


class Engine(Protocol):
    """Executes the steps of one built and compiled model by one device plan."""

    plan: DevicePlan
    model: keras.Model

    def expect(self, sample: Batch) -> None:
        """Take from a batch, or specifications of one, which sizes besides the rows change from batch to batch."""

    def read_seeds(self) -> None:
        """Take each seed generator's own seed from the model; to be called after weights were loaded."""

    def train(self, batch: Batch, step: int) -> dict[str, Any]:
        """Do training step number `step` on one global batch; return Keras's logs so far in this epoch."""

    def test(self, batch: Batch, index: int) -> dict[str, Any]:
        """Do evaluation step number `index`; return Keras's logs so far."""

    def predict(self, batch: Batch, index: int) -> Any:
        """Return the model's outputs for global batch number `index`, rows in order."""
