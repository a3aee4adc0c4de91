"""Read every tensor of a file of another format, and say which checksums were compared and which there are none for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from anyrig.diagnose.foreign import contents_of_other_format
from anyrig.errors import AnyrigError
from anyrig.formats.contents import Contents, FileTensor
from anyrig.store.check import Advance

_DAMAGE = frozenset({"ANY-FORMAT-002", "ANY-FORMAT-003", "ANY-FORMAT-004", "ANY-FORMAT-012", "ANY-LOAD-014"})
"""Errors that speak of the file; any other is about what is read here, or about the disk."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the tensors named in `tensors` (none: the whole) are not what was written, or are not read here."""

    tensors: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        more = f" and {len(self.tensors) - 1} more" if len(self.tensors) > 1 else ""
        return f"{self.tensors[0]}{more}: {self.message}" if self.tensors else self.message


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """A file of another format: sound when `damage` is empty. `nbytes` of `tensors` tensors were read.

    `checked` says which checksums were compared, `unchecked` for what the file records none; `unread` are tensors of
    types and packings that are not read here.
    """

    path: Path
    words: str
    tensors: int
    nbytes: int
    checked: tuple[str, ...]
    unchecked: tuple[str, ...]
    damage: tuple[Fault, ...]
    unread: tuple[Fault, ...] = ()


def refusal(path: Path, error: AnyrigError) -> FileVerdict | None:
    """Return the verdict on a file that cannot be opened because of what is in it; None for any other error."""
    if error.code not in _DAMAGE:
        return None
    return FileVerdict(path, "not readable", 0, 0, (), (), (Fault((), error.message),))


def contents_or_verdict(path: str | os.PathLike[str]) -> Contents | FileVerdict | None:
    """Return what is at `path`, or the verdict on it if opening it showed damage; None for this project's own files."""
    try:
        return contents_of_other_format(path)
    except AnyrigError as error:
        if (verdict := refusal(Path(path), error)) is not None:
            return verdict
        raise


def verdict_on(contents: Contents, advance: Advance) -> FileVerdict:
    """Read all tensors and assets of a file, in parallel."""
    with ThreadPoolExecutor() as pool:
        errors = list(pool.map(lambda tensor: _error_in(tensor, advance), contents.tensors))
    faults = {each.name: error for each, error in zip(contents.tensors, errors, strict=True) if error is not None}
    for name, read in contents.assets.items():
        try:
            read()
        except AnyrigError as error:
            faults[name] = error
    return FileVerdict(
        path=contents.path,
        words=contents.words,
        tensors=len(contents.tensors),
        nbytes=sum(each.nbytes for each in contents.tensors if each.name not in faults),
        checked=contents.checked,
        unchecked=contents.unchecked,
        damage=_together({name: error for name, error in faults.items() if error.code in _DAMAGE}),
        unread=_together({name: error for name, error in faults.items() if error.code not in _DAMAGE}),
    )


def _error_in(tensor: FileTensor, advance: Advance) -> AnyrigError | None:
    try:
        for part in tensor.read():
            advance(part.nbytes)
    except AnyrigError as error:
        if error.code == "ANY-LOAD-012":  # the disk, not the file
            raise
        return error
    return None


def _together(errors: Mapping[str, AnyrigError]) -> tuple[Fault, ...]:
    """Return the errors, those that say the same of several tensors once."""
    names: dict[str, list[str]] = {}
    for name, error in errors.items():
        names.setdefault(error.message, []).append(name)
    return tuple(Fault(tuple(found), message) for message, found in names.items())
