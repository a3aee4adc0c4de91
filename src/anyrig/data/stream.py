"""The batches of a source in epochs: one pass each, or `steps_per_epoch` batches of passes that follow each other.

A stream is entered at (pass, batches taken of it), so that a run can be carried on at any step. It looks one batch
ahead within an epoch, to say which batch is the last one; an error met there is raised when its turn has come.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from anyrig.data.source import Batch, Source
from anyrig.errors import UsageError

_NOTHING = object()


class Stream:
    """A source read on and on. `number` is the present pass; `taken` counts its batches that were handed out.

    `at_most` cuts every epoch short: of a pass, the rest is left out.
    """

    def __init__(
        self,
        source: Source,
        steps_per_epoch: int | None = None,
        *,
        at_most: int | None = None,
        number: int = 0,
        taken: int = 0,
    ) -> None:
        if source.endless and steps_per_epoch is None and at_most is None:
            raise UsageError(
                "ANY-DATA-004",
                "the data never ends, so an epoch (or an evaluation) has no end",
                hint="say how many batches: steps_per_epoch=n (validation_steps=n, steps=n), or end it with .take(n)",
            )
        self.source = source
        self.steps_per_epoch = steps_per_epoch
        self.at_most = at_most
        self.number = number
        self.taken = taken
        self._reading: Iterator[Batch] | None = None
        self._ahead: Any = _NOTHING

    def length(self) -> int | None:
        """Return how many batches an epoch has, None where it is not known."""
        lengths = (self.steps_per_epoch or self.source.batches_per_epoch(), self.at_most)
        return min((length for length in lengths if length is not None), default=None)

    def is_over(self) -> bool:
        """Tell whether no further epoch can begin, which is known of a generator only."""
        if self.source.once and self._ahead is _NOTHING:
            self._ahead = self._read()
        return self._ahead is None

    def epoch(
        self, epoch: int, done: int = 0, group: int = 1, stop_at: int | None = None
    ) -> Iterator[tuple[list[Batch], bool]]:
        """Yield up to `group` batches at a time, and whether they are the last of this epoch.

        `done` batches of it were taken before; a group ends with the `stop_at`-th batch from here. Warns, as Keras
        does, if the data ends before `steps_per_epoch`.
        """
        self.source.begin_epoch(epoch)
        limits = [most - done for most in (self.steps_per_epoch, self.at_most) if most is not None]
        limit = min(limits, default=None)
        count = 0
        following = self._first(limit, at_start=done == 0)
        while following is not None:
            batches: list[Batch] = []
            size = group if stop_at is None or stop_at <= count else min(group, stop_at - count)
            while len(batches) < size and isinstance(following, tuple):
                batches.append(following)
                following = self._read() if limit is None or count + len(batches) < limit else None
            if not batches:
                raise following
            count += len(batches)
            self.taken += len(batches)
            yield batches, following is None
        if self.steps_per_epoch is not None and limit is not None and count < limit:
            warnings.warn(
                f"the data ran out after {done + count} of {self.steps_per_epoch} batches; the epoch ends there. "
                "Give more data, or repeat() the dataset",
                stacklevel=2,
            )

    def end_epoch(self) -> None:
        """End the present epoch, and the pass with it if epochs are passes."""
        if self.source.end_epoch():
            self.close()
        if self.steps_per_epoch is None and not self.source.once:
            self._next_pass()

    def go_to(self, number: int, taken: int) -> None:
        """Go on from another place, which may lie before the present one."""
        if self.source.once:
            raise UsageError(
                "ANY-DATA-017",
                "training has to go back in its data, and a generator is read only once",
                hint='use on_nonfinite="skip", or give arrays, a dataset or a PyDataset',
            )
        self.close()
        self.number, self.taken, self._ahead = number, taken, _NOTHING

    def close(self) -> None:
        """Let go of what is being read."""
        if self._reading is not None and hasattr(self._reading, "close"):
            self._reading.close()
        self._reading = None

    def _first(self, limit: int | None, *, at_start: bool) -> Any:
        if limit is not None and limit <= 0:
            return None
        first = self._read()
        if first is None and at_start and self.steps_per_epoch is not None and not self.source.once:
            self._next_pass()
            first = self._read()
        return first

    def _next_pass(self) -> None:
        self.close()
        self.number, self.taken = self.number + 1, 0

    def _read(self) -> Batch | Exception | None:
        """Return the next batch of this pass, None at its end, or the error that came instead."""
        if self._ahead is not _NOTHING:
            ahead, self._ahead = self._ahead, _NOTHING
            return ahead
        if self._reading is None:
            self._reading = self.source.batches(self.number, self.taken)
        try:
            return next(self._reading, None)
        except Exception as error:  # noqa: BLE001 - raised by `epoch` once the batches before it were used
            return error
