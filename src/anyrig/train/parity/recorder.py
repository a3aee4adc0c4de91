"""A Keras callback that notes the hash of every tensor of the state before training and after each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from anyrig.state.capture import capture
from anyrig.store.digest import hash_bytes, tensor_hash


class Recorder(keras.callbacks.Callback):
    """Ends training after `steps` steps. `states[n]` maps tensor names to hashes after n steps.

    `keep` maps step numbers (as text, from JSON) to the names of tensors whose values are wanted from that step; they
    are in `kept` as float64, under "step:name".
    """

    def __init__(self, steps: int, keep: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self.steps = steps
        self.keep = keep
        self.states: list[dict[str, str]] = []
        self.kept: dict[str, np.ndarray[Any, Any]] = {}

    def on_train_begin(self, logs: Any = None) -> None:
        """Note the initial weights; optimizer and metrics may not be there yet."""
        self._note(optimizer=False, metrics=False)

    def on_train_batch_end(self, _batch: int, logs: Any = None) -> None:
        """Note the state after a step."""
        self._note()
        if len(self.states) > self.steps:
            self.model.stop_training = True

    def note_history(self, history: Mapping[str, Any]) -> None:
        """Add what was logged for each epoch to the last state, as `history/<name>`."""
        self.states[-1].update({f"history/{name}": hash_bytes(repr(v).encode()) for name, v in history.items()})

    def _note(self, **parts: Any) -> None:
        step = len(self.states)
        tensors = capture(self.model, **parts).tensors
        self.states.append({tensor.name: tensor_hash(tensor.array) for tensor in tensors})
        wanted = frozenset(self.keep.get(str(step), ()))
        for tensor in tensors:
            if tensor.name in wanted and tensor.array.dtype.kind not in "SUO":
                self.kept[f"{step}:{tensor.name}"] = tensor.array.astype(np.float64)
