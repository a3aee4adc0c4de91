"""Pairs a TensorFlow checkpoint of objects with a model by the paths under which TensorFlow saves its variables."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import keras
from tensorflow.python.checkpoint.graph_view import ObjectGraphView

from anyrig.formats.contents import FileTensor
from anyrig.mapping.result import Pair
from anyrig.mapping.sides import stored_side
from anyrig.state.wanted import Wanted

_MOST_PATHS = 16
_MOST_DEPTH = 64


def pairs_by_objects(model: keras.Model, tensors: Iterable[FileTensor], wanted: Mapping[int, Wanted]) -> list[Pair]:
    """Return a pair for every variable, if each has exactly one tensor of its shape under one of its paths; else none.

    `wanted` has the facts of each variable by `id`. The model may have been saved under any name, or as the root.
    """
    stored: dict[str, set[int]] = {}
    items = stored_side(tensor for tensor in tensors if tensor.role == "weight")
    for index, item in enumerate(items):
        for path in (item.name, *item.aliases):
            for name in {path, path.partition("/")[2]}:
                stored.setdefault(name, set()).add(index)
    pairs = []
    for number, paths in _paths(model, wanted.keys()).items():
        found = {index for path in paths for index in stored.get(path, ())}
        if len(found) != 1 or items[next(iter(found))].shape != wanted[number].shape:
            return []
        why = "TensorFlow finds both at the same place of the model"
        pairs.append(Pair(items[found.pop()], wanted[number], "object", why, 1.0))
    distinct = {pair.stored.name for pair in pairs}
    return pairs if len(pairs) == len(wanted) == len(distinct) else []


def _paths(model: keras.Model, wanted: Iterable[int]) -> dict[int, list[str]]:
    """Return the shortest paths from the model to each variable, by its `id`."""
    view, numbers = ObjectGraphView(model), set(wanted)
    found: dict[int, list[str]] = {}
    counts: dict[int, int] = {}
    waiting: deque[tuple[Any, str, frozenset[int]]] = deque([(model, "", frozenset())])
    while waiting:
        node, path, passed = waiting.popleft()
        counts[id(node)] = counts.get(id(node), 0) + 1
        if counts[id(node)] > _MOST_PATHS or len(passed) > _MOST_DEPTH:
            continue
        if id(node) in numbers:
            found.setdefault(id(node), []).append(path)
        for name, child in view.children(node).items():
            if id(child) not in passed:
                step = name.replace(".", "..").replace("/", ".S")
                waiting.append((child, f"{path}/{step}" if path else step, passed | {id(node)}))
    return found
