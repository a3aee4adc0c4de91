"""Checkpoints of TensorFlow: `tf.train.Checkpoint` and the Savers of TensorFlow 1, whatever file of one is given.

A prefix, its `.index`, `.data-*` or `.meta` file, a `checkpoint` file that names the newest of its folder, and the
folder itself all open the same thing. Only files of that very folder are opened: of a `checkpoint` file that names
another place (its author's disk), the last part of the name is looked for here.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anyrig.errors import AnyrigError
from anyrig.formats.contents import TEXT, Budget, Contents, FileTensor, damaged
from anyrig.formats.protobuf import parse
from anyrig.formats.tf_bundle import INDEX_SUFFIX, OBJECT_GRAPH, Bundle, Prefix, open_bundle
from anyrig.formats.tf_objects import Named, named, nodes_of
from anyrig.formats.tf_saver import is_saver_file, saver_tensors
from anyrig.formats.tf_table import is_table
from anyrig.formats.tf_variables import purposes
from anyrig.store.check import unreadable
from anyrig.store.dtypes import ITEM_BYTES

POINTER = "checkpoint"
_POINTER_BYTES = 2**20
_POINTER_LINE = re.compile(rb'^[ \t]*model_checkpoint_path[ \t]*:[ \t]*"((?:[^"\\\n]|\\.)*)"[ \t\r]*$', re.M)
_MEMBER = re.compile(r"(?P<prefix>.*)(\.index|\.meta|\.data-\d{5}-of-\d{5})", re.S)


@dataclass(frozen=True, slots=True)
class _Found:
    prefix: Prefix
    notes: tuple[str, ...] = ()


def recognize(path: Path) -> Path | None:
    """Return the path if it is, or names, or holds a checkpoint of TensorFlow."""
    try:
        found = _find(path)
    except AnyrigError:
        return path  # it is one, with a fault that reading it will tell
    except OSError:
        return None
    return None if found is None else path


def read(path: Path, budget: Budget) -> Contents:
    """Return the tensors of a checkpoint under the names of its objects, or of its variables."""
    try:
        found = _find(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if found is None:
        raise damaged(path, "there is no checkpoint of TensorFlow")
    if found.prefix.index.exists():
        contents = contents_of(open_bundle(found.prefix, budget))
    else:
        contents = _of_saver(found.prefix.path, budget)
    return dataclasses.replace(contents, notes=found.notes + contents.notes)


def contents_of(bundle: Bundle) -> Contents:
    """Return what a bundle holds."""
    keys = bundle.keys
    objects = OBJECT_GRAPH in keys
    keys = [key for key in keys if key != OBJECT_GRAPH]
    tensors = tuple(bundle.tensor(key) for key in keys)
    tensors = named_by_objects(tensors, _object_names(bundle, keys)) if objects else named_by_variables(tensors)
    return Contents(
        format="tensorflow-checkpoint" if objects else "tensorflow-variables",
        words="a TensorFlow checkpoint (tf.train.Checkpoint)"
        if objects
        else "a TensorFlow checkpoint (named variables)",
        path=bundle.prefix.path,
        tensors=tensors,
        metadata={"format_version": bundle.producer},
        files=bundle.files,
        checked=("the CRC-32C of each tensor", "the CRC-32C of each block of the index"),
        unchecked=tuple(f"{each.name}, which is of type {each.dtype}" for each in strange_ones(tensors)),
        notes=_notes(tensors),
    )


def named_by_objects(tensors: Sequence[FileTensor], names: Mapping[str, Named]) -> tuple[FileTensor, ...]:
    """Return tensors with what the object graph says of them."""
    return tuple(
        dataclasses.replace(
            tensor,
            name=(said := names[tensor.name]).name,
            aliases=said.aliases,
            role="other" if tensor.dtype == TEXT else said.role,
            of=said.of,
            slot=said.slot,
        )
        for tensor in tensors
    )


def named_by_variables(tensors: Sequence[FileTensor]) -> tuple[FileTensor, ...]:
    """Return tensors with what their names say of them."""
    said = purposes({tensor.name: tensor.shape for tensor in tensors})
    return tuple(
        dataclasses.replace(
            tensor,
            role="other" if tensor.dtype == TEXT else said[tensor.name].role,
            of=said[tensor.name].of,
            slot=said[tensor.name].slot,
        )
        for tensor in tensors
    )


def _object_names(bundle: Bundle, keys: Sequence[str]) -> dict[str, Named]:
    tensor = bundle.tensor(OBJECT_GRAPH)
    if tensor.dtype != TEXT or tensor.shape != ():
        raise damaged(bundle.prefix.index, "its object graph is not text")
    (block,) = tensor.read()
    return named(nodes_of(parse(block[0], bundle.prefix.index, bundle.budget)), keys)


def _notes(tensors: Sequence[FileTensor]) -> tuple[str, ...]:
    strange = strange_ones(tensors)
    return tuple(f"{tensor.name} is of type {tensor.dtype}: its bytes are not read as numbers." for tensor in strange)


def strange_ones(tensors: Sequence[FileTensor]) -> list[FileTensor]:
    """Return the tensors whose bytes mean nothing here."""
    return [tensor for tensor in tensors if tensor.dtype not in ITEM_BYTES and tensor.dtype != TEXT]


def _of_saver(file: Path, budget: Budget) -> Contents:
    tensors = named_by_variables(saver_tensors(file, budget))
    return Contents(
        format="tensorflow-variables",
        words="a TensorFlow checkpoint (named variables, first format)",
        path=file,
        tensors=tensors,
        files=((file.name, file.stat().st_size),),
        checked=("the CRC-32C of each block of the table",),
        notes=_notes(tensors),
    )


def _find(path: Path) -> _Found | None:
    """Return the checkpoint that a path means."""
    as_prefix = Prefix(path.parent, path.name)
    if path.is_dir():
        return _in_folder(path) or (_Found(as_prefix) if path.name and _has_index(as_prefix) else None)
    if not path.is_file():
        return _Found(as_prefix) if path.name and _has_index(as_prefix) else None
    if path.name == POINTER and _POINTER_LINE.search(_start(path)):
        return _in_folder(path.parent)
    if member := _MEMBER.fullmatch(path.name):
        prefix = Prefix(path.parent, member["prefix"])
        return _Found(prefix) if _is_there(prefix) else None
    return _Found(as_prefix) if is_saver_file(path) else None


def _in_folder(folder: Path) -> _Found | None:
    """Return the checkpoint that a folder's `checkpoint` file names, else the newest that is in it."""
    pointer, here = folder / POINTER, _prefixes(folder)
    if pointer.is_file() and (target := _POINTER_LINE.search(_start(pointer))):
        return _pointed(pointer, _unquoted(target[1]), here)
    if not here:
        return None
    *others, newest = here
    note = f"{folder} holds several checkpoints; {newest!r} has the highest number. The others: {', '.join(others)}."
    return _Found(Prefix(folder, newest), (note,) if others else ())


