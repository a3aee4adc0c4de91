"""Numbers that are not finite, found before a step changes anything.

The loss of each virtual replica, the summed gradients and the state that the step moves are looked at in one pass each,
on the devices that hold them; the verdicts are small and meet on the host. If one is bad the step is broken off there:
no variable of the model, its optimizer or its metrics has been assigned yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

_MARK = "anyrig: a number is not finite"
_HOST = "/device:CPU:0"
_CONCISE = 2  # DebugNumericSummaryV2's mode CURT_HEALTH: (id, 1 if any element is not finite else 0)


class NotFinite(Exception):
    """A training step was broken off before its update, or (`updated`) found out after a step of the model's own.

    `tensors` names the gradients and the moved state that are not finite, `replicas` the virtual replicas whose loss is
    not.
    """

    def __init__(self, tensors: Sequence[str], replicas: Sequence[int] = (), *, updated: bool = False) -> None:
        super().__init__(*tensors, *replicas)
        self.tensors = tuple(tensors)
        self.replicas = tuple(replicas)
        self.updated = updated


class FiniteCheck:
    """Breaks traced steps off at numbers that are not finite, and remembers where they were."""

    def __init__(self, replicas: int, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._replicas = replicas
        with tf.init_scope(), tf.device(_HOST):
            self._bad = tf.Variable(tf.zeros(replicas + len(names), tf.bool), trainable=False)

    def require(self, losses: Sequence[tf.Tensor], tensors: Sequence[Any]) -> tf.Operation:
        """Return an operation that fails if anything is not finite; `tensors` are in the order of `names`."""
        verdicts = [_not_finite(tensor) for tensor in [*losses, *tensors]]
        with tf.device(_HOST):
            empty = [tf.constant(value=False)] * (self._replicas - len(losses))
            bad = tf.stack([*verdicts[: len(losses)], *empty, *verdicts[len(losses) :]])
            with tf.control_dependencies([self._bad.assign(bad)]):
                return tf.debugging.Assert(tf.logical_not(tf.reduce_any(bad)), [_MARK])

    def explain(self, error: tf.errors.InvalidArgumentError) -> NotFinite | None:
        """Return what was not finite if `error` is this check's, else None."""
        if _MARK not in error.message:
            return None
        bad = self._bad.numpy()
        named = zip(self.names, bad[self._replicas :], strict=True)
        return NotFinite([name for name, is_bad in named if is_bad], bad[: self._replicas].nonzero()[0].tolist())


def _not_finite(tensor: Any) -> tf.Tensor:
    values = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
    with tf.device(values.device):
        return tf.raw_ops.DebugNumericSummaryV2(input=values, tensor_debug_mode=_CONCISE, tensor_id=0)[1] > 0
