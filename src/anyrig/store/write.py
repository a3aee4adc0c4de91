"""Write one checkpoint: all of it, or nothing that anybody would take for one.

Everything goes into a hidden partial folder next to the target; each file is made read-only and flushed, the manifest
last, then the folder; one rename commits. On any exit by exception the partial folder is removed. Memory: one block of
1 MiB (one whole tensor when its array is not contiguous).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anyrig.errors import AnyrigError
from anyrig.store.digest import state_digest_of
from anyrig.store.layout import MANIFEST, leftover_name, step_name
from anyrig.store.local import LOCAL, LocalFiles, make_folders, remove_tree
from anyrig.store.manifest import FileEntry, Manifest, Piece, TensorEntry, encode
from anyrig.store.parse import ManifestError
from anyrig.store.plan import MAX_SHARD_BYTES, PlannedFile, WritePlan, plan_checkpoint
from anyrig.store.read import Checkpoint, open_checkpoint, verify_checkpoint
from anyrig.store.stream import new_file, write_bytes, write_tensor
from anyrig.store.tensors import StoredTensor, bytes_of

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write_checkpoint(
    checkpoints: str | os.PathLike[str],
    step: int,
    tensors: Sequence[StoredTensor],
    *,
    progress: Mapping[str, Any],
    documents: Mapping[str, bytes] = {},
    assets: Mapping[str, bytes] = {},
    record: Mapping[str, Any] = {},
    replace: bool = False,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    files: LocalFiles = LOCAL,
) -> Checkpoint:
    """Commit `<checkpoints>/step-<9 digits>` and return it opened.

    `documents` are plain file names, `assets` paths below `assets/`; `progress` and `record` must fit into JSON.
    A sound checkpoint of this step with the same state is returned as it is. One with another state is an error; with
    `replace` it, or one with other progress, gives way to the new one once that is on the disk. A damaged one is set
    aside under a hidden name.
    """
    plan = plan_checkpoint(
        step,
        tensors,
        progress=progress,
        documents=documents,
        assets=assets,
        record=record,
        max_shard_bytes=max_shard_bytes,
    )
    root = Path(checkpoints)
    with _named_errors(root, step):
        existing = _existing(root, step, files)
        same = existing is not None and existing.state_digest == state_digest_of(tensors, step)
        if existing is not None and same and (not replace or existing.progress == plan.progress):
            return existing
        if existing is not None and not replace:
            raise AnyrigError(
                "ANY-STORE-006",
                f"{existing.path} already holds another state of step {step}.",
                hint="resume from it, or train into another run directory",
            )
        return _write(root, plan, tensors, files)


@contextmanager
def _named_errors(root: Path, step: int) -> Iterator[None]:
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


def _write(root: Path, plan: WritePlan, tensors: Sequence[StoredTensor], files: LocalFiles) -> Checkpoint:
    make_folders(files, root)
    final = root / step_name(plan.step)
    with _partial_folder(root, plan.step, files) as partial:
        _fill(partial, plan, {tensor.name: tensor for tensor in tensors}, files)
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


def _fill(folder: Path, plan: WritePlan, tensors: Mapping[str, StoredTensor], files: LocalFiles) -> None:
    """Write every file and flush every folder, the manifest last and `folder` after it."""
    entries: list[FileEntry] = []
    stored: dict[str, TensorEntry] = {}
    for planned in plan.data_files:
        entries.append(_write_data(folder, planned, tensors, stored, files))
    for name, content in plan.other_files.items():
        make_folders(files, (folder / name).parent)
        entries.append(write_bytes(folder, name, content, files))
    for inner in sorted({(folder / name).parent for name in plan.other_files} - {folder}):
        files.flush_folder(inner)
    manifest = Manifest(
        step=plan.step,
        files=tuple(entries),
        tensors=tuple(stored[name] for name in tensors),
        progress=plan.progress,
        record=plan.record,
    )
    write_bytes(folder, MANIFEST, encode(manifest), files)
    files.flush_folder(folder)


def _write_data(
    folder: Path,
    planned: PlannedFile,
    tensors: Mapping[str, StoredTensor],
    stored: dict[str, TensorEntry],
    files: LocalFiles,
) -> FileEntry:
    """Write one data file and add an entry for each of its tensors to `stored`."""
    with new_file(folder, planned.name, files) as new:
        new.write(memoryview(planned.header))
        for spec in planned.tensors:
            start = new.size
            checksum, chunks = write_tensor(new, bytes_of(tensors[spec.name].array))
            piece = Piece((0,) * len(spec.shape), spec.shape, planned.name, start, new.size, chunks)
            given = tensors[spec.name]
            stored[spec.name] = TensorEntry(
                spec.name, given.aliases, spec.dtype, spec.shape, checksum, given.place, (piece,)
            )
        return new.finish()
