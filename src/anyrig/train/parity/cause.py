"""Says where a difference began and why, from two passes over the same steps. Pure: facts in, words out.

The first pass found the step. The second one trained again and looked into that step (`probe.py`): if it came out
otherwise on the same devices, the devices are not the reason; else the first thing that differs is where it began.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anyrig import names
from anyrig.train.parity.children import Outcome
from anyrig.train.parity.compare import first_step
from anyrig.train.parity.report import Origin, Report

_OUTSIDE = (
    "two runs on the same devices differ too, so the devices are not the reason: something has other values in every "
    "process (the time, the order of a set, a shuffle or random numbers without a seed, an operation that is not "
    "deterministic)"
)
_DEPENDS = "depends on the number of devices, or on something outside the run's seed"


def origin(report: Report, first: Mapping[int, Outcome], second: Mapping[int, Outcome]) -> Origin:
    """Return where the differences of `report` began, from the outcomes of both passes by device count."""
    step = first_step(report)
    layer, cause = _began(report, step, {devices: outcome.facts for devices, outcome in second.items()})
    if not report.promised:
        cause = (
            "each device runs the model's step whole on its own rows (it has its own train_step, or the strategy is "
            "mirrored), as under Keras's MirroredStrategy: random numbers and the order of sums depend on the devices"
        )
    elif any(again.states and again.states != first[devices].states for devices, again in second.items()):
        cause = f"{cause}; {_OUTSIDE}"
    return Origin(step=step, layer=layer, cause=cause)


def _began(report: Report, step: int, facts: Mapping[int, Mapping[str, Any]]) -> tuple[str | None, str]:
    """Return the layer (None: no single one) and the cause."""
    at_first = [tensor.name for tensor in report.differing if tensor.first_step == step]
    layer = _layer(at_first[0])
    if step == 0:
        return layer, f"the initial weights differ: the model function or an initializer {_DEPENDS}"
    if all(name.startswith(("metrics/", "history/")) for name in at_first):
        metrics = ", ".join(dict.fromkeys(names.split(name)[1] for name in at_first))
        return None, f"only what is logged differs ({metrics}): what they compute {_DEPENDS}"
    if not all(facts.values()) or any("failed" in found for found in facts.values()):
        reasons = [found["failed"] for found in facts.values() if "failed" in found]
        return layer, "; ".join(["not found: the step could not be looked into", *reasons[:1]])
    reference, *others = facts.values()
    for other in others:
        if (found := _first_difference(reference, other)) is not None:
            return found
    return layer, (
        "not in the layers: outputs, loss and gradients of each micro-batch alone are the same on all device counts. "
        "What is left is the update (the optimizer, clipping, a constraint), and rounding in sums"
    )


def _first_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str | None, str] | None:
    if one["batch"] != other["batch"]:
        return None, "the data: the step is given other rows; give shuffles and random maps of the input a seed"
    for mine, theirs in zip(one["calls"], other["calls"], strict=False):
        if mine != theirs:
            return _of_call(mine, theirs)
    if one["loss"] != other["loss"]:
        return None, f"the loss has other values for the same outputs of the model: what it computes {_DEPENDS}"
    for name in one["moved"]:
        if one["moved"][name] != other["moved"].get(name):
            return _layer(name), f"the layer moves its own state {name} differently: what it assigns {_DEPENDS}"
    differing = [name for name in one["gradients"] if one["gradients"][name] != other["gradients"].get(name)]
    if differing:
        return _layer(differing[-1]), (
            f"the gradient of {differing[-1]} differs though all outputs are the same: a custom gradient in this "
            f"layer, or in one right after it, {_DEPENDS}"
        )
    return None


def _of_call(mine: list[str], theirs: list[str]) -> tuple[str | None, str]:
    (kind, label, caller, _), (other_kind, other_label, *_) = mine, theirs
    if (kind, label) != (other_kind, other_label):
        return caller, f"it calls other layers ({label}, {other_label}): which ones {_DEPENDS}"
    if kind == "in":
        return caller, f"it gives {label} other inputs though its own are the same: what it computes before {_DEPENDS}"
    if "your own class" in label:
        return label, f"its call gives other outputs for the same inputs and weights: what it computes {_DEPENDS}"
    return label, "it gives other outputs for the same inputs and weights: rounding in its operations"


def _layer(name: str) -> str:
    """Return the path of the layer of `model/<layer>/<variable>`, or the group and optimizer slot as they are."""
    parts = name.split("/")
    return "/".join(parts[1:-1]) if parts[0] == "model" else name
