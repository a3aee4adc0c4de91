"""What a comparison over device counts found: pure data and its text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of the state (`model/...`, `optimizer/...`, `metrics/...`) over all device counts.

    What was logged for each epoch is one, too: `history/val_loss`.

    `first_step` is the number of steps after which it first differed (0: before training), None where it never did;
    `devices` the counts with other bytes than the first count; `largest` the largest absolute difference found.
    """

    name: str
    first_step: int | None = None
    devices: tuple[int, ...] = ()
    largest: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a difference began: `layer` is a path in the model (None: not in one layer), `cause` says why in words."""

    step: int
    layer: str | None
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A few steps of one model on several device counts. `str()` is the table for people.

    `steps` is how many were done; `problems` holds, for each device count that could not train, the error with which it
    ended. `promised` is False for a model of which equal bytes are not promised, because its step is run whole.
    """

    name: str
    virtual_replicas: int
    devices: tuple[int, ...]
    steps: int
    tensors: tuple[Tensor, ...] = ()
    origin: Origin | None = None
    problems: tuple[tuple[int, str], ...] = ()
    promised: bool = True
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """Whether it trained on every device count, and every tensor had the same bytes after every step."""
        return not self.problems and not self.differing and bool(self.tensors) and self.steps > 0

    @property
    def differing(self) -> tuple[Tensor, ...]:
        """The tensors that differ, in the model's order."""
        return tuple(tensor for tensor in self.tensors if tensor.first_step is not None)

    @property
    def refused(self) -> str | None:
        """The error with which every device count refused to train, if it is one and the same."""
        texts = {text for _, text in self.problems}
        return texts.pop() if len(texts) == 1 and len(self.problems) == len(self.devices) else None

    @property
    def trained(self) -> bool:
        """Whether at least one device count could train the model."""
        return len(self.problems) < len(self.devices)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values; a difference that is no finite number is null."""
        tensors = [{**asdict(t), "largest": t.largest if t.largest != math.inf else None} for t in self.tensors]
        return {"same": self.same, **asdict(self), "tensors": tensors}

    def __str__(self) -> str:
        where = f"on {_listed(self.devices)} devices, V = {self.virtual_replicas}"
        return "\n".join([f"{self.name}: {self._verdict(where)}", *self._details(), *self.notes])

    def _verdict(self, where: str) -> str:
        if not self.trained:
            return f"not trained ({where})"
        if self.problems:
            return f"trained on some device counts only ({where})"
        if self.same:
            tensors = sum(not tensor.name.startswith("history/") for tensor in self.tensors)
            return f"the same bytes in all {tensors} tensors after each of {self.steps} steps, the same logs ({where})"
        promise = "" if self.promised else "; equal bytes are not promised for a model with its own train_step"
        return f"{len(self.differing)} of {len(self.tensors)} tensors and logs differ ({where}){promise}"

    def _details(self) -> list[str]:
        if self.refused:
            return [_indented(self.refused)]
        lines = [_indented(f"on {devices} devices: {text}") for devices, text in self.problems]
        if self.differing:
            lines += _table(self.tensors, self.devices[0])
        if self.origin:
            at = f"at step {self.origin.step}" if self.origin.step else "before the first step"
            layer = f", in {self.origin.layer}" if self.origin.layer else ""
            lines += [f"  began         {at}{layer}", f"  likely cause  {self.origin.cause}"]
        return lines


def _table(tensors: Sequence[Tensor], reference: int) -> list[str]:
    header = ("tensor", "bytes", "since step", "largest difference", f"against {reference} on")
    rows = [header, *(_row(tensor) for tensor in tensors)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _row(tensor: Tensor) -> tuple[str, ...]:
    if tensor.first_step is None:
        return tensor.name, "same", "", "", ""
    largest = "not measured" if tensor.largest is None else f"{tensor.largest:.3g}"
    return tensor.name, "differ", str(tensor.first_step), largest, f"{_listed(tensor.devices)} devices"


def _listed(numbers: Sequence[int]) -> str:
    """Return "1, 2 and 4"."""
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
