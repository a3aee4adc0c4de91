"""Write one checkpoint: all of it, or nothing that anybody would take for one.

Everything goes into a hidden partial folder next to the target; each file is made read-only and flushed, the manifest
last, then the folder; one rename commits. On any exit by exception the partial folder is removed. Bytes go out from the
arrays themselves: no memory is taken but for an array that is not contiguous, or not on the host, while it is written.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyrig.errors import AnyrigError
from anyrig.store.digest import state_digest_of
from anyrig.store.header import TensorSpec
from anyrig.store.layout import MANIFEST, leftover_name, step_name
from anyrig.store.local import LOCAL, LocalFiles, make_folders, remove_tree
from anyrig.store.manifest import FileEntry, Manifest, Piece, TensorEntry, encode
from anyrig.store.parse import ManifestError
from anyrig.store.plan import BY_SIZE, PlannedFile, Shards, WritePlan, plan_checkpoint
from anyrig.store.read import Checkpoint, open_checkpoint, verify_checkpoint
from anyrig.store.stream import NewFile, new_file, write_bytes, write_tensor
from anyrig.store.tensors import StoredTensor, bytes_of, host_array

if TYPE_CHECKING:
    import numpy as np

Check = Callable[[str, "np.ndarray[Any, Any]"], None]

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_checkpoint(
    checkpoints: str | os.PathLike[str],
    step: int,
    tensors: Iterable[StoredTensor],
    *,
    progress: Mapping[str, Any],
    documents: Mapping[str, bytes] = {},
    assets: Mapping[str, bytes] = {},
    record: Mapping[str, Any] = {},
    replace: bool = False,
    shards: Shards = BY_SIZE,
    check: Check = lambda name, array: None,
    files: LocalFiles = LOCAL,
) -> Checkpoint:
    """Commit `<checkpoints>/step-<9 digits>` and return it opened.

    `documents` are plain file names, `assets` paths below `assets/`; `progress` and `record` must fit into JSON.
    A sound checkpoint of this step with the same state is returned as it is. One with another state is an error; with
    `replace` it, or one with other progress, gives way to the new one once that is on the disk. A damaged one is set
    aside under a hidden name. `check` is given each tensor before it is written; what it raises ends the save. Each
    tensor is let go of as soon as it is written: `drained` makes sure that the caller does not hold it either.
    """
    given = list(tensors)
    plan = plan_checkpoint(
        step,
        given,
        progress=progress,
        documents=documents,
        assets=assets,
        record=record,
        shards=shards,
    )
    root = Path(checkpoints)
    with errors_named(root, step):
        existing = _existing(root, step, files)
        same = existing is not None and existing.state_digest == state_digest_of(given, step)
        if existing is not None and same and (not replace or existing.progress == plan.progress):
            return existing
        if existing is not None and not replace:
            raise AnyrigError(
                "ANY-STORE-006",
                f"{existing.path} already holds another state of step {step}.",
                hint="resume from it, or train into another run directory",
            )
        remaining = {tensor.name: tensor for tensor in drained(given)}
        return _write(root, plan, remaining, check, files)


def drained(tensors: list[StoredTensor]) -> Iterator[StoredTensor]:
    """Yield the members of a list and take them out of it: whoever receives them is the only one to hold them."""
    tensors.reverse()
    while tensors:
        yield tensors.pop()


@contextmanager
def errors_named(root: Path, step: int) -> Iterator[None]:
    """Turn what the file system raises inside the block into ANY-STORE-007."""
    try:
        yield
    except OSError as error:
        full = error.errno in _NO_SPACE
        raise AnyrigError(
            "ANY-STORE-007",
            f"Step {step} was not saved in {root}: {error}. Earlier checkpoints are as they were.",
            hint="free some space or lower keep_last" if full else "check the folder's permissions and its disk",
        ) from error


def _existing(root: Path, step: int, files: LocalFiles) -> Checkpoint | None:
    """Return the step's checkpoint when it is sound; set a damaged one aside."""
    folder = root / step_name(step)
    if not os.path.lexists(folder):
        return None
    try:
        found = open_checkpoint(folder)
    except ManifestError:
        found = None
    if found is not None and not verify_checkpoint(found):
        return found
    files.rename(folder, root / leftover_name(step, "damaged"))
    return None


