"""`anyrig.save` and `anyrig.load`: checkpoints for a training loop of one's own, with the guarantees of a run's.

A save is committed elsewhere first, in the hidden folder `.NAME.saving` beside the target, and takes the target's place
by renaming. Between the two renames that this takes, nothing has the target's name and the new checkpoint, which is
complete, is in the hidden folder: a load looks there, too. So at every moment one complete checkpoint is found.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import keras

from anyrig.environment import PACKAGES, environment, version
from anyrig.errors import AnyrigError, UsageError
from anyrig.locations import CHECKPOINTS, find_checkpoint, on_this_machine
from anyrig.state.capture import Captured, capture, take
from anyrig.state.measures import unbuilt
from anyrig.state.optimizers import held_optimizers, optimizer_classes
from anyrig.state.remembered import remembered_plan
from anyrig.state.report import LoadReport
from anyrig.state.restore import restore
from anyrig.state.tree import walk_layers
from anyrig.state.values import to_array
from anyrig.state.walk import metric_variables
from anyrig.store.background import shared
from anyrig.store.commit import newest_committed
from anyrig.store.content import Verify, check_level
from anyrig.store.decode import is_sealed
from anyrig.store.digest import state_digest_of
from anyrig.store.jsonvalues import decoded, encodable
from anyrig.store.layout import MANIFEST, leftover_name, leftover_of, step_of
from anyrig.store.local import LOCAL, LocalFiles, folder_names, make_folders, remove_tree
from anyrig.store.lock import LOCK, RunLock
from anyrig.store.plan import BY_SIZE, Shards, shards_of
from anyrig.store.read import Checkpoint, Replaced, open_checkpoint
from anyrig.store.remote.url import cleaned, is_url
from anyrig.store.write import drained, errors_named, write_checkpoint

_Path = str | os.PathLike[str]
_T = TypeVar("_T")


class Saving:
    """A save that was started; `path` is where the checkpoint will be, or is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._outcome: Future[Checkpoint] = Future()

    def __repr__(self) -> str:
        state = "being written" if not self.done else "failed" if self._outcome.exception() else "committed"
        return f"<Saving {self.path}: {state}>"

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._outcome.done()

    def run(self, work: Callable[[], Checkpoint]) -> Checkpoint:
        """Do the work, in whichever thread, and keep how it ended."""
        try:
            self._outcome.set_result(work())
        except BaseException as error:
            self._outcome.set_exception(error)
            raise
        return self._outcome.result()

    def wait(self) -> Path:
        """Return the path when the checkpoint is committed there; raise what went wrong."""
        with _one_thread:
            if _newest == [self]:
                _newest.clear()
                shared().wait()  # takes the error, so that it is raised once
        self._outcome.result()
        return self.path


_newest: list[Saving] = []
_one_thread = threading.RLock()  # around a start and the wait for it; a signal's handler may save inside a save


def save(
    path: _Path,
    model: keras.Model,
    *,
    optimizer: bool | keras.optimizers.Optimizer = True,
    progress: Mapping[str, Any] | None = None,
    wait: bool = True,
    max_shard_size: int | str = BY_SIZE.max_bytes,
    split: str = "size",
) -> Saving:
    """Make the folder `path` a checkpoint of `model` as it is now: weights, seeds, optimizer, averages, metrics.

    `optimizer`: True stores the optimizers that the model holds (compiled ones are built if they are not yet), an
    optimizer stores that one for a model which holds none, False stores none. True for a model that trains and holds
    none is warned of. `progress` is anything that JSON can keep; its `step`, else the optimizer's count of updates, is
    the checkpoint's step. A checkpoint at `path` is replaced; until the new one is on the disk the former one stays.
    With `wait=False` writing goes on in the background while training does; `wait()` of what is returned raises what
    went wrong, and so does the next save. The process does not end before the save has. A data file holds at most
    `max_shard_size` ("2 GB", or bytes), or one larger tensor; `split="layer"` gives each of the model's own layers
    files of its own: a load of some layers reads those alone.

    Raises AnyrigError if nothing could be saved (ANY-STORE-..., ANY-STATE-...), if something else is at `path`
    or `path` is among the checkpoints of a run (ANY-STORE-019), or if another process saves there (ANY-LOCK-001).
    """
    _check_given("save", path, model, optimizer)
    if is_url(path):
        raise UsageError(
            "ANY-REMOTE-009",
            f"anyrig.save takes a path of this machine, and {cleaned(str(path))} is a URL.",
            hint="give a path and copy the folder; a run may be at a URL: anyrig.Checkpoint(URL)",
        )
    try:
        shards = shards_of(max_shard_size, split)
    except ValueError as error:
        raise UsageError(
            "ANY-STORE-021", f"{error}; nothing was saved.", hint='e.g. anyrig.save(path, model, max_shard_size="2 GB")'
        ) from error
    target = Path(os.path.realpath(os.path.expanduser(path)))
    told = decoded(encodable(dict(progress or {}), "progress"))
    layers = walk_layers(model)
    with _holding(model, optimizer):
        held = held_optimizers(model, layers)
        if optimizer is True and model.trainable_variables and not held:
            warnings.warn(_NO_OPTIMIZER, stacklevel=2)
        plan = remembered_plan(model, optimizer=optimizer is not False, layers=layers)
        captured = take(plan, to_array)
        step = _step(model, told)
        record = {"environment": environment(), "optimizers": optimizer_classes(held)}
    _refuse_target(target, step)
    saving = Saving(target)
    work = partial(_write, target, step, captured, told, record, shards)
    with _one_thread:
        shared().start(lambda: saving.run(work))
        _newest[:] = [saving]
        if wait:
            saving.wait()
    return saving


