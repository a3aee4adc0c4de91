"""One fit's hold on a run directory: the lock, the newest sound checkpoint, saves, retention and events.

A session never trains. It is opened before the model is touched, so that what the run was started with (V, batch, and
TensorFlow's numeric settings) is known in time, and it is the only writer of its directory while it is open.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from anyrig.environment import environment
from anyrig.errors import AnyrigError, UsageError
from anyrig.events import Events, JsonLines, read_events
from anyrig.locations import prepare_run_directory
from anyrig.report.reports import SaveReport
from anyrig.store.commit import Rejected, newest_sound, set_aside, sweep_partials
from anyrig.store.lock import RunLock
from anyrig.store.read import Checkpoint
from anyrig.store.retain import Keep
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint
from anyrig.topology.numeric import apply_numeric_settings, numeric_settings
from anyrig.train.keeping import Keeper

RESUME = ("auto", "never", "must")


class Session:
    """Context manager over a run directory. After entering, `stored` is the checkpoint to go on from, or None."""

    def __init__(self, directory: str | os.PathLike[str], *, resume: str, keep: Keep) -> None:
        if resume not in RESUME:
            raise UsageError(
                "ANY-RUN-004", f"resume: expected auto, never or must, found {resume!r}", hint='use resume="auto"'
            )
        self.directory = Path(directory)
        self.checkpoints = self.directory / "checkpoints"
        self.resume = resume
        self.keep = keep
        self.stored: Checkpoint | None = None
        self.rejected: list[Rejected] = []
        self.constant_not_finite: frozenset[str] = frozenset()  # names that were so before training: masks of -inf
        self.keeper = Keeper(self.checkpoints, keep)
        self._lock = RunLock(self.directory)
        self._open = ExitStack()
        self.events = Events()

    def __enter__(self) -> Self:
        prepare_run_directory(self.directory)
        with ExitStack() as stack:
            stack.enter_context(self._lock)
            sweep_partials(self.checkpoints)
            self._find_stored()
            self._settle_numerics()
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def progress(self) -> dict[str, Any]:
        """The progress of the stored checkpoint; empty for a new run."""
        return self.stored.progress if self.stored is not None else {}

    def begin(self) -> None:
        """Write down that the run is started or goes on; to be called once it is sure, and not refused.

        Newer checkpoints that cannot be used are hidden, the environment is stored, the log gets a new attempt.
        """
        for rejected in self.rejected:
            set_aside(self.checkpoints, rejected)
        content = {"numeric": numeric_settings(), **environment()}
        (self.directory / "environment.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        log = self.directory / "events.jsonl"
        attempt = 1 + max((int(str(e["attempt"])) for e in read_events(log)), default=0) if log.exists() else 1
        self.events = Events(self._open.enter_context(JsonLines(log)), attempt=attempt)

    def save(
        self,
        step: int,
        tensors: Sequence[StoredTensor],
        *,
        progress: Mapping[str, Any],
        documents: Mapping[str, bytes],
        assets: Mapping[str, bytes],
        record: Mapping[str, Any],
    ) -> SaveReport:
        """Commit one state and apply retention; a state with numbers that are not finite is refused."""
        refuse_not_finite(tensors, step, self.constant_not_finite)
        self._lock.check()
        nbytes = sum(tensor.array.nbytes for tensor in tensors)
        short_of_room = self.keeper.make_room(nbytes)
        started = time.perf_counter()
        saved = write_checkpoint(
            self.checkpoints,
            step,
            tensors,
            progress=progress,
            documents=documents,
            assets=assets,
            record=record,
            replace=True,
        )
        seconds = time.perf_counter() - started
        removed, too_large = self.keeper.retain(step)
        report = SaveReport(step, seconds, nbytes, saved.path, tuple(filter(None, (short_of_room, too_large))))
        self.events.emit("save", step=step, seconds=round(seconds, 4), bytes=nbytes, removed=removed)
        return report

    def _find_stored(self) -> None:
        found, self.rejected = newest_sound(self.checkpoints)
        if self.resume == "never" and (found is not None or self.rejected):
            raise UsageError(
                "ANY-RUN-005",
                f"{self.directory} already holds a run (newest step {found.step if found else 'damaged'}), and "
                "resume is never",
                hint="leave resume at auto to carry it on, or give another run directory",
            )
        if found is None and self.resume == "must":
            raise UsageError(
                "ANY-RUN-006",
                f"{self.directory} holds no checkpoint to resume from",
                hint="leave resume at auto to start the run",
            )
        if found is None and self.rejected:
            reasons = "".join(f"\n  {r.name}: {r.reason}" for r in self.rejected)
            raise AnyrigError(
                "ANY-RUN-007",
                f"no checkpoint in {self.checkpoints} is sound, and starting anew would throw the run away:{reasons}",
                hint=f"look at them with: anyrig verify {self.directory}; or give another run directory",
            )
        self.stored = found
        self.keeper.sound = found.step if found is not None else None

    def _settle_numerics(self) -> None:
        """Put the stored numeric settings in force, or pin the present ones for a new run."""
        if self.stored is not None:
            apply_numeric_settings(self.stored.record.get("numeric", {}))
        apply_numeric_settings(numeric_settings())


def stored_numerics(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the numeric settings a run directory was started with; empty if there is no such run yet."""
    try:
        content = json.loads((Path(directory) / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    numeric = content.get("numeric", {}) if isinstance(content, dict) else {}
    return numeric if isinstance(numeric, dict) else {}


def not_finite(tensors: Sequence[StoredTensor]) -> frozenset[str]:
    """Return the names of weights and optimizer state that hold NaN or infinity."""
    trained = (tensor for tensor in tensors if tensor.name.startswith(("model/", "optimizer/", "ema/")))
    return frozenset(tensor.name for tensor in trained if not _finite(tensor.array))


def refuse_not_finite(tensors: Sequence[StoredTensor], step: int, constant: frozenset[str] = frozenset()) -> None:
    """Raise if weights or optimizer have come to hold NaN or infinity: such a state is never committed by training."""
    found = sorted(not_finite(tensors) - constant)
    if found:
        raise AnyrigError(
            "ANY-RUN-008",
            f"{found[0]} is not finite at step {step}, so this state is not saved; earlier checkpoints "
            "are as they were",
            hint="lower the learning rate or clip gradients (clipnorm=1.0), and start again",
        )


def _finite(array: np.ndarray[Any, Any]) -> bool:
    if array.dtype.kind in "biuSU":
        return True
    return bool(np.isfinite(array).all())