def _pointed(pointer: Path, target: str, here: Sequence[str]) -> _Found:
    """Return the checkpoint that a `checkpoint` file names: below its folder, or of the same last name in it."""
    folder = pointer.parent
    above, _, name = target.replace("\\", "/").rpartition("/")
    beside = Prefix(folder, name)
    below = Prefix(folder / above, name)
    if not target.startswith("/") and _stays_in(folder, above) and _is_there(below):
        return _Found(below)
    if _is_there(beside):
        return _Found(
            beside, (f"{pointer} names {target}, which is elsewhere; {beside.index.name} beside it was opened.",)
        )
    known = ", ".join(str(folder / prefix) for prefix in here[-3:])
    raise AnyrigError(
        "ANY-FORMAT-013",
        f"{pointer} names {target!r}, and {folder} does not hold it.",
        hint=f"give one that is there: {known}" if here else "copy its .index and .data files into the folder",
    )


def _stays_in(folder: Path, below: str) -> bool:
    steps = below.split("/") if below else []
    places = [folder.joinpath(*steps[: count + 1]) for count in range(len(steps))]
    return ".." not in steps and not any(place.is_symlink() for place in places)


def _is_there(prefix: Prefix) -> bool:
    return _has_index(prefix) or (prefix.name not in ("", "..") and is_saver_file(prefix.path))


def _has_index(prefix: Prefix) -> bool:
    """Tell whether there is an index; one that was cut off is known by the data beside it."""
    if is_table(prefix.index):
        return True
    data = f"{glob.escape(prefix.name)}.data-?????-of-?????"
    return prefix.index.is_file() and next(prefix.folder.glob(data), None) is not None


def _prefixes(folder: Path) -> list[str]:
    """Return the prefixes in a folder, sorted by the numbers in their names."""
    names = [name.removesuffix(INDEX_SUFFIX) for name in os.listdir(folder) if name.endswith(INDEX_SUFFIX)]
    return sorted((name for name in names if _has_index(Prefix(folder, name))), key=_by_number)


def _by_number(name: str) -> tuple[tuple[int, ...], str]:
    return tuple(int(digits) for digits in re.findall(r"\d{1,18}", name)[::-1]), name


def _start(path: Path) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(_POINTER_BYTES)


def _unquoted(quoted: bytes) -> str:
    """Return a string of a text message, whose escapes are those of C."""
    text = re.sub(rb"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", _character, quoted, flags=re.S)
    return text.decode("utf-8", "replace")


def _character(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    if code[:1] == b"x" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    if code[:1].isdigit() and code.strip(b"01234567") == b"":
        return bytes([int(code, 8) & 0xFF])
    return {b"n": b"\n", b"t": b"\t", b"r": b"\r"}.get(code, code)
