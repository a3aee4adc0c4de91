"""A run at a URL and its spool: the run is fetched when work begins, and what is committed locally goes up beside it.

Everything is written and committed in the spool first, so a save costs and promises what a local one does, and training
never waits for the network. `arrive` is called once under the spool's lock; then `wake` after each commit starts an
upload in a thread of its own; `settle` waits for it and says what did not get through. A store that is away is no error
while training: the steps wait. Somebody else's steps at the URL are one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from anyrig.errors import AnyrigError
from anyrig.store.background import Background
from anyrig.store.pins import pins
from anyrig.store.read import Checkpoint
from anyrig.store.remote.arrival import bring_newest, foreign_in, two_ways
from anyrig.store.remote.lease import InUse, Lease
from anyrig.store.remote.listing import CHECKPOINTS, Listing, Shelf
from anyrig.store.remote.objects import Objects, Unreachable
from anyrig.store.remote.spool import RECORD, Kept, kept_in, read_known, write_known
from anyrig.store.remote.transfer import remove, upload

Choose = Callable[[Sequence[Checkpoint], Collection[int]], Collection[int]]
"""From all committed steps and the pinned ones to the steps that retention lets go."""


def keep_all(_: Sequence[Checkpoint], __: Collection[int]) -> Collection[int]:
    """Let nothing go."""
    return ()


class Mirror:
    """The run at a URL, and its spool `run`, an ordinary run directory; one thread calls the methods.

    `choose` is the retention rule that holds at the URL.
    """

    def __init__(self, objects: Objects, run: Path, *, choose: Choose = keep_all, lease: Lease | None = None) -> None:
        self.objects = objects
        self.run = run
        self.checkpoints = run / CHECKPOINTS
        self.problem: AnyrigError | None = None
        self._choose = choose
        self._lease = lease or Lease(objects)
        self._shelf = Shelf(objects)
        self._known: frozenset[str] = frozenset()
        self._sending: frozenset[int] = frozenset()
        self._background: Background[None] = Background()
        self._unwanted: frozenset[str] = frozenset()
        self._told: AnyrigError | None = None

    def sending(self) -> frozenset[int]:
        """Return the step that is being uploaded: its files have to stay."""
        return self._sending

    def arrive(self) -> list[str]:
        """Bring the newest state into the spool; return what the user should know, in words.

        Raises when the URL cannot be reached and the spool is empty: whether a run is there is then not known.
        """
        return self._bring(self._lease.take)

    def bring(self) -> list[str]:
        """Do as `arrive` does for somebody who only reads: the URL is not written to."""
        return self._bring(lambda: None)

    def _bring(self, first: Callable[[], None]) -> list[str]:
        self._known = read_known(self.run)
        try:
            first()
            listing = self._shelf.list()
        except Unreachable as away:
            kept = kept_in(self.checkpoints)
            if not kept:
                raise
            self.problem = away
            return [f"{away.message} Going on from step {kept[0].step} in {self.run}"]
        messages = bring_newest(self.objects, self.run, self._known, listing)
        self._remember({step.checksum for step in listing.steps})
        return messages

    def wake(self) -> None:
        """Upload in the background what is committed, unless that is going on; raise what an upload found wrong.

        A store that is away or refuses is remembered as `problem` and tried again at the next call.
        """
        if not self._background.in_flight:
            self._background.finished()
            self._background.start(self._send_all)

    def news(self) -> tuple[str, ...]:
        """Say, once, that the URL has become unreachable or answers again."""
        now = self.problem
        if (now is None) == (self._told is None):
            return ()
        self._told = now
        if now is None:
            return (f"{self.objects.url} takes checkpoints again",)
        return (f"{now.message} Training goes on; checkpoints wait in {self.run}",)

    def settle(self) -> list[str]:
        """Wait for the upload that is going on, try once more, give the lease back; say what still waits, in words."""
        self._background.wait()
        self._send_all()
        waiting = self.waiting()
        if self.problem is None:
            self._lease.give_back()
        if not waiting:
            return [] if self.problem is None else [f"{self.problem.message} All checkpoints are uploaded"]
        url, why = self.objects.url, f"\n  why: {self.problem.message}" if self.problem else ""
        steps = ", ".join(str(kept.step) for kept in waiting[:5]) + (" ..." if len(waiting) > 5 else "")
        return [
            f"not uploaded to {url} yet: {len(waiting)} checkpoints (step {steps}), which are in {self.run}; "
            f"this uploads them: anyrig sync {url}{why}"
        ]

    def close(self) -> None:
        """Let an upload that is going on end, and give the lease back, whatever happened; to be called last."""
        with suppress(AnyrigError):
            self._background.wait()
        self._lease.give_back()

    def waiting_now(self) -> list[Kept]:
        """Read the spool's record, and return what waits; for somebody who does not train."""
        self._known = read_known(self.run)
        return self.waiting()

    def waiting(self) -> list[Kept]:
        """Return the steps of the spool that are to be at the URL and are not yet, newest first."""
        there = self._known | self._unwanted
        return [kept for kept in kept_in(self.checkpoints) if kept.checksum not in there]

    def _send_all(self) -> None:
        """Upload until nothing waits, newest first; apply retention then."""
        try:
            self._lease.take()
            while self._send_next(self._look()):
                pass
            self._send_files()
        except AnyrigError as error:
            if isinstance(error, InUse):  # another writer: going on would mix two runs
                raise
            self.problem = error
        else:
            self.problem = None

    def _look(self) -> Listing:
        """List what is at the URL, finding there only what this spool has seen or has itself."""
        listing = self._shelf.list()
        kept = kept_in(self.checkpoints)
        if foreign := foreign_in(listing, kept, self._known):
            raise two_ways(self.objects, self.run, foreign, self.waiting())
        self._remember(self._known | {step.checksum for step in listing.steps})
        return listing

    def _send_next(self, listing: Listing) -> bool:
        self._unwanted = frozenset()
        waiting = {kept.step: kept for kept in self.waiting()}
        there = [step.description for step in listing.steps if step.step not in waiting]
        going = self._choose([*there, *(kept.checkpoint for kept in waiting.values())], self._pinned(listing))
        self._unwanted = frozenset(kept.checksum for kept in waiting.values() if kept.step in going)
        chosen = next(iter(self.waiting()), None)
        if chosen is None:
            self._let_go(listing)
            return False
        self._sending = frozenset({chosen.step})
        try:
            folder = listing.free_folder(chosen.step)
            files = {entry.name for entry in chosen.checkpoint.manifest.files}
            remove(self.objects, folder, set(listing.sweep.get(folder, ())) - files)
            upload(self.objects, chosen.checkpoint, folder, before_commit=self._send_files)
        except FileNotFoundError:  # retention was quicker
            return True
        finally:
            self._sending = frozenset()
        self._remember(self._known | {chosen.checksum})
        return True

    def _let_go(self, listing: Listing) -> None:
        """Apply retention at the URL, and remove what broken-off uploads, removals and replacements have left."""
        for folder, names in listing.sweep.items():
            remove(self.objects, folder, names)
        going = self._choose([step.description for step in listing.steps], self._pinned(listing))
        for step in listing.steps:
            if step.step in going and step is not listing.newest:
                remove(self.objects, step.folder, [entry.name for entry in step.manifest.files])

    def _pinned(self, listing: Listing) -> Collection[int]:
        return listing.pinned | pins(self.checkpoints).keys()

    def _send_files(self) -> None:
        """Upload the small files beside the checkpoints (recipe, environment, events), as they are now."""
        for path in sorted(self.run.iterdir()):
            if path.is_file() and not path.name.startswith(".") and path.name != RECORD:
                self.objects.write(path.name, path.read_bytes())

    def _remember(self, known: Collection[str]) -> None:
        if frozenset(known) != self._known:
            self._known = frozenset(known)
            write_known(self.run, self.objects.url, self._known)
