"""Plots, with matplotlib (the extra `report`). Nothing here needs a display or changes matplotlib's settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyrig.report.trackers import require


def require_matplotlib() -> Any:
    """Return matplotlib, or raise UsageError that names the extra."""
    return require("matplotlib", "report")


def plot_rates(
    path: Path,
    rates: Sequence[float],
    losses: Sequence[float],
    smoothed: Sequence[float],
    marks: Mapping[str, float | None],
) -> None:
    """Draw losses over learning rates into `path` (.png, .svg), with a line at each rate of `marks` that is there."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(rates, losses, color="0.75", linewidth=1, label="loss of each step")
    axes.plot(rates, smoothed, color="C0", linewidth=2, label="smoothed")
    for index, (name, rate) in enumerate(marks.items(), start=1):
        if rate is not None:
            axes.axvline(rate, color=f"C{index}", linestyle="--", label=f"{name}: {rate:.1e}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss", title="Learning-rate range test")
    axes.set_ylim(*_limits([loss for loss in smoothed if math.isfinite(loss)]))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def _limits(smoothed: Sequence[float]) -> tuple[float, float]:
    """Return the losses between which to draw: from below the lowest one to above where it fell from."""
    lowest = min(smoothed)
    highest = max(smoothed[: smoothed.index(lowest) + 1])
    room = 0.2 * (highest - lowest) or 1.0
    return lowest - room, highest + room
