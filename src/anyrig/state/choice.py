"""What a load was asked for: which tensors take part, and which differences are allowed. Pure: names and types only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from anyrig.errors import AnyrigError, UsageError
from anyrig.state.compare import Spec

SLOTS = ("strict", "partial")
_FLOAT = re.compile(r"b?float\d")
_NOT_OURS = "not part of the model; for the training loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Settings of one load, as `anyrig.load` documents them; patterns are those of `fnmatch`."""

    weights_only: bool = False
    metrics: bool = True
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    strict: bool = True
    optimizer: bool = True
    slots: str = "strict"
    cast: bool | Mapping[str, str] = False

    def __post_init__(self) -> None:
        if self.slots not in SLOTS:
            raise UsageError(
                "ANY-STATE-014", f"slots: expected strict or partial, found {self.slots!r}", hint='use slots="partial"'
            )
        if not isinstance(self.cast, bool | Mapping):
            raise UsageError(
                "ANY-STATE-014",
                f"cast: expected True, False or a mapping of patterns to types, found {self.cast!r}",
                hint='use cast=True, or e.g. cast={"model/*": "float32"}',
            )

    @property
    def groups(self) -> frozenset[str]:
        """The first parts of the names that take part."""
        if self.weights_only:
            return frozenset({"model"})
        training = {"optimizer", "ema"} if self.optimizer else set()
        return frozenset({"model", *training} | ({"metrics"} if self.metrics else set()))

    def why_not(self, name: str, aliases: Sequence[str] = ()) -> str | None:
        """Say why a tensor takes no part; None when it does."""
        group = name.partition("/")[0]
        if group not in ("model", "optimizer", "ema", "metrics"):
            return _NOT_OURS
        if group not in self.groups:
            return "not asked for"
        known = (name, *aliases)
        if self.include and not _any_fits(known, self.include):
            return "not included"
        return "excluded" if _any_fits(known, self.exclude) else None

    def refuse_idle_patterns(self, specs: Iterable[Spec]) -> None:
        """Raise ANY-STATE-015 for a pattern that no stored and no wanted tensor fits: most likely it is mistyped."""
        known = [(spec.name, *spec.aliases) for spec in specs]
        for pattern in (*self.include, *self.exclude, *(self.cast if isinstance(self.cast, Mapping) else ())):
            if not any(_any_fits(names, [pattern]) for names in known):
                raise UsageError(
                    "ANY-STATE-015",
                    f"no tensor of the checkpoint or the model fits the pattern {pattern!r}; nothing was changed",
                    hint="list the names with: anyrig inspect PATH --tensors (model/..., optimizer/...)",
                )

    def casts(self, stored: Spec, wanted: Spec) -> bool:
        """Tell whether the stored type may be converted to the wanted one."""
        if stored.dtype is None or wanted.dtype is None:
            return False
        if isinstance(self.cast, Mapping):
            known = (stored.name, *stored.aliases)
            return any(_any_fits(known, [pattern]) and to == wanted.dtype for pattern, to in self.cast.items())
        return self.cast and bool(_FLOAT.match(stored.dtype) and _FLOAT.match(wanted.dtype))


def convert(name: str, array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return `array` in another type: floats rounded to the nearest, anything else unchanged in value.

    Raises ANY-STATE-016 if a number would become infinite or, where one of the types is no float, another number.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(dtype)
        floats = _FLOAT.match(array.dtype.name) and _FLOAT.match(dtype.name)
        if floats:
            kept = all(bool((same(result) == same(array)).all()) for same in (np.isnan, np.isinf))
        else:  # to and fro is the same also where it wraps around, but then the sign is another
            kept = bool(((result.astype(array.dtype) == array) & ((result.real < 0) == (array.real < 0))).all())
    if not kept:
        raise AnyrigError(
            "ANY-STATE-016",
            f"{name} cannot be converted from {array.dtype.name} to {dtype.name}: some of its numbers do not fit; "
            "nothing was changed",
            hint="build the model with a type that holds them, or leave the tensor out with exclude=",
        )
    return result


def _any_fits(known: Iterable[str], patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in known for pattern in patterns)
