"""`anyrig.Checkpoint`: what a user puts among the callbacks, in `Rig.fit` and in plain `model.fit`.

In `Rig.fit` the loop takes its settings and saves by itself. In plain `model.fit` Keras calls the hooks here; what they
do is in `plain_fit.py` (a run directory) and `named_saves.py` (names with fields, weights only, best only).
"""

from __future__ import annotations

import os
from typing import Any

import keras

from anyrig.errors import UsageError
from anyrig.report.reports import SaveReport
from anyrig.report.say import say
from anyrig.store.plan import BY_SIZE
from anyrig.train.checkpoint import CheckpointSettings
from anyrig.train.named_saves import NamedSaves, NamedSettings, fields_of, named_settings
from anyrig.train.plain_fit import PlainFit


class Checkpoint(keras.callbacks.Callback):
    """Save the whole state of a fit into the run directory `directory`, and carry it on from there.

    `every` is "n steps", "n epochs", "n minutes", or "auto": as often as costs at most 2 % of the time. A save is also
    made at the end, and in `Rig.fit` when a signal stops the run. Of the checkpoints stay: the newest `keep_last`
    (None: all), the `keep_best` (1 where `monitor` is set) by an epoch's metric `monitor` (`mode`: "min", "max", or
    "auto" where the name tells), those whose step `keep_every` divides, and pinned ones. `max_total_size` bounds their
    bytes, `min_free` is what is left free on the disk ("20 GB", or bytes): both come before `keep_last`, `keep_every`
    and `keep_best`. A data file holds at most `max_shard_size`, or one larger tensor; `split="layer"` gives each layer
    files of its own.

    In plain `model.fit`, on one device or under MirroredStrategy, the same call made again goes on after the last epoch
    that was saved; `epochs` counts the whole run. It can save and go on at ends of epochs only, so `every` is no number
    of steps there. The order of the data, dropout's numbers and the state of other callbacks are not carried on
    (`Rig.fit` does that). Give it last, so that it sees what other callbacks changed.

    With fields of `str.format` in its name ("runs/m-{epoch:02d}-{val_loss:.2f}"), with `save_weights_only` or with
    `save_best_only` it does what Keras's ModelCheckpoint does: each save is a checkpoint of its own in a folder of that
    name, and nothing is restored. `filepath` and `save_freq` are ModelCheckpoint's names of `directory` and `every`;
    `verbose=1` prints a line for each save.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        every: str | None = None,
        keep_last: int | None = 3,
        keep_best: int | None = None,
        monitor: str | None = None,
        mode: str = "auto",
        keep_every: int | None = None,
        max_total_size: int | str | None = None,
        min_free: int | str | None = None,
        max_shard_size: int | str = BY_SIZE.max_bytes,
        split: str = "size",
        save_weights_only: bool = False,
        save_best_only: bool = False,
        initial_value_threshold: float | None = None,
        filepath: str | os.PathLike[str] | None = None,
        save_freq: int | str | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__()
        path = _one("directory", directory, "filepath", filepath)
        interval = _one("every", every, "save_freq", None if save_freq is None else _every(save_freq)) or "1 epoch"
        named = save_weights_only or save_best_only or bool(path is not None and fields_of(os.fspath(path)))
        _refuse_file_names(path)
        self.settings = CheckpointSettings(
            path,
            every=interval,
            keep_last=keep_last,
            keep_best=keep_best,
            monitor=None if named else monitor,
            mode="auto" if named else mode,
            keep_every=keep_every,
            max_total_size=max_total_size,
            min_free=min_free,
            max_shard_size=max_shard_size,
            split=split,
        )
        self.named: NamedSettings | None = None
        if named:
            self.named = named_settings(
                self.settings,
                weights_only=save_weights_only,
                best_only=save_best_only,
                monitor=monitor,
                mode=mode,
                threshold=initial_value_threshold,
            )
        self._verbose = _refuse_other_verbosity(verbose)
        self._saves: PlainFit | NamedSaves = (
            PlainFit(self.settings, self.on_save_report)
            if self.named is None
            else NamedSaves(self.named, verbose=self._verbose)
        )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Open the run directory, and restore the newest state that is there."""
        self._saves.begin(self.model, self.params)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note that training goes on."""
        self._saves.epoch_begins(epoch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count the step."""
        self._saves.batch_ends(batch, logs or {})

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Save if it is time."""
        self._saves.epoch_ends(epoch, logs or {})

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Save what the end has changed, wait for the save in flight, and let go of the directory."""
        self._saves.end()

    def on_save_report(self, save: SaveReport) -> None:
        """Say which checkpoint of the run directory was written, if asked to."""
        if self._verbose and self.named is None:
            say(f"saved {save.path}")

    def get_state(self) -> dict[str, Any]:
        """Return what `Rig.fit` keeps for the next start: the best value so far of `save_best_only`."""
        return self._saves.state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Take back what `get_state` returned."""
        self._saves.set_state(state)


def _one(name: str, value: Any, other: str, alias: Any) -> Any:
    if value is not None and alias is not None:
        raise UsageError("ANY-RUN-050", f"checkpoint: {name} and {other} are both set", hint=f"give {name} alone")
    return alias if value is None else value


def _every(save_freq: int | str) -> str:
    return "1 epoch" if save_freq == "epoch" else f"{save_freq} steps"


def _refuse_other_verbosity(verbose: int) -> bool:
    if verbose not in (0, 1):
        raise UsageError("ANY-RUN-001", f"checkpoint: verbose: expected 0 or 1, found {verbose!r}", hint="verbose=1")
    return bool(verbose)


def _refuse_file_names(path: Any) -> None:
    name = "" if path is None else os.fspath(path)
    if name.endswith((".keras", ".h5", ".hdf5", ".tf", ".ckpt")):
        raise UsageError(
            "ANY-RUN-051",
            f"checkpoint: {name} is the name of a file, and a checkpoint is a folder of plain safetensors files",
            hint="leave the suffix away; for a Keras file use model.save(...) or keras.callbacks.ModelCheckpoint",
        )