def _check_given(what: str, path: object, model: object, optimizer: object) -> None:
    """Raise ANY-STATE-019 for arguments of other types than are asked for, such as two in each other's place."""
    right = {"save": "anyrig.save(path, model)", "load": "anyrig.load(path, into=model)"}[what]
    if not isinstance(path, str | os.PathLike):
        wrong = f"the path is {path!r}" if path is None else f"the path is of the type {type(path).__name__}"
    elif not isinstance(model, keras.Model):
        wrong = f"the model is of the type {type(model).__name__}"
    elif not isinstance(optimizer, bool | keras.optimizers.Optimizer):
        wrong = f"the optimizer is {optimizer!r}, neither True nor False nor an optimizer"
    else:
        return
    raise UsageError("ANY-STATE-019", f"anyrig.{what}: {wrong}; nothing was done", hint=f"call {right}")


_NO_OPTIMIZER = (
    "no optimizer is saved: the model holds none; give it: anyrig.save(path, model, optimizer=optimizer), or say "
    "optimizer=False"
)


def _write(
    target: Path,
    step: int,
    captured: Captured,
    progress: Mapping[str, Any],
    record: Mapping[str, Any],
    shards: Shards,
    files: LocalFiles = LOCAL,
) -> Checkpoint:
    work = _work_folder(target)
    with errors_named(target, step):
        make_folders(files, work)
    try:
        with RunLock(work), errors_named(target, step):
            _finish_former(target, work, files)
            new = write_checkpoint(
                work,
                step,
                drained(captured.tensors),
                progress=progress,
                documents=captured.documents,
                assets=captured.assets,
                record=record,
                shards=shards,
                files=files,
            )
            _put_in_place(new, target, files)
            with suppress(OSError):  # it is committed; the next save clears away what is left
                _clear(work, files)
    finally:
        with suppress(OSError):  # it is not empty: something is to be finished, or another save is there already
            files.remove_folder(work)
    return new.moved_to(target)


def _work_folder(target: Path) -> Path:
    return target.parent / f".{target.name}.saving"


def _finish_former(target: Path, work: Path, files: LocalFiles) -> None:
    """Put what a killed save had committed in the place that it had already cleared; remove what else it left."""
    if not os.path.lexists(target) and (found := newest_committed(work)) is not None:
        _put_in_place(found, target, files)
    _clear(work, files)


def _put_in_place(new: Checkpoint, target: Path, files: LocalFiles) -> None:
    """Rename a committed checkpoint to `target`, moving what is there out of the way."""
    work = new.path.parent
    if os.path.lexists(target):
        files.rename(target, work / leftover_name(new.step, "replaced"))
    # Until here a load finds the former checkpoint; from here on the new one, for now in the hidden folder.
    files.rename(new.path, target)
    files.flush_folder(target.parent)


def _clear(work: Path, files: LocalFiles) -> None:
    for name in folder_names(work):
        remove_tree(files, work / name)


