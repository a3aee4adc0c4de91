"""What the training loop does when a step needs more memory than there is: raise, or do the step in smaller parts.

A step fails before its update (activations and gradients are what is large), and then the model is as it was before the
step; no copy of the state has to be held for that. If the update itself had begun, the newest committed state is the
nearest one that is whole. First the devices stop competing, where they share one memory: the numbers stay the same.
Then the number of virtual replicas is doubled, which changes the numbers from that step on, as a fork: it is printed,
and recorded in every later checkpoint, so that the run goes on with the new number wherever it is resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from anyrig.data.source import Batch, count_rows
from anyrig.errors import AnyrigError, UsageError
from anyrig.topology.plan import DevicePlan, share_memory
from anyrig.train.nonfinite import GoBack
from anyrig.train.step.engine import Engine
from anyrig.train.step.exhausted import OutOfMemory

CHOICES = ("split", "raise")
MOST_DOUBLINGS = 3  # in one run


class Remake(Protocol):
    """Makes the engine of the same model anew."""

    def __call__(self, virtual_replicas: int, *, in_turn: bool) -> Engine:
        """Return the engine for V virtual replicas, which its devices work through one after another if `in_turn`."""


@dataclass(slots=True, kw_only=True)
class OutOfMemoryPolicy:
    """One run's choice. `forks` are the changes of V that its numbers have come through, wherever it is resumed.

    Each is {"step": the first step made with the new V, counted from 1, "from": V before, "to": V after}. `tell` is
    called with a sentence for people and with fields for the record.
    """

    choice: str
    remake: Remake
    forks: list[dict[str, int]] = field(default_factory=list)
    tell: Callable[..., None] = lambda message, **fields: None

    def __post_init__(self) -> None:
        if self.choice not in CHOICES:
            raise UsageError(
                "ANY-TRAIN-040",
                f"on_oom: expected one of {', '.join(CHOICES)}, found {self.choice!r}",
                hint='leave it at "split"',
            )

    def smaller(self, engine: Engine, batch: Batch, step: int, found: OutOfMemory) -> Engine:
        """Return an engine that needs less memory for step number `step` (from 0), which `engine` failed to make.

        Raises AnyrigError where there is none, or none is wanted.
        """
        plan, where = engine.plan, f"out of memory at step {step + 1:,}"
        if why := self._why_not(plan, count_rows(batch)):
            raise AnyrigError("ANY-TRAIN-041", f"{where} ({found}): {why}", hint=_hint(found))
        if share_memory(plan):
            self.tell(
                f"{where}: the devices share one memory, so they work in turn from here on; the numbers are the same",
                kind="in_turn",
                step=step + 1,
                reason=str(found),
            )
            return self.remake(plan.virtual_replicas, in_turn=True)
        return self._double(plan, step, where, found)

    def went_back(self, step: int) -> None:
        """Note that steps after number `step` (from 1) are made again, with the V that there is now."""
        self.forks = [{**fork, "step": min(fork["step"], step + 1)} for fork in self.forks]

    def _why_not(self, plan: DevicePlan, rows: int) -> str:
        """Return why the step cannot be made in smaller parts; "" where it can."""
        v = plan.virtual_replicas
        if not plan.divided:
            return "a model with a training step of its own cannot be divided"
        if self.choice == "raise":
            return 'on_oom is "raise"'
        if share_memory(plan):
            return ""
        if v >= rows:
            return f"each of the V = {v} virtual replicas has one row already"
        return f"V was doubled {MOST_DOUBLINGS} times already" if len(self.forks) >= MOST_DOUBLINGS else ""

    def _double(self, plan: DevicePlan, step: int, where: str, found: OutOfMemory) -> Engine:
        v = plan.virtual_replicas
        try:
            engine = self.remake(2 * v, in_turn=plan.in_turn)
        except UsageError as error:
            why = f"the model cannot be divided into V = {2 * v}: {error.message}"
            raise AnyrigError("ANY-TRAIN-041", f"{where} ({found}): {why}", hint=_hint(found)) from error
        self.forks.append({"step": step + 1, "from": v, "to": 2 * v})
        self.tell(
            f"{where}: V {v} -> {2 * v}, the numbers from here on are those of V = {2 * v}",
            kind="fork",
            step=step + 1,
            reason=str(found),
            virtual_replicas=[v, 2 * v],
        )
        return engine


def back_to_committed(step: int, found: OutOfMemory) -> GoBack:
    """Return what to raise when the update of step number `step` (from 0) was half made."""
    what = (
        f"out of memory at step {step + 1:,} ({found}) in the middle of its update, and there is no checkpoint to go "
        "back to: the model in memory is of no use"
    )
    return GoBack(AnyrigError("ANY-TRAIN-042", what, hint=_hint(found)))


def _hint(found: OutOfMemory) -> str:
    hint = "take a smaller global batch, a lower precision (mixed_bfloat16), a smaller model, or more devices"
    if found.half_made:
        hint += "; the update of this step was half made, so go on from the newest checkpoint, not from this model"
    return hint
