"""Write docs/performance.md and its plot from docs/measured/train.json and store.json; nothing is measured here."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
MEASURED = DOCS / "measured"
PAGE, PLOT = DOCS / "performance.md", DOCS / "performance.png"
MODELS = {"cnn": "small CNN", "mobilenet": "MobileNetV2, 96 px", "mlp": "MLP of 50 M", "transformer": "Transformer"}
INTRODUCTION = """<!-- Written by bench/page.py from docs/measured/; do not edit. -->

# Performance

Measured side by side in one run each, in turns; medians, as ratios. Only ratios within one run mean anything: other
machines have other seconds. `make bench-train` and `make bench-store` measure anew and write this page."""
TRAINING = """## Training

`Rig.fit` against Keras's `fit` and a hand-written `tf.function` loop: rows per second, peak memory and the first step
(tracing included). Float32, `jit_compile=False`, Adam; devices are logical ones of one processor."""
STORING = """## Saving and loading

The state is a Keras model of 64 square layers with Adam's slots (386 tensors), elsewhere arrays of the same shapes.
It was {made_on} `pause` is how long training waits for a save; `save` ends when all is on the disk: a flush follows
what does not flush itself. Loads come from the page cache; *load and predict* and *load and train* end with the first
batch after the load, so that pages that are read late count."""

LISTING = """## Listing a checkpoint of TensorFlow

`anyrig inspect` of a `tf.train.Checkpoint` of {gib:.1f} GiB, against a process that calls `tf.train.list_variables`:
both from start to end. It was {made_on} (`make bench-inspect`)"""


def page(train: Mapping[str, Any], store: Mapping[str, Any]) -> str:
    """Return the text of the page."""
    parts = [
        INTRODUCTION,
        TRAINING,
        training(train),
        *(f"{MODELS[name]}: {made_on(found)}" for name, found in train.items()),
    ]
    parts += [STORING.format(made_on=made_on(store)), "![Seconds to save and load 1 GiB](performance.png)"]
    for run in store["runs"]:
        parts += [f"### {run['gib']:g} GiB, {run['on']}", seconds(run["seconds"]), goals(run["ratios"])]
    if "others" in store:
        parts += ["### Beside training, and looking", goals(store["others"])]
    if (listing := MEASURED / "inspect.json").exists():
        found = json.loads(listing.read_text(encoding="utf-8"))
        parts += [LISTING.format(gib=found["bytes"] / 2**30, made_on=made_on(found)), goals(found["ratios"])]
    return "\n\n".join(parts) + "\n"


def made_on(report: Mapping[str, Any]) -> str:
    """Return on which machine, and how busy it was."""
    on = report["made_on"]
    note = f"; {on['note']}" if "note" in on else ""
    return f"made on {on['cpu']}, {on['cores']} cores, {on['date']}, load average {on['load']:.1f} at first{note}."


def training(models: Mapping[str, Any]) -> str:
    """Return one row for each ratio, one column for each model."""
    names = list(dict.fromkeys(what for model in models.values() for what, _, _ in model["ratios"]))
    by_model = [{what: (ratio, goal) for what, ratio, goal in model["ratios"]} for model in models.values()]
    rows = []
    for name in names:
        goal = next(found[name][1] for found in by_model if name in found)
        rows.append([name, goal, *(marked(*found[name]) if name in found else "" for found in by_model)])
    return grid(["ratio", "goal", *(MODELS[name] for name in models)], rows)


def seconds(times: Mapping[str, Mapping[str, float]]) -> str:
    """Return the milliseconds of each way."""
    keys = ("pause", "save", "load", "load and predict", "load and train")
    rows = (
        [way, *(f"{found[key] * 1000:,.1f}" if key in found else "" for key in keys)] for way, found in times.items()
    )
    return grid(["milliseconds", *keys], rows)


def goals(ratios: Iterable[Sequence[Any]]) -> str:
    """Return ratios beside their goals."""
    return grid(["ratio", "goal", "measured"], ([what, goal, marked(ratio, goal)] for what, ratio, goal in ratios))


def marked(ratio: float, goal: str) -> str:
    """Return a ratio, and whether it missed its goal."""
    return f"{ratio:.2f}" if reached(ratio, goal) else f"**{ratio:.2f}**, missed"


def reached(ratio: float, goal: str) -> bool:
    """Tell whether a ratio is as its goal, ">= n", "<= n" or "" (none), has it."""
    relation, _, number = goal.partition(" ")
    return not goal or (ratio >= float(number) if relation == ">=" else ratio <= float(number))


def machine() -> dict[str, Any]:
    """Return what a measurement says of the machine that it is made on."""
    from anyrig.environment import environment

    cores = len(os.sched_getaffinity(0))
    return {"cpu": environment()["cpu"], "cores": cores, "date": time.strftime("%Y-%m-%d"), "load": os.getloadavg()[0]}


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def stored() -> Iterator[Any]:
    """Yield what was measured last, of training and of storing."""
    for name in ("train", "store"):
        yield json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8"))


def plot(store: Mapping[str, Any], path: Path) -> None:
    """Draw seconds to save and to load 1 GiB (or the largest size there is), one bar for each way."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    runs = [run for run in store["runs"] if run["gib"] == 1] or store["runs"][-1:]
    figure, axes = plt.subplots(len(runs), 2, figsize=(11, 3.6 * len(runs)), squeeze=False, layout="constrained")
    for row, run in zip(axes, runs, strict=True):
        for axis, key in zip(row, ("save", "load"), strict=True):
            ways = {way: found[key] for way, found in run["seconds"].items() if key in found}
            if key == "load":
                ways.pop("memcpy", None)
            ordered = sorted(ways, key=lambda way: -ways[way])
            colors = ["#d1495b" if way.startswith("anyrig") else "#8d99ae" for way in ordered]
            bars = axis.barh(ordered, [ways[way] for way in ordered], color=colors)
            axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
            axis.set_title(f"{key} {run['gib']:g} GiB, {run['on']}: seconds", fontsize=10)
            axis.tick_params(labelsize=8)
            axis.spines[["top", "right"]].set_visible(False)
            axis.margins(x=0.12)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    of_train, of_store = stored()
    PAGE.write_text(page(of_train, of_store), encoding="utf-8")
    plot(of_store, PLOT)
