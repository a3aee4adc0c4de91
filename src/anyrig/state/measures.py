"""Every variable of a model's metrics, once: `metrics/<metric name>/<variable>`.

The loss tracker is `metrics/loss`, a metric of one output of several is `<output>_<metric>` as in the logs, a weighted
metric whose name is taken is `weighted_<metric>`, and a metric that a layer holds is `<layer path>/<metric name>`.
Automatic names (of metrics and of output layers) are replaced as in `tree`. The `metrics` property, which users
override, is never called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from anyrig import names
from anyrig.state.automatic import is_automatic, snake_case
from anyrig.state.own import named_variables
from anyrig.state.tree import Held, PlacedLayer, distinct, graph_children


def named_metrics(model: keras.Model, layers: Sequence[PlacedLayer]) -> list[tuple[str, Any]]:
    """Return (name, variable) for every metric variable that exists now; unbuilt metrics have none yet."""
    metrics = distinct(_once(_compiled(model), _held_by_layers(layers)))
    variables = [(metric, held) for metric in metrics for held in _variables(metric)]
    return [(names.join("metrics", *metric.path, *held.path), held.value) for metric, held in variables]


def unbuilt(model: keras.Model) -> bool:
    """Say whether `compile` promised metrics or losses that see their first batch only later."""
    parts = [vars(model).get("_compile_metrics"), vars(model).get("_compile_loss")]
    return any(part is not None and not part.built for part in parts)


def _once(*groups: Iterator[Held]) -> Iterator[Held]:
    seen: set[int] = set()
    for group in groups:
        for held in group:
            if id(held.value) not in seen:
                seen.add(id(held.value))
                yield held


def _compiled(model: keras.Model) -> Iterator[Held]:
    attributes = vars(model)
    if attributes.get("_loss_tracker") is not None:
        yield Held(("loss",), attributes["_loss_tracker"])
    outputs = _output_names(model)
    taken: set[str] = set()
    compiled = attributes.get("_compile_metrics")
    if compiled is not None and compiled.built:
        for weighted, group in ((False, compiled._flat_metrics), (True, compiled._flat_weighted_metrics)):
            for name, metric in _grouped(group, outputs):
                shown = f"weighted_{name}" if weighted and name in taken else name
                taken.add(shown)
                yield Held((shown,), metric)
    loss = attributes.get("_compile_loss")
    for metric in loss._metrics if loss is not None else ():
        output = metric.name.removesuffix("_loss")
        yield Held((f"{outputs.get(output, output)}_loss",), metric)


def _grouped(groups: list[Any], outputs: dict[str, str]) -> Iterator[tuple[str, Any]]:
    for group in groups:
        output = getattr(group, "output_name", None)
        for metric in getattr(group, "metrics", ()) if group is not None else ():
            name = _name(metric)
            yield (f"{outputs.get(output, output)}_{name}" if output else name), metric


def _output_names(model: keras.Model) -> dict[str, str]:
    """Return what stands for the layer names by which Keras knows the outputs of a Functional model."""
    return {held.value.name: held.path[0] for held in graph_children(model)}


def _held_by_layers(layers: Sequence[PlacedLayer]) -> Iterator[Held]:
    for placed in layers:
        for metric in placed.layer._metrics:
            yield Held((*placed.path, _name(metric)), metric)


def _name(metric: Any) -> str:
    kind = type(metric).__name__
    return snake_case(kind) if is_automatic(metric.name, kind) else str(metric.name)


def _variables(metric: Held) -> list[Held]:
    own = named_variables(metric.value, metric.value._variables)
    inner = distinct([Held((_name(child),), child) for child in metric.value._metrics])
    below = [Held(child.path + held.path, held.value) for child in inner for held in _variables(child)]
    counts = Counter(id(held.value) for held in own)
    return distinct(own + [held for held in below if id(held.value) not in counts])
