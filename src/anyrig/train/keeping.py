"""Retention of one run: room before a save, removal after it, and what counts as the best.

May run in the thread that writes. It knows the committed steps from their manifests, each read once, so the best
survives a restart. Only the holder of the run's lock removes; anybody may ask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from anyrig.errors import AnyrigError
from anyrig.sizes import size
from anyrig.store.commit import folders_with_steps
from anyrig.store.known import Known, known_of, metric_of
from anyrig.store.local import LOCAL, LocalFiles, folder_names
from anyrig.store.pins import pins
from anyrig.store.read import Checkpoint, verify_checkpoint
from anyrig.store.retain import Keep, StepInfo, Verdict, judge, remove_steps, to_make_room, would_be_best


class Keeper:
    """Keeps the checkpoints in the folder `checkpoints` by `keep`.

    `sound` is the newest step whose bytes were read back and found right, as far as the caller knows; `held` tells
    steps that have to stay for the moment, as while they are uploaded.
    """

    def __init__(self, checkpoints: Path, keep: Keep, *, sound: int | None = None, files: LocalFiles = LOCAL) -> None:
        self.checkpoints = checkpoints
        self.keep = keep
        self.sound = sound
        self.held: Callable[[], frozenset[int]] = frozenset
        self._files = files
        self._known: dict[str, Known] = {}
        self._lock = threading.Lock()  # the training asks while a save in the background is kept
        self._warned: set[str] = set()

    def steps(self) -> list[StepInfo]:
        """Return the committed steps, oldest first."""
        with self._lock:
            there = set(folder_names(self.checkpoints))
            self._known = {name: known for name, known in self._known.items() if name in there}
            for found in folders_with_steps(self.checkpoints, without=self._known):
                if isinstance(found, Checkpoint):
                    self._known[found.path.name] = known_of(found)
            known_steps = list(self._known.values())
        pinned = pins(self.checkpoints).keys() | self.held()
        infos = [
            StepInfo(known.step, metric_of(known.metrics, self.keep.monitor), known.step in pinned, known.nbytes)
            for known in known_steps
        ]
        return sorted(infos, key=lambda info: info.step)

    def judge(self) -> list[Verdict]:
        """Say of each committed step, oldest first, whether it stays and why."""
        return judge(self.steps(), self.keep, free=self._free() if self.keep.min_free else None)

    def would_be_best(self, value: object) -> bool:
        """Tell whether a checkpoint with that value of the monitored metric would be kept as one of the best."""
        number = metric_of({"": value}, "")
        return number is not None and would_be_best(number, self.steps(), self.keep)

    def make_room(self, nbytes: int) -> str | None:
        """Remove what may go so that a save of `nbytes` fits; return a warning when less than `min_free` is left.

        Raises AnyrigError, before anything is written, when the save does not fit.
        """
        if nbytes + (self.keep.min_free or 0) <= self._free():
            return None
        steps = self.steps()
        self._remove(to_make_room(steps, self.keep, coming=nbytes, free=self._free()), steps)
        free = self._free()
        if nbytes > free:
            raise AnyrigError(
                "ANY-STORE-014",
                f"a save needs {size(nbytes)}, and {size(free)} are free on the disk of {self.checkpoints}; nothing "
                "was written, and earlier checkpoints are as they were",
                hint="free some space, or keep fewer checkpoints (keep_last, keep_best, keep_every, pins)",
            )
        least = self.keep.min_free or 0
        if nbytes + least <= free:
            return None
        return self._once(
            f"min_free ({size(least)}) cannot be held: a save takes {size(nbytes)} of the {size(free)} that are free, "
            "and no other checkpoint may go"
        )

    def retain(self, written: int | None = None) -> tuple[list[int], str | None]:
        """Remove what the rules let go; return the steps, and a warning when `max_total_size` cannot be held.

        `written` is a step that was just written, maybe in the place of another state.
        """
        with self._lock:
            self._known = {name: known for name, known in self._known.items() if known.step != written}
        self.sound = None if self.sound == written else self.sound
        verdicts = self.judge()
        going = [verdict.info.step for verdict in verdicts if not verdict.stays]
        self._remove(going, [verdict.info for verdict in verdicts])
        left = sum(verdict.info.nbytes for verdict in verdicts if verdict.stays)
        most = self.keep.max_total_size
        if most is None or left <= most:
            return going, None
        return going, self._once(f"max_total_size ({size(most)}) cannot be held: what has to stay takes {size(left)}")

    def _once(self, warning: str) -> str | None:
        """Return a warning the first time that its setting cannot be held."""
        setting = warning.partition(" ")[0]
        known, self._warned = setting in self._warned, self._warned | {setting}
        return None if known else warning

    def _remove(self, going: Sequence[int], steps: Sequence[StepInfo]) -> None:
        """Remove steps; before that, one checkpoint that stays has been read back in full."""
        if going and self.sound not in {info.step for info in steps} - set(going):
            self._check()
        remove_steps(self.checkpoints, going, files=self._files)

    def _check(self) -> None:
        """Read the newest checkpoint back; only a sound one lets others go."""
        newest = next(found for found in folders_with_steps(self.checkpoints) if isinstance(found, Checkpoint))
        damage = verify_checkpoint(newest)
        if damage:
            raise AnyrigError(
                "ANY-STORE-018",
                f"{newest.path} does not read back as it was written: {damage[0]}; no other checkpoint was removed",
                hint="check the disk; the next start of the run goes on from the newest sound checkpoint",
            )
        self.sound = newest.step

    def _free(self) -> int:
        return self._files.free(self.checkpoints)


def let_go(keep: Keep, found: Sequence[Checkpoint], pinned: Collection[int]) -> list[int]:
    """Return the steps among `found` that `keep` lets go where there is no disk that could be full."""
    infos = [
        StepInfo(known.step, metric_of(known.metrics, keep.monitor), known.step in pinned, known.nbytes)
        for known in map(known_of, found)
    ]
    return [verdict.info.step for verdict in judge(infos, replace(keep, min_free=None)) if not verdict.stays]


def describe_keep(keep: Keep) -> str:
    """Return "the last 3, the best by val_loss (min); at most 20.0 GiB in all"."""
    last = "all" if keep.last is None else "the last one" if keep.last == 1 else f"the last {keep.last}"
    best = f"the best {'' if keep.best == 1 else f'{keep.best} '}by {keep.monitor} ({keep.mode})" if keep.best else ""
    every = f"each whose step {keep.every:,} divides" if keep.every else ""
    most = f"at most {size(keep.max_total_size)} in all" if keep.max_total_size else ""
    free = f"{size(keep.min_free)} of the disk left free" if keep.min_free else ""
    return "; ".join(filter(None, [", ".join(filter(None, [last, best, every])), most, free]))
