"""What manifests say of a run's checkpoints: metrics, bytes, the rule that they are kept by, and which is the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from anyrig.errors import UsageError
from anyrig.store.read import Checkpoint
from anyrig.store.retain import Keep, StepInfo, best_of


@dataclass(frozen=True, slots=True)
class Known:
    """What a manifest says of a step: its value of each metric, and its bytes."""

    step: int
    metrics: Mapping[str, Any]
    nbytes: int


def known_of(checkpoint: Checkpoint) -> Known:
    """Return what its manifest says of a checkpoint.

    Metrics are those of an epoch that was just over when it was saved. One saved in the middle of an epoch has none
    that are fresh, nor has one that the end of the training changed (best weights restored, averages taken over). A
    save that is no run's says by itself which metrics are its own.
    """
    progress = checkpoint.progress
    fresh = progress.get("boundary", "epoch") in ("epoch", "end") and not progress.get("changed_at_end")
    metrics = progress.get("metrics") if fresh else None
    nbytes = sum(entry.size for entry in checkpoint.manifest.files)
    return Known(checkpoint.step, metrics if isinstance(metrics, dict) else {}, nbytes)


def metric_of(metrics: Mapping[str, Any], monitor: str | None) -> float | None:
    """Return the value of the monitored metric as a number, None where there is none."""
    value = metrics.get(monitor) if monitor is not None else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def stored_rule(newest: Checkpoint | None) -> Keep | None:
    """Return the retention rule that the run was last trained with, as its newest checkpoint records it, if it does."""
    stored = newest.record.get("keep") if newest is not None else None
    known = {field.name for field in fields(Keep)}
    return Keep(**{name: value for name, value in stored.items() if name in known}) if stored else None


def best_step(committed: Sequence[Checkpoint]) -> int:
    """Return the best of a run's checkpoints, by the rule that its newest one records.

    Raises ANY-LOAD-018 where no metric was named, or no checkpoint has a value of it.
    """
    newest = max(committed, key=lambda checkpoint: checkpoint.step)
    keep = stored_rule(newest)
    if keep is None or keep.monitor is None:
        raise UsageError(
            "ANY-LOAD-018",
            f"{newest.path} does not say what is best: the run was trained without `monitor`.",
            hint='train with Checkpoint(monitor="val_loss"), or name a step: RUN/step-N',
        )
    known = [known_of(checkpoint) for checkpoint in committed]
    best = best_of(
        [StepInfo(item.step, metric_of(item.metrics, keep.monitor)) for item in known], replace(keep, best=1)
    )
    if not best:
        names = sorted({name for item in known for name in item.metrics})
        raise UsageError(
            "ANY-LOAD-018",
            f"no checkpoint in {newest.path.parent} has a value of {keep.monitor}, by which the run says what is best; "
            f"there are values of {', '.join(names) or 'no metric'}.",
            hint="name a step: RUN/step-N (anyrig ls RUN lists them)",
        )
    return best[0]
