"""What the training loop does when a step meets numbers that are not finite: raise, skip, or roll back.

The engine breaks such a step off before its update, so the model is as it was before the step, and a choice is all that
is left. A step that is left out is consumed like any other (its batch, its number, its masks) and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import keras
import numpy as np

from anyrig.data.source import Batch
from anyrig.errors import AnyrigError, UsageError
from anyrig.state.values import to_array
from anyrig.topology.plan import split_rows
from anyrig.train.step.engine import Engine
from anyrig.train.step.finite import NotFinite

CHOICES = ("raise", "skip", "rollback")
MOST_ROLLBACKS = 3  # in one run
_SHOWN = 5


class GoBack(Exception):
    """The newest committed state is to be restored; `otherwise` is the error if there is none."""

    def __init__(self, otherwise: AnyrigError) -> None:
        super().__init__(otherwise.message)
        self.otherwise = otherwise


@dataclass(slots=True, kw_only=True)
class NonFinitePolicy:
    """One run's choice. `left_out` are the steps that its numbers do without from now on, wherever it is resumed.

    `tell` is called with a sentence for people and with fields for the record, whenever a step is left out.
    """

    choice: str = "raise"
    left_out: list[int] = field(default_factory=list)
    tell: Callable[..., None] = lambda message, **fields: None
    _skipped: int = 0

    def __post_init__(self) -> None:
        if self.choice not in CHOICES:
            raise UsageError(
                "ANY-TRAIN-018",
                f"on_nonfinite: expected one of {', '.join(CHOICES)}, found {self.choice!r}",
                hint='leave it at "raise"',
            )

    def train(self, engine: Engine, batch: Batch, step: int, epoch: int, index: int) -> dict[str, Any]:
        """Do a training step, batch `index` (from 0) of `epoch` (from 0), or leave it out; return Keras's logs."""
        if step in self.left_out:
            return dict(engine.model.get_metrics_result())
        try:
            return engine.train(batch, step)
        except NotFinite as found:
            where = f"step {step + 1:,} (epoch {epoch + 1}, batch {index + 1})"
            what = _describe(found, batch, engine.plan.virtual_replicas)
            self._decide(engine.model, step, f"{where}: {what}", updated=found.updated)
        return dict(engine.model.get_metrics_result())

    def _decide(self, model: keras.Model, step: int, what: str, *, updated: bool) -> None:
        if self.choice == "raise" or (updated and self.choice == "skip"):
            raise _error(what, updated=updated)
        weights = _not_finite_weights(model)
        if self.choice == "skip":
            if weights:
                raise _error(
                    f"{what}, because the weights are not finite ({weights[0]}), which no skipped step changes"
                )
            self._skipped += 1
            self.tell(f"{what}; step left out ({self._skipped} so far)", kind="skip", step=step + 1)
            return
        if len(self.left_out) >= MOST_ROLLBACKS:
            raise _error(f"{what}, after {MOST_ROLLBACKS} rollbacks")
        self.left_out.append(step)
        self.tell(
            f"{what}; going back to the newest checkpoint", kind="rollback", step=step + 1, left_out=self.left_out
        )
        otherwise = "" if updated else ', or use on_nonfinite="skip"'
        raise GoBack(
            AnyrigError(
                "ANY-TRAIN-020",
                f"{what}; no checkpoint of this phase of the run was made before, so there is none to go back to",
                hint=f'save more often, e.g. every="10 steps"{otherwise}',
            )
        )


def _error(what: str, *, updated: bool = False) -> AnyrigError:
    made = "the model's own step has changed it already" if updated else "the update was not made"
    leaves_out = 'on_nonfinite="rollback"' if updated else 'on_nonfinite="skip"'
    return AnyrigError(
        "ANY-TRAIN-017",
        f"{what}; {made}, and no such state is saved",
        hint="look at these rows, lower the learning rate or clip gradients (clipnorm=1.0); "
        f"{leaves_out} leaves such steps out",
    )


def _describe(found: NotFinite, batch: Batch, virtual_replicas: int) -> str:
    """Return "the loss of rows 0 to 7 is not finite; x is not finite in rows 3"."""
    parts = []
    if found.replicas:
        starts = list(accumulate(split_rows(_rows(batch), virtual_replicas), initial=0))
        ranges = [f"{a} to {b - 1}" for v, (a, b) in enumerate(pairwise(starts)) if v in found.replicas]
        parts.append(f"the loss of rows {_list(ranges)} of the batch is not finite")
    elif found.tensors:
        parts.append(f"{_list(found.tensors)} {'is' if len(found.tensors) == 1 else 'are'} not finite")
    for name, part in zip(("x", "y", "sample_weight"), batch, strict=False):
        rows = sorted({int(row) for leaf in keras.tree.flatten(part) for row in _bad_rows(leaf)})
        if rows:
            parts.append(f"{name} is not finite in row {_list(rows)} of the batch")
    return "; ".join(parts)


def _list(items: Sequence[Any]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return ", ".join(map(str, items[:_SHOWN])) + more


def _rows(batch: Batch) -> int:
    return int(keras.tree.flatten(batch)[0].shape[0])


def _bad_rows(leaf: Any) -> Any:
    """Return the rows of one leaf of a batch that hold NaN or infinity."""
    if leaf is None or not keras.backend.is_float_dtype(keras.backend.standardize_dtype(leaf.dtype)):
        return ()
    values = np.asarray(leaf, dtype=np.float64)
    return np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))


def _not_finite_weights(model: keras.Model) -> list[str]:
    return [v.path for v in model.trainable_variables if not np.isfinite(to_array(v).astype(np.float64)).all()]
