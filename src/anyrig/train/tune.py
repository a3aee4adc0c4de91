"""The learning-rate range test: train while the learning rate rises, and look where the loss falls and where it breaks.

After L. N. Smith, "Cyclical Learning Rates for Training Neural Networks" (2015). It trains by the same engine as
`rig.fit`, so its numbers do not depend on the number of devices. Nothing is saved, and the model is not to be used
afterwards: build it for the test and throw it away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import keras

from anyrig.errors import AnyrigError, UsageError
from anyrig.topology.plan import count

if TYPE_CHECKING:
    from anyrig.train.rig import Rig

SMOOTHING = 0.9  # of the exponential mean of losses
DIVERGED = 4.0  # times the lowest smoothed loss
_EDGE = 5  # steps of which the mean is one of few losses; no slope is read there


@dataclass(frozen=True, slots=True)
class RateTest:
    """What was measured: a learning rate, the loss of its step, and the smoothed loss, for each step.

    What is read from it is None where the loss never fell.
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    diverged: bool
    notes: tuple[str, ...] = ()

    @property
    def lowest(self) -> float | None:
        """The learning rate at the lowest smoothed loss."""
        return None if self.steepest is None else self.rates[_lowest(self.smoothed)]

    @property
    def steepest(self) -> float | None:
        """The learning rate where the smoothed loss falls fastest over the logarithm of the rate."""
        falling = range(_EDGE, _lowest(self.smoothed))
        slopes = [(self.smoothed[i + 1] - self.smoothed[i - 1], i) for i in falling]
        slope, index = min(slopes, default=(0.0, 0))
        return self.rates[index] if slope < 0 else None

    @property
    def suggested(self) -> float | None:
        """The lower of the steepest rate and a tenth of the lowest one, in two digits."""
        if self.steepest is None or self.lowest is None:
            return None
        return float(f"{min(self.steepest, self.lowest / 10):.1e}")

    def as_json(self) -> dict[str, Any]:
        """Return all as JSON values."""
        found = {"steepest": self.steepest, "lowest": self.lowest, "suggested": self.suggested}
        return {**found, **asdict(self)}

    def __str__(self) -> str:
        ended = "then the loss diverged" if self.diverged else "and the loss did not diverge"
        lines = [
            *self.notes,
            f"{count(len(self.rates), 'step')} at {self.rates[0]:.1e} to {self.rates[-1]:.1e}, {ended}",
        ]
        if self.steepest is None or self.lowest is None:
            return "\n".join([*lines, "the loss never fell: look at the data and the loss, or try lower rates"])
        return "\n".join(
            [
                *lines,
                f"steepest fall    at {self.steepest:.1e}",
                f"lowest loss      at {self.lowest:.1e}, a tenth of which is {self.lowest / 10:.1e}",
                f"suggested        {self.suggested:.1e}, the lower of the two",
            ]
        )


def rates(lowest: float, highest: float, steps: int) -> list[float]:
    """Return `steps` learning rates from `lowest` to `highest`, each the same factor above the one before."""
    if not (0 < lowest < highest < math.inf and steps >= 2):
        raise UsageError(
            "ANY-TUNE-001",
            f"expected 0 < lowest < highest and at least 2 steps, found {lowest:g}, {highest:g} and {steps}",
            hint="e.g. --min 1e-7 --max 10 --steps 100",
        )
    return [lowest * (highest / lowest) ** (step / (steps - 1)) for step in range(steps)]


def smooth(losses: Sequence[float]) -> list[float]:
    """Return the exponential mean after each loss, corrected for having begun at zero."""
    means, mean = [], 0.0
    for index, loss in enumerate(losses, start=1):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        means.append(mean / (1 - SMOOTHING**index))
    return means


def tune_lr(
    rig: Rig,
    build_model: Callable[[], keras.Model],
    x: Any,
    y: Any = None,
    *,
    lowest: float = 1e-7,
    highest: float = 10.0,
    steps: int = 100,
    **fit: Any,
) -> RateTest:
    """Train a model on `x` and `y` while its learning rate rises from `lowest` to `highest` over `steps` steps.

    `build_model` returns it compiled; it is thrown away afterwards. `fit` are arguments of `rig.fit` (`batch`,
    `sample_weight`, ...). The test ends early when the smoothed loss is above four times its lowest, or not finite.
    """
    rising = rates(lowest, highest, steps)
    model = rig.build(build_model)
    set_rate, notes = _rate_setter(model.optimizer)
    raising = _Raise(rising, set_rate)
    try:
        rig.fit(model, x, y, epochs=steps, verbose=0, callbacks=[raising], **fit)
    except AnyrigError as error:
        if error.code != "ANY-TRAIN-017" or not raising.losses:  # not finite at the first rate: it is not the rate
            raise
        raising.diverged = True
    tried = tuple(rising[: len(raising.losses)])
    return RateTest(tried, tuple(raising.losses), tuple(smooth(raising.losses)), raising.diverged, notes)


def _rate_setter(optimizer: Any) -> tuple[Callable[[float], None], tuple[str, ...]]:
    """Return what sets the learning rate, and what has to be said; a schedule gives way to a variable."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(inner._learning_rate, keras.Variable):
        return lambda rate: setattr(optimizer, "learning_rate", rate), ()
    kind = type(inner._learning_rate).__name__
    variable = keras.Variable(0.0, trainable=False, name="tried_learning_rate")
    optimizer.learning_rate = lambda: variable.value
    return variable.assign, (f"for the test, the schedule {kind} gave way to the rising learning rate",)


class _Raise(keras.callbacks.Callback):
    """Sets the learning rate of each step, keeps its loss, and ends training when it breaks or all rates are tried."""

    def __init__(self, rising: Sequence[float], set_rate: Callable[[float], None]) -> None:
        super().__init__()
        self._rising = rising
        self._set_rate = set_rate
        self.losses: list[float] = []
        self.diverged = False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate, and let the loss that is logged be that of this step alone."""
        self._set_rate(self._rising[len(self.losses)])
        self.model.reset_metrics()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep the loss; end if it broke, or after the last rate."""
        self.losses.append(float((logs or {})["loss"]))
        self.diverged = has_diverged(smooth(self.losses))
        self.model.stop_training = self.diverged or len(self.losses) == len(self._rising)


def has_diverged(smoothed: Sequence[float]) -> bool:
    """Tell whether the last smoothed loss is not finite or above four times the lowest one."""
    best = smoothed[_lowest(smoothed)]
    return not smoothed[-1] <= best + (DIVERGED - 1) * abs(best)


def _lowest(smoothed: Sequence[float]) -> int:
    return min(range(len(smoothed)), key=lambda i: smoothed[i] if math.isfinite(smoothed[i]) else math.inf)
