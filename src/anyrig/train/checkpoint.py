"""What a user sets about checkpoints: where, how often, how many stay."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from anyrig.errors import UsageError
from anyrig.store.retain import Keep
from anyrig.train.every import Every, parse_every


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Save the whole state of a fit into the run directory `directory`, so that it can be carried on from there.

    `every` is "n steps" or "n epochs"; a save is also made when a signal stops the run and at the end. The newest
    `keep_last` checkpoints stay (None: all).
    """

    directory: str | os.PathLike[str] | None = None
    every: str = field(default="1 epoch", kw_only=True)
    keep_last: int | None = field(default=3, kw_only=True)

    def __post_init__(self) -> None:
        try:
            parse_every(self.every)
            Keep(last=self.keep_last)
        except ValueError as error:
            raise UsageError(
                "ANY-RUN-001", f"checkpoint: {error}", hint='e.g. Checkpoint(every="1 epoch", keep_last=3)'
            ) from error

    @property
    def interval(self) -> Every:
        """`every`, parsed."""
        return parse_every(self.every)

    @property
    def keep(self) -> Keep:
        """The retention rule."""
        return Keep(last=self.keep_last)
