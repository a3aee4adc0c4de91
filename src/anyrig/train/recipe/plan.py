"""What a recipe will do on the devices of this machine, before it does it: pure data and its text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from anyrig.store.retain import Keep
from anyrig.topology.plan import DEFAULT_PRECISION, DevicePlan, Precision, count, describe, device_plan, split_rows
from anyrig.train.every import Every
from anyrig.train.keeping import describe_keep
from anyrig.train.recipe.schema import BatchRules, Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Devices, batches and checkpoints of a whole run; row counts are of the training and validation data."""

    devices: DevicePlan
    global_size: int
    rows: int
    validation_rows: int | None
    epochs: int
    every: Every
    keep: Keep

    @property
    def steps_per_epoch(self) -> int:
        """Global batches of one epoch, the uneven last one included."""
        return -(-self.rows // self.global_size)


def plan_run(
    recipe: Recipe,
    devices: Sequence[str],
    *,
    rows: int,
    validation_rows: int | None,
    requested: int | str | None = None,
    precision: Precision = DEFAULT_PRECISION,
) -> RunPlan:
    """Return what `recipe` does on `devices` (TensorFlow names) with that many rows."""
    global_size, replicas = batch_on(recipe.batch, len(devices))
    return RunPlan(
        devices=device_plan(devices, replicas, requested=requested, precision=precision),
        global_size=global_size,
        rows=rows,
        validation_rows=validation_rows,
        epochs=recipe.total_epochs,
        every=recipe.checkpoint.interval,
        keep=recipe.checkpoint.keep,
    )


def batch_on(rules: BatchRules, devices: int) -> tuple[int, int | None]:
    """Return (global size, V) on that many devices; V is None where the recipe leaves it to the devices."""
    if rules.per_device is not None:
        return rules.per_device * devices, rules.virtual_replicas
    assert rules.global_size is not None  # the recipe has a default
    return rules.global_size, rules.virtual_replicas


def describe_run(plan: RunPlan) -> str:
    """Return the plan as aligned lines for people."""
    lines = [describe(plan.devices, plan.global_size), "batches"]
    lines += [f"  {label:<18} {text}" for label, text in _batches(plan)]
    lines += ["checkpoints"]
    lines += [f"  {label:<18} {text}" for label, text in _checkpoints(plan)]
    return "\n".join(lines)


def _batches(plan: RunPlan) -> Iterator[tuple[str, str]]:
    validation = "" if plan.validation_rows is None else f", {count(plan.validation_rows, 'row')} of validation data"
    yield "rows", f"{plan.rows:,} to train on{validation}"
    full, last = divmod(plan.rows, plan.global_size)
    v = plan.devices.virtual_replicas
    if full:
        split = _split(plan.global_size, v)
        yield "full batches", f"{full:,} of {plan.global_size:,} rows per epoch; virtual replicas get {split}"
    if last:
        yield "last batch", f"{last:,} rows; virtual replicas get {_split(last, v)}"
    total = plan.steps_per_epoch * plan.epochs
    yield "steps", f"{count(plan.steps_per_epoch, 'step')} per epoch, {total:,} in {count(plan.epochs, 'epoch')}"


def _split(rows: int, v: int) -> str:
    """Return "43 rows x 4, 42 rows x 2"."""
    sizes = groupby(split_rows(rows, v))
    return ", ".join(f"{count(size, 'row')} x {len(list(same))}" for size, same in sizes)


def _checkpoints(plan: RunPlan) -> Iterator[tuple[str, str]]:
    often = "as often as it costs at most 2 % of the time" if plan.every.unit == "auto" else f"every {plan.every}"
    yield "saved", f"{often}, when the run is asked to stop (SIGTERM, Ctrl-C), and at the end"
    yield "holds", "weights, optimizer, metrics, position in the data: a run goes on from it on any devices"
    yield "kept", describe_keep(plan.keep)