def _write(
    root: Path, plan: WritePlan, remaining: dict[str, StoredTensor], check: Check, files: LocalFiles
) -> Checkpoint:
    make_folders(files, root)
    final = root / step_name(plan.step)
    with _partial_folder(root, plan.step, files) as partial:
        _fill(partial, plan, remaining, check, files)
        with _out_of_the_way(root, plan.step, files):
            # Committed by this rename: every file, the manifest and the folder's list of names are on the disk by now.
            files.rename(partial, final)
    return open_checkpoint(final)


@contextmanager
def _out_of_the_way(root: Path, step: int, files: LocalFiles) -> Iterator[None]:
    """Move the step's former checkpoint aside and remove it after the new one is on the disk.

    Between the two renames neither bears the final name; `sweep_partials` then puts the former one back.
    """
    final, former = root / step_name(step), root / leftover_name(step, "replaced")
    replacing = os.path.lexists(final)
    if replacing:
        files.rename(final, former)
    try:
        yield
    except BaseException:
        if replacing and not os.path.lexists(final):
            files.rename(former, final)
        raise
    files.flush_folder(root)
    if replacing:
        remove_tree(files, former)


@contextmanager
def _partial_folder(root: Path, step: int, files: LocalFiles) -> Iterator[Path]:
    folder = root / leftover_name(step, "partial")
    try:
        files.make_folder(folder)
        yield folder
    except BaseException as first:
        try:
            if folder.is_dir():
                remove_tree(files, folder)
        except OSError as second:
            first.add_note(f"{folder} could not be removed: {second}")
        raise


def _fill(folder: Path, plan: WritePlan, remaining: dict[str, StoredTensor], check: Check, files: LocalFiles) -> None:
    """Write every file and flush every folder, the manifest last and `folder` after it; empty `remaining`."""
    entries: list[FileEntry] = []
    stored: dict[str, TensorEntry | None] = dict.fromkeys(remaining)
    for planned in plan.data_files:
        file, tensors = _write_data(folder, planned, remaining, check, files)
        entries.append(file)
        stored |= tensors
    for name, content in plan.other_files.items():
        make_folders(files, (folder / name).parent)
        entries.append(write_bytes(folder, name, content, files))
    for inner in sorted({(folder / name).parent for name in plan.other_files} - {folder}):
        files.flush_folder(inner)
    manifest = Manifest(
        step=plan.step,
        files=tuple(entries),
        tensors=tuple(entry for entry in stored.values() if entry is not None),
        progress=plan.progress,
        record=plan.record,
    )
    write_bytes(folder, MANIFEST, encode(manifest), files)
    files.flush_folder(folder)


def _write_data(
    folder: Path, planned: PlannedFile, remaining: dict[str, StoredTensor], check: Check, files: LocalFiles
) -> tuple[FileEntry, dict[str, TensorEntry]]:
    """Write one data file, taking its tensors out of `remaining`; return its entry and those of its tensors."""
    stored: dict[str, TensorEntry] = {}
    with new_file(folder, planned.name, files) as new:
        new.write(memoryview(planned.header))
        for spec in planned.tensors:
            stored[spec.name] = _write_tensor(new, planned.name, spec, remaining.pop(spec.name), check)
        return new.finish(), stored


def _write_tensor(new: NewFile, file: str, spec: TensorSpec, given: StoredTensor, check: Check) -> TensorEntry:
    array = host_array(given)
    check(spec.name, array)
    start = new.size
    checksum, chunks = write_tensor(new, bytes_of(array))
    piece = Piece((0,) * len(spec.shape), spec.shape, file, start, new.size, chunks)
    return TensorEntry(spec.name, given.aliases, spec.dtype, spec.shape, checksum, given.place, (piece,))
