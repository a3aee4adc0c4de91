"""Phases: fits that follow each other within one run, such as training a new head and then fine-tuning all layers.

Epochs and steps are counted on through the run; each phase has its own number of epochs, a fresh optimizer and
callbacks that begin afresh. A checkpoint lists the phases so far, the present one last, with the epoch each began at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from anyrig.errors import UsageError

Standing = Literal["begins", "goes on", "is over"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a `Run`: `epochs` of its own; which layers train, and how fast, if not as the builder left it.

    `freeze` and `unfreeze` are patterns of layer paths as `anyrig inspect` shows them (`backbone`, `dense.0`,
    `blocks/*`) or of Keras's layer names; a layer's own layers follow it. `freeze` wins. `learning_rate` replaces that
    of the compiled optimizer, schedules included.
    """

    epochs: int
    name: str
    freeze: Sequence[str] = ()
    unfreeze: Sequence[str] = ()
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        problem = None
        if type(self.epochs) is not int or self.epochs < 0:
            problem = f"epochs: expected a whole number, found {self.epochs!r}"
        elif self.learning_rate is not None and not self.learning_rate > 0:
            problem = f"learning_rate: expected a number above 0, found {self.learning_rate!r}"
        elif str in (type(self.freeze), type(self.unfreeze)):
            problem = "freeze and unfreeze are lists of patterns, and one is a single text"
        if problem:
            raise UsageError("ANY-RUN-034", f"phase {self.name}: {problem}", hint='e.g. freeze=["backbone"]')

    @property
    def changes_model(self) -> bool:
        """Whether the model is not trained as its builder left it."""
        return bool(self.freeze or self.unfreeze) or self.learning_rate is not None


def standing(stored: Sequence[dict[str, Any]], name: str | None) -> Standing:
    """Tell where phase `name` is in a run whose newest checkpoint lists the phases `stored`."""
    known = [phase["name"] for phase in stored]
    if name not in known:
        return "begins"
    return "goes on" if name == known[-1] else "is over"
