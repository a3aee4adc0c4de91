"""What a load did, tensor by tensor: from where it came, in which type, what was left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from anyrig.sizes import size

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class LoadedTensor:
    """One tensor of the checkpoint or the model.

    `source` is the file that it came from, or "the model's own value", or None for a stored one that was left unused;
    `cast` its types before and after where they differ; `why` a reason for all that is not plainly loaded.
    """

    name: str
    source: str | None
    cast: tuple[str, str] | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What a load did. `print(report)` shows a summary and everything unusual.

    `restored`: file of each tensor that was loaded, by name. `ignored`: stored tensors left unused, with the reason.
    `started`: variables that were asked for and are not stored, with the reason; they keep the value they have in the
    model, which for a new model is the initial one. `cast`: types before and after. `renamed`: stored names of those
    that were loaded under another. `bytes` were loaded in `seconds`. `progress` and `step` are what the checkpoint
    says; `notes` tell of versions that differ.
    """

    restored: Mapping[str, str]
    ignored: Mapping[str, str] = field(default_factory=dict)
    started: Mapping[str, str] = field(default_factory=dict)
    cast: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    bytes: int = 0
    seconds: float = 0.0
    source: str = "the checkpoint"
    step: int | None = None
    progress: Mapping[str, Any] = field(default_factory=dict)
    verified: str = "off"
    notes: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[LoadedTensor, ...]:
        """Every tensor of the checkpoint, and every one of the model that was asked for, sorted by name."""
        lines = [
            LoadedTensor(
                name, file, self.cast.get(name), f"stored as {self.renamed[name]}" if name in self.renamed else ""
            )
            for name, file in self.restored.items()
        ]
        lines += [LoadedTensor(name, None, why=why) for name, why in self.ignored.items()]
        lines += [LoadedTensor(name, "the model's own value", why=why) for name, why in self.started.items()]
        return tuple(sorted(lines, key=lambda line: line.name))

    @property
    def event(self) -> dict[str, object]:
        """The report as JSON values, without the list of what is loaded as it is."""
        return {
            "source": self.source,
            "tensors": len(self.restored),
            "bytes": self.bytes,
            "seconds": round(self.seconds, 4),
            "verified": self.verified,
            "cast": {name: " -> ".join(types) for name, types in self.cast.items()},
            "renamed": dict(self.renamed),
            "left": dict(self.ignored),
            "started": dict(self.started),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        step = f", step {self.step:,}" if self.step is not None else ""
        checked = {"full": "verified", "fast": "verified in part", "off": "not verified", "read": "all read"}[
            self.verified
        ]
        yield (
            f"loaded {len(self.restored):,} tensors, {size(self.bytes)}, from {self.source}{step} "
            f"in {self.seconds:.2f} s ({checked})"
        )
        yield from (f"  note: {note}" for note in self.notes)
        casts = Counter(self.cast.values())
        yield from (f"  cast from {old} to {new}: {count} tensors" for (old, new), count in casts.items())
        if self.renamed:
            some = [f"{stored} as {name}" for name, stored in self.renamed.items()]
            yield f"  renamed: {', '.join(some[:_SHOWN])}" + (
                f" and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
            )
        yield from _listed("not loaded", self.ignored)
        yield from _listed("not stored, keeps the model's own value", self.started)


def _listed(title: str, reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield each name with its reason; of a reason that many share, the number."""
    by_reason: dict[str, list[str]] = {}
    for name, why in reasons.items():
        by_reason.setdefault(why, []).append(name)
    for why, names in by_reason.items():
        yield f"  {title} ({why}): {', '.join(names[:_SHOWN])}" + (
            f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        )
