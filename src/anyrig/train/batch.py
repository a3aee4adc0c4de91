"""The batch rules of a run: how many rows a step has, and into how many virtual replicas they are divided."""

from __future__ import annotations

from dataclasses import dataclass

from anyrig.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The batch rules of a run.

    Give `global_size` (rows per step) and, if wanted, `virtual_replicas` (V, default: the number of devices at the
    start); or `per_device` rows, from which both follow from the devices at the start.
    """

    global_size: int | None = None
    virtual_replicas: int | None = None
    per_device: int | None = None

    def __post_init__(self) -> None:
        for name in ("global_size", "virtual_replicas", "per_device"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UsageError(
                    "ANY-BATCH-001",
                    f"batch.{name}: expected a positive integer, found {value!r}",
                    hint=f"set {name} to 1 or more",
                )
        if self.per_device is not None and self.global_size is not None:
            raise UsageError(
                "ANY-BATCH-002",
                f"batch: per_device {self.per_device} and global_size {self.global_size} are both set",
                hint="keep one of the two; global_size does not change with the devices",
            )
