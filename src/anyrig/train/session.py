"""One fit's hold on a run directory: the lock, the newest sound checkpoint, saves, retention and events.

A session never trains. It is opened before the model is touched, so that what the run was started with (V, batch, and
TensorFlow's numeric settings) is known in time, and it is the only writer of its directory while it is open.

A save only begins in the training thread. Everything else (hashing, the look for NaN, writing, commit, retention) is
done by a thread beside it, at most one save at a time; what came of it is fetched by the training thread with `saved`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from anyrig.environment import environment
from anyrig.errors import AnyrigError, UsageError
from anyrig.events import Events, JsonLines, read_events
from anyrig.locations import local_directory, prepare_run_directory
from anyrig.report.reports import SaveReport
from anyrig.store.background import Background
from anyrig.store.commit import Rejected, newest_sound, set_aside, sweep_partials
from anyrig.store.jsonvalues import decoded, encodable
from anyrig.store.lock import RunLock
from anyrig.store.plan import BY_SIZE, Shards
from anyrig.store.read import Checkpoint
from anyrig.store.remote.opened import mirror_of
from anyrig.store.remote.url import cleaned, is_url
from anyrig.store.retain import Keep
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import drained, write_checkpoint
from anyrig.topology.numeric import apply_numeric_settings, numeric_settings
from anyrig.train.keeping import Keeper, let_go

RESUME = ("auto", "never", "must")
Array = np.ndarray[Any, Any]
_AT_ONCE = 2**18  # numbers looked at together, so that they are still in the cache


@dataclass(frozen=True, slots=True)
class _Written:
    checkpoint: Checkpoint
    bytes: int
    seconds: float
    removed: list[int]
    warnings: tuple[str, ...]


class Session:
    """Context manager over a run directory. After entering, `stored` is the checkpoint to go on from, or None."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        resume: str,
        keep: Keep,
        shards: Shards = BY_SIZE,
    ) -> None:
        if resume not in RESUME:
            raise UsageError(
                "ANY-RUN-004", f"resume: expected auto, never or must, found {resume!r}", hint='use resume="auto"'
            )
        local = local_directory(directory)
        self.named = cleaned(str(directory)) if is_url(directory) else str(local)  # to be shown
        self.directory = local.expanduser().absolute()  # callbacks may change the working folder
        self.checkpoints = self.directory / "checkpoints"
        self.resume = resume
        self.keep = keep
        self.shards = shards
        self.stored: Checkpoint | None = None
        self.rejected: list[Rejected] = []
        self.constant_not_finite: frozenset[str] = frozenset()  # names that were so before training: masks of -inf
        self.keeper = Keeper(self.checkpoints, keep)
        self.messages: list[str] = []
        self._mirror = mirror_of(directory, partial(let_go, keep))
        if self._mirror is not None:
            self.keeper.held = self._mirror.sending
        self.newest: Checkpoint | None = None  # of those that were committed here
        self.last_save: SaveReport | None = None
        self._lock = RunLock(self.directory)
        self._open = ExitStack()
        self._background: Background[_Written] = Background()
        self._pause = 0.0
        self.events = Events()

    def __enter__(self) -> Self:
        prepare_run_directory(self.directory)
        with ExitStack() as stack:
            stack.enter_context(self._lock)
            sweep_partials(self.checkpoints)
            if self._mirror is not None:
                stack.callback(self._mirror.close)
                self.messages = self._mirror.arrive()
            self._find_stored()
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Whoever leaves has waited for the save in flight; if that was interrupted, the lock stays until it has ended.
        self._background.when_done(self._open.close)

    @property
    def in_flight(self) -> bool:
        """Whether a save is going on now."""
        return self._background.in_flight

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
        tensors: list[StoredTensor],
        *,
        began: float,
        progress: Mapping[str, Any],
        documents: Mapping[str, bytes],
        assets: Mapping[str, bytes],
        record: Mapping[str, Any],
    ) -> None:
        """Begin to commit one state, and return at once; the save before must have been fetched.

        `tensors` is emptied as they are written. `progress` is read here and may change afterwards; the rest may not.
        `began`: the time, as from `time.perf_counter()`, since when training has waited.
        """
        kept = decoded(encodable(progress, "progress"))
        size = sum(tensor.array.nbytes for tensor in tensors)

        def work() -> _Written:
            self._lock.check()
            short_of_room = self.keeper.make_room(size)
            started = time.perf_counter()
            made = write_checkpoint(
                self.checkpoints,
                step,
                drained(tensors),
                progress=kept,
                documents=documents,
                assets=assets,
                record=record,
                replace=True,
                shards=self.shards,
                check=partial(refuse_not_finite, step=step, constant=self.constant_not_finite),
            )
            seconds = time.perf_counter() - started
            removed, too_large = self.keeper.retain(step)
            return _Written(made, size, seconds, removed, tuple(filter(None, (short_of_room, too_large))))

        self._background.start(work)
        self._pause = time.perf_counter() - began

    def saved(self, *, wait: bool) -> SaveReport | None:
        """Report a save that has ended, once; None if there is none. Raises the error of a save that failed.

        With `wait`, the one in flight is waited for, and that time counts as its pause.
        """
        began = time.perf_counter()
        written = self._background.wait() if wait else self._background.finished()
        if written is None:
            return None
        self.newest, pause = written.checkpoint, self._pause + time.perf_counter() - began
        step, path, warnings = self.newest.step, self.newest.path, written.warnings
        if self._mirror is not None:
            self._mirror.wake()
            warnings += self._mirror.news()
        self.last_save = SaveReport(step, written.seconds, pause, written.bytes, path, warnings)
        times = {"seconds": round(written.seconds, 4), "pause_seconds": round(pause, 4)}
        self.events.emit("save", step=step, **times, bytes=written.bytes, removed=written.removed)
        return self.last_save

    def settle(self) -> list[str]:
        """Upload what waits for a URL, and say what did not get through; nothing to do for a local run."""
        return self._mirror.settle() if self._mirror is not None else []

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

    def settle_numerics(self) -> None:
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


def not_finite(tensors: Iterable[StoredTensor]) -> frozenset[str]:
    """Return the names of weights and optimizer state that hold NaN or infinity."""
    return frozenset(tensor.name for tensor in tensors if not _finite(tensor.name, tensor.array))


def refuse_not_finite(name: str, array: Array, *, step: int, constant: Collection[str] = ()) -> None:
    """Raise if weights or optimizer have come to hold NaN or infinity: such a state is never committed by training."""
    if name not in constant and not _finite(name, array):
        raise AnyrigError(
            "ANY-RUN-008",
            f"{name} is not finite at step {step}, so this state is not saved; earlier checkpoints are as they were",
            hint="lower the learning rate or clip gradients (clipnorm=1.0), and start again",
        )


def _finite(name: str, array: Array) -> bool:
    """Tell whether a tensor of training has no NaN and no infinity; part by part, without an array of its size."""
    if not name.startswith(("model/", "optimizer/", "ema/")) or array.dtype.kind in "biuSU":
        return True
    flat = array.reshape(-1)
    parts = range(0, flat.size, _AT_ONCE)
    return all(bool(np.isfinite(flat[start : start + _AT_ONCE]).all()) for start in parts)
