"""What a user sets about checkpoints: where, how often, how many stay."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Literal, Protocol

from anyrig.errors import UsageError
from anyrig.sizes import parse_size
from anyrig.store.plan import BY_SIZE, Shards, shards_of
from anyrig.store.retain import Keep
from anyrig.train.every import Every, parse_every

MODES = ("auto", "min", "max")
# What Keras's own losses and metrics are called, by its `_direction` of each; of other names the user has to say it.
_DOWN = re.compile(r"(.+_)?(loss|error|mse|mae|mape|msle|crossentropy|kl_divergence|hinge)")
_UP = re.compile(r"(.+_)?(accuracy|acc|auc|precision|recall|cosine_similarity|r2_score|iou)|(.*_)?f(1|beta)_score")


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Where, how often, and how many: what `anyrig.Checkpoint` and a recipe's `checkpoint` say. No TensorFlow.

    `every` is "n steps", "n epochs", "n minutes", or "auto": as often as costs at most 2 % of the time. A save is also
    made when a signal stops the run, and at the end. Of the checkpoints stay: the newest `keep_last` (None: all), the
    `keep_best` (1 where `monitor` is set) by an epoch's metric `monitor` (`mode`: "min", "max", or "auto" where the
    name tells), those whose step `keep_every` divides, and pinned ones. `max_total_size` bounds their bytes, `min_free`
    is what is left free on the disk ("20 GB", or bytes): both come before `keep_last`, `keep_every` and `keep_best`. A
    data file holds at most `max_shard_size`, or one larger tensor; `split="layer"` gives each layer files of its own.
    """

    directory: str | os.PathLike[str] | None = None
    every: str = field(default="1 epoch", kw_only=True)
    keep_last: int | None = field(default=3, kw_only=True)
    keep_best: int | None = field(default=None, kw_only=True)
    monitor: str | None = field(default=None, kw_only=True)
    mode: str = field(default="auto", kw_only=True)
    keep_every: int | None = field(default=None, kw_only=True)
    max_total_size: int | str | None = field(default=None, kw_only=True)
    min_free: int | str | None = field(default=None, kw_only=True)
    max_shard_size: int | str = field(default=BY_SIZE.max_bytes, kw_only=True)
    split: str = field(default="size", kw_only=True)

    def __post_init__(self) -> None:
        try:
            parse_every(self.every)
            self.keep, self.shards  # noqa: B018 - to see whether they can be understood
        except ValueError as error:
            raise UsageError("ANY-RUN-001", f"checkpoint: {error}", hint=self._example(str(error))) from error

    def _example(self, problem: str) -> str:
        """Return settings that would do, for the one that the problem begins with."""
        name = problem.partition(":")[0].partition("=")[0]
        metric = self.monitor or "val_loss"
        return {
            "mode": f'correct the name of the metric, or say it: Checkpoint(monitor="{metric}", mode="max")',
            "keep_best": f'e.g. Checkpoint(monitor="{metric}", keep_best=1)',
            "max_total_size": 'e.g. Checkpoint(max_total_size="20 GB")',
            "min_free": 'e.g. Checkpoint(min_free="20 GB")',
            "max_shard_size": 'e.g. Checkpoint(max_shard_size="2 GB")',
            "split": 'e.g. Checkpoint(split="layer")',
        }.get(name, 'e.g. Checkpoint(every="1 epoch", keep_last=3)')

    @property
    def interval(self) -> Every:
        """`every`, parsed."""
        return parse_every(self.every)

    @property
    def shards(self) -> Shards:
        """How tensors are shared out over files; raises ValueError for settings that make no sense."""
        return shards_of(self.max_shard_size, self.split)

    @property
    def keep(self) -> Keep:
        """The retention rule; raises ValueError for settings that make no sense."""
        return keep_rule(
            last=self.keep_last,
            best=self.keep_best,
            monitor=self.monitor,
            mode=self.mode,
            every=self.keep_every,
            max_total_size=self.max_total_size,
            min_free=self.min_free,
        )


class HoldsSettings(Protocol):
    """`anyrig.Checkpoint`, of which only the settings count here."""

    @property
    def settings(self) -> CheckpointSettings:
        """What it was given."""
        ...


def settings_of(checkpoint: HoldsSettings | CheckpointSettings | None) -> CheckpointSettings:
    """Return the settings of a callback or the settings themselves; the default ones for None."""
    if checkpoint is None or isinstance(checkpoint, CheckpointSettings):
        return checkpoint or CheckpointSettings()
    return checkpoint.settings


def keep_rule(
    *,
    last: int | None,
    best: int | None,
    monitor: str | None,
    mode: str,
    every: int | None,
    max_total_size: int | str | None,
    min_free: int | str | None,
) -> Keep:
    """Return the retention rule that these settings mean; raise ValueError for what makes no sense."""
    return Keep(
        last=last,
        best=(1 if monitor else 0) if best is None else best,
        monitor=monitor,
        mode=mode_of(monitor, mode),
        every=every,
        max_total_size=None if max_total_size is None else _size("max_total_size", max_total_size),
        min_free=None if min_free is None else _size("min_free", min_free),
    )


def mode_of(monitor: str | None, mode: str) -> Literal["min", "max"]:
    """Return whether smaller or larger is better; "auto" is told by the names that Keras gives, and by no others."""
    if mode not in MODES:
        raise ValueError(f"mode: expected {', '.join(MODES)}, found {mode!r}")
    if mode in ("min", "max"):
        return "min" if mode == "min" else "max"
    name = re.sub(r"_\d+$", "", (monitor or "loss").removeprefix("val_"))
    if _DOWN.fullmatch(name):
        return "min"
    if _UP.fullmatch(name):
        return "max"
    raise ValueError(f"mode: whether a small or a large {monitor} is better is not known; give mode 'min' or 'max'")


def _size(name: str, value: int | str) -> int:
    try:
        return parse_size(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