def _refuse_target(target: Path, step: int) -> None:
    name_step, problem = step_of(target.name), None
    if leftover_of(target.name) or name_step not in (None, step):
        problem = f"a folder of that name cannot hold step {step}"
    elif target.parent.name == CHECKPOINTS and _is_run(target.parent.parent):
        problem = f"{target.parent.parent} is a run, which could not go on from it"
    elif os.path.lexists(target) and not (target.is_dir() and (_is_checkpoint(target) or not os.listdir(target))):
        problem = "something is there that is not a checkpoint, and it is left alone"
    if problem:
        raise UsageError("ANY-STORE-019", f"save to {target}: {problem}", hint="give another path, or move it away")


def _is_run(folder: Path) -> bool:
    return any(os.path.lexists(folder / name) for name in ("environment.json", "events.jsonl", LOCK))


def _is_checkpoint(folder: Path) -> bool:
    """Tell whether a save has made this folder; a look at the end of its manifest, which takes no time."""
    try:
        return is_sealed(folder / MANIFEST)
    except OSError:
        return False


def load(
    path: _Path,
    into: keras.Model,
    *,
    weights_only: bool = False,
    optimizer: bool | keras.optimizers.Optimizer = True,
    slots: str = "strict",
    metrics: bool | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    strict: bool = True,
    cast: bool | Mapping[str, str] = False,
    rename: Mapping[str, str] | None = None,
    verify: Verify = "full",
    mmap: bool | None = None,
    missing_ok: bool = False,
) -> LoadReport:
    """Put a checkpoint into a built model and return what was done; nothing is changed if anything is refused.

    `path`: a checkpoint, or a run or folder of checkpoints (its newest committed one). Every stored tensor must be used
    and every wanted one be stored, in name, shape and type, or the load is refused with the list of differences. What
    may differ has to be said:

    * `weights_only=True` takes weights and seeds; `optimizer=False` no optimizer and no averages (an optimizer instead
      of True: load into this one, which the model does not hold); `metrics=False` no metrics (None: metrics, unless the
      model's have no variables before their first batch).
    * `include` and `exclude` are patterns (`fnmatch`) for the names that take part, or their aliases.
    * `strict=False` lets tensors be on one side only; shapes still have to agree.
    * `slots="partial"` keeps what fits of an optimizer that was changed: a layer unfrozen, amsgrad switched, a
      schedule added. Slots go by variable and name. Of an optimizer of another class only the averages are kept.
    * `cast=True` converts between floating types, `cast={pattern: dtype}` the tensors named to the model's dtype.
    * `rename={"body": "encoder/body"}` says what a layer, or any first part of a name, is called in the model;
      `{"block_*": "stage_*"}` what a pattern of whole names is. Slots and averages of a variable follow it, and so do
      files of a layer. Names are those of the checkpoint, or Keras's own; `include` and the others see the new ones.

    `verify` compares checksums of what is loaded: "full", "fast" (a sample) or "off" (sizes only; on CPU pages are then
    read when they are first used, and the system begins to read them ahead). On CPU variables share the pages of the
    file until they are assigned anew, unless `mmap=False` or the file system is a network one: then data is read.

    With `missing_ok=True` it is no error that nothing is at `path` yet: the model stays as it is, and the report has no
    step and no progress. Whatever else is there has to be a checkpoint.
    """
    check_level(verify)
    _check_given("load", path, into, optimizer)
    here = on_this_machine(path)
    if missing_ok and _nothing_at(here):
        return LoadReport(restored={}, source=str(here), notes=("nothing is there yet: the model is as it was",))
    settings = {
        "weights_only": weights_only,
        "optimizer": optimizer is not False,
        "slots": slots,
        "metrics": metrics,
        "include": (include,) if isinstance(include, str) else tuple(include),
        "exclude": (exclude,) if isinstance(exclude, str) else tuple(exclude),
        "strict": strict,
        "cast": cast,
        "rename": rename,
    }
    with _holding(into, optimizer):
        return _as_long_as_replaced(here, lambda: _load(here, into, mmap, verify, settings))


def _load(path: Path, into: keras.Model, mapped: bool | None, verify: Verify, settings: dict[str, Any]) -> LoadReport:
    checkpoint, notes = _open(path, mapped)
    metrics = settings["metrics"]
    if metrics is None and not (metrics := _has_metrics_of(checkpoint, into)):
        notes.append("metrics were not loaded: those of the model have no variables before their first batch")
    report = restore(checkpoint, into, verify=verify, **{**settings, "metrics": metrics})
    return replace(
        report,
        source=str(checkpoint.path),
        step=checkpoint.step,
        progress=checkpoint.progress,
        notes=(*notes, *other_versions(checkpoint.record)),
    )


