"""What a mapping is: which stored tensors fill which variables, why, and what could not be decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from anyrig.formats.contents import FileTensor
from anyrig.mapping.layout import Step
from anyrig.state.wanted import Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor as it can be mapped: one tensor of a file, or the parts of a partitioned variable joined along `axis`.

    `shape` and `dtype` (safetensors spelling) are those of the whole; `place` see `FileTensor`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    tensors: tuple[FileTensor, ...]
    axis: int = 0
    aliases: tuple[str, ...] = ()
    place: str | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """`stored`, after `steps`, fills `wanted`. `rule` names the reason, `why` says it; `confidence` is in (0, 1]."""

    stored: Stored
    wanted: Wanted
    rule: str
    why: str
    confidence: float
    steps: tuple[Step, ...] = ()

    @property
    def cast(self) -> bool:
        """Whether the numbers are converted to another type."""
        return self.stored.dtype != self.wanted.dtype


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """Variables that any of the stored tensors could fill: nothing tells which, so none is filled."""

    wanted: tuple[Wanted, ...]
    stored: tuple[Stored, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Misfit:
    """A stored tensor that belongs to `wanted` by its name and does not fit; `cause` is an entry of the catalogue."""

    stored: Stored
    wanted: Wanted
    cause: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """Which stored tensor fills which variable.

    Every wanted variable is in exactly one of `pairs`, `ambiguous`, `misfits`, `kept` (keeps its initial value because
    a rule says so) and `missing`; every stored tensor in `pairs`, `ambiguous`, `misfits`, `dropped` (a rule says so)
    or `unused`.
    """

    pairs: tuple[Pair, ...] = ()
    ambiguous: tuple[Ambiguous, ...] = ()
    misfits: tuple[Misfit, ...] = ()
    missing: tuple[Wanted, ...] = ()
    unused: tuple[Stored, ...] = ()
    kept: tuple[Wanted, ...] = ()
    dropped: tuple[Stored, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every variable is filled or meant to keep its value, and every stored tensor used or dropped."""
        return not (self.ambiguous or self.misfits or self.missing or self.unused)
