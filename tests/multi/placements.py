"""Where the operations of a traced step's apply stage were placed, compared with the owners of what they update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from anyrig.train.step.placement import home

LARGE = 64  # elements: kernels, not biases
_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
_STOP = (
    "EnsureShape",
    "Placeholder",
    "ReadVariableOp",
    "PartitionedCall",
    "StatefulPartitionedCall",
    "If",
    "StatelessIf",
)


def large_updates(graph: Any) -> Iterator[tuple[Any, str, list[Any]]]:
    """Yield each assignment to a large variable, the variable's device, and the operations that make its value.

    They are followed as far as they are as large as the variable, in this graph and in the branches it holds, but not
    in the micro-batch.
    """
    for operation in graph.get_operations():
        if operation.type in _ASSIGNMENTS and (size := operation.inputs[1].shape.num_elements() or 0) >= LARGE:
            yield operation, home(operation.inputs[0]), list(_work_for(operation, size))
    for inner in graph._functions.values():
        if "micro" not in str(getattr(inner, "name", "micro")):
            yield from large_updates(inner.graph)


def misplaced(graph: Any) -> tuple[int, list[list[str]]]:
    """Return how many operations were looked at, and those that are not on their variable's device."""
    pairs = [(work, device) for _, device, works in large_updates(graph) for work in works if work.type != "Const"]
    apart = [(work, device) for work, device in pairs if _short(work.device) != _short(device)]
    return len(pairs), [[work.name, work.type, work.device, device] for work, device in apart]


def _work_for(operation: Any, size: int) -> Iterator[Any]:
    pending, seen = [operation], set()
    while pending:
        work = pending.pop()
        if id(work) in seen:
            continue
        seen.add(id(work))
        yield work
        large = (t for t in work.inputs if t.dtype != "resource" and t.shape.num_elements() == size)
        pending += [tensor.op for tensor in large if tensor.op.type not in _STOP]


def _short(device: str) -> str:
    return device.rpartition("device:")[2]