_TRIES = 10
_PAUSE_SECONDS = 0.02
_NOT_THERE = ("ANY-LOAD-001", "ANY-LOAD-002", "ANY-LOAD-013")  # what one finds between two renames, too


def _as_long_as_replaced(path: Path, act: Callable[[], _T]) -> _T:
    """Do it again, some times, while saves replace or retention removes what it opens: then a newer one is there."""
    for _ in range(_TRIES - 1):
        try:
            return act()
        except (AnyrigError, FileNotFoundError) as error:
            transient = not isinstance(error, AnyrigError) or error.code in _NOT_THERE or isinstance(error, Replaced)
            real = Path(os.path.realpath(path))
            if not transient or not (os.path.lexists(real) or os.path.lexists(_work_folder(real))):
                raise
        time.sleep(_PAUSE_SECONDS)
    return act()


def digest(what: keras.Model | _Path, *, step: int | None = None) -> str:
    """Return the state digest of a checkpoint or run (from its manifest alone), or of a model as it is now.

    It covers weights, optimizer, averages, metrics and step; `step` is that of a model, by default the number of
    updates of its optimizer. It is what `anyrig inspect --digest` prints last.
    """
    if isinstance(what, keras.Model):
        return state_digest_of(capture(what).tensors, _step(what, {}) if step is None else step)
    path = on_this_machine(what)
    return _as_long_as_replaced(path, lambda: _open(path, None)[0]).state_digest


def other_versions(record: Mapping[str, Any]) -> list[str]:
    """Say which packages were of another minor version when the checkpoint was made."""
    made = record.get("environment")
    pairs = [(name, made.get(name), version(name)) for name in PACKAGES] if isinstance(made, Mapping) else []
    return [
        f"made with {name} {old}, loaded with {new}"
        for name, old, new in pairs
        if old and new and str(old).split(".")[:2] != new.split(".")[:2]
    ]


def _open(path: Path, mapped: bool | None) -> tuple[Checkpoint, list[str]]:
    """Open what `path` means, wherever a save that was killed has left it; one of this process is waited for."""
    _wait_for_save(path)
    real = Path(os.path.realpath(path))  # a link stays where it is while what it leads to is replaced
    hidden = None if os.path.lexists(real) else newest_committed(_work_folder(real))
    if hidden is None:
        return open_checkpoint(find_checkpoint(path), mapped=mapped), []
    note = f"a save did not come to its end: the complete checkpoint was found in {hidden.path}"
    return open_checkpoint(hidden.path, mapped=mapped), [note]


def _wait_for_save(path: Path) -> None:
    for saving in [saving for saving in _newest if saving.path == Path(os.path.realpath(path))]:
        saving.wait()


def _nothing_at(path: Path) -> bool:
    """Tell whether there is nothing, or an empty folder, and no save that was killed between its two renames."""
    _wait_for_save(path)
    hidden = _work_folder(Path(os.path.realpath(path)))
    # Looked at twice: a save of another process may put its checkpoint in place between the first look and the second.
    return _is_empty(path) and newest_committed(hidden) is None and _is_empty(path)


def _is_empty(path: Path) -> bool:
    try:
        return not os.listdir(path)
    except FileNotFoundError:
        return True
    except OSError:  # a file, or a folder that may not be read: opening it says so
        return False


def _has_metrics_of(checkpoint: Checkpoint, model: keras.Model) -> bool:
    """Tell whether the model has the stored metrics' variables, or will never get others."""
    stored = {name for name in checkpoint.names if name.startswith("metrics/")}
    return not unbuilt(model) or stored <= {item.name for item in metric_variables(model)}


@contextmanager
def _holding(model: keras.Model, optimizer: bool | keras.optimizers.Optimizer) -> Iterator[None]:
    """Let the model hold `optimizer`, built, inside the block, as if it were compiled with it."""
    if isinstance(optimizer, bool):
        yield
        return
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    before = vars(model).get("optimizer")
    vars(model)["optimizer"] = optimizer
    try:
        yield
    finally:
        vars(model)["optimizer"] = before


def _step(model: keras.Model, progress: Mapping[str, Any]) -> int:
    if isinstance(progress.get("step"), int):
        return int(progress["step"])
    main = vars(model).get("optimizer")
    return int(keras.ops.convert_to_numpy(main.iterations)) if main is not None else 0
