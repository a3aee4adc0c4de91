"""Say what a run, a checkpoint or a file of another format holds, from manifests and headers alone.

Reads no tensor and imports neither numpy nor TensorFlow, so it costs the same for any size; only statistics, which
are made on request, read what there is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anyrig.diagnose.foreign import contents_of_other_format, inputs_of, optimizer_of, precision_of, read_by
from anyrig.diagnose.verify import Watch, unwatched
from anyrig.formats.checkpoint import contents_of
from anyrig.formats.contents import TEXT, Contents, Signature, TensorSignature
from anyrig.locations import Location, checkpoints_folder, find_checkpoint, resolve
from anyrig.mapping.sides import without_copies
from anyrig.store.commit import folders_with_steps
from anyrig.store.manifest import TensorEntry
from anyrig.store.read import Checkpoint, open_checkpoint
from anyrig.store.remote.url import cleaned, is_url

if TYPE_CHECKING:
    from anyrig.diagnose.stats import TensorStats

_ROLES = {"weight": "weights", "optimizer": "optimizer", "other": "other"}


@dataclass(frozen=True, slots=True)
class TensorLine:
    """One tensor: `dtype` in safetensors spelling; `stats` where they were asked for and the type is known."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str
    aliases: tuple[str, ...] = ()
    stats: TensorStats | None = None


@dataclass(frozen=True, slots=True)
class GroupLine:
    """The tensors whose names start with `group/`: how many, how many elements, how many bytes."""

    group: str
    tensors: int
    elements: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What is at `path`, or at a URL. Of a run, `checkpoint` is its newest committed one and the rest describes that.

    `parameters` counts the elements of the weights under `model/` (of a plain safetensors file: all), as Keras's
    `count_params` does: the state of seed generators (`.../state`, two 64-bit integers) is random state and no weight.
    What a file does not record is None or empty. `tensors` is filled on request. Of another format, `format` and
    `words` say which, `written_by` which versions made it, `read_by` what opens it as it is, and `notes` what is odd.
    """

    path: Path | str
    kind: Literal["run", "checkpoint", "file"]
    checkpoint: Path | None = None
    steps: tuple[int, ...] = ()
    step: int | None = None
    parameters: int
    nbytes: int
    groups: tuple[GroupLine, ...]
    files: tuple[tuple[str, int], ...]
    model_digest: str | None = None
    state_digest: str | None = None
    progress: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    tensors: tuple[TensorLine, ...] = ()
    format: str | None = None
    words: str | None = None
    architecture: str | None = None
    written_by: Mapping[str, str] = field(default_factory=dict)
    read_by: str | None = None
    optimizer: str | None = None
    precision: str | None = None
    inputs: tuple[TensorSignature, ...] = ()
    signatures: tuple[Signature, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def epoch(self) -> Any:
        """The epoch that the progress names, on its own or in its position; None if it names none."""
        position = self.progress.get("position")
        return self.progress.get("epoch", position.get("epoch") if isinstance(position, dict) else None)


def inspect(
    path: str | os.PathLike[str], *, tensors: bool = False, stats: bool = False, watch: Watch = unwatched
) -> Inspection:
    """Describe a run directory, a folder of checkpoints, a checkpoint, or a file or folder of any format known here.

    `stats` reads every tensor once, lists them, and gives each its `stats`; `watch` is told how far it has come.
    """
    if is_url(path) and not stats:
        return _inspect_url(str(path), tensors)
    other = contents_of_other_format(path)
    found = _inspect(resolve(path), tensors or stats) if other is None else _inspect_other(other, tensors or stats)
    if not stats:
        return found
    return _with_stats(found, other or contents_of(open_checkpoint(_checkpoint_of(found))), watch)


def _inspect(location: Location, tensors: bool) -> Inspection:
    if location.kind == "checkpoint":
        return _inspect_checkpoint(location.path, "checkpoint", open_checkpoint(location.path), (), tensors)
    return _inspect_run(location, tensors)


def _checkpoint_of(found: Inspection) -> Path:
    assert found.checkpoint is not None  # of everything but other formats
    return found.checkpoint


def _with_stats(found: Inspection, stored: Contents, watch: Watch) -> Inspection:
    from anyrig.diagnose.stats import all_stats

    with watch(found.nbytes) as advance:
        stats = all_stats(stored.tensors, advance)
    lines = tuple(replace(line, stats=numbers) for line, numbers in zip(found.tensors, stats, strict=True))
    return replace(found, tensors=lines)


def _inspect_run(location: Location, tensors: bool) -> Inspection:
    found = [item for item in folders_with_steps(checkpoints_folder(location)) if isinstance(item, Checkpoint)]
    newest = found[0] if found else open_checkpoint(find_checkpoint(location.path))  # with none, this says so
    steps = tuple(sorted(checkpoint.step for checkpoint in found))
    return _inspect_checkpoint(location.path, "run", newest, steps, tensors)


def _inspect_url(url: str, tensors: bool) -> Inspection:
    """Describe what `url` means from manifests alone."""
    from anyrig.store.remote.reading import RunAt

    run = RunAt.look(url)
    newest = run.meant()[0].description
    if run.url.step is not None:
        return _inspect_checkpoint(cleaned(url), "checkpoint", newest, (), tensors)
    steps = tuple(step.step for step in run.listing.steps)
    return _inspect_checkpoint(cleaned(url), "run", newest, steps, tensors)


def _inspect_checkpoint(
    path: Path | str, kind: Literal["run", "checkpoint"], found: Checkpoint, steps: tuple[int, ...], tensors: bool
) -> Inspection:
    lines = [_line_of_entry(entry) for entry in found.manifest.tensors]
    return Inspection(
        path=path,
        kind=kind,
        checkpoint=found.path,
        steps=steps,
        step=found.step,
        parameters=_elements(line for line in lines if line.name.startswith("model/") and not _is_random_state(line)),
        nbytes=sum(line.nbytes for line in lines),
        groups=_groups(lines),
        files=tuple((entry.name, entry.size) for entry in found.manifest.files),
        model_digest=found.model_digest,
        state_digest=found.state_digest,
        progress=found.progress,
        record=found.record,
        tensors=tuple(lines) if tensors else (),
    )


def _inspect_other(contents: Contents, tensors: bool) -> Inspection:
    """Describe a file of another format; where tensors have roles, those are the groups."""
    lines = [
        TensorLine(each.name, each.dtype, each.shape, each.nbytes, each.file, each.aliases) for each in contents.tensors
    ]
    counted = {tensor.name for tensor in without_copies(contents.tensors, compare=False)}
    roles: dict[str, list[TensorLine]] = {role: [] for role in _ROLES}
    for line, each in zip(lines, contents.tensors, strict=True):
        roles[each.role].append(line)
    config = contents.config or {}
    return Inspection(
        path=contents.path,
        kind="file",
        parameters=_elements(line for line in roles["weight"] if line.dtype != TEXT and line.name in counted),
        nbytes=sum(line.nbytes for line in lines),
        groups=tuple(_group(_ROLES[role], found) for role, found in roles.items() if found),
        files=contents.files,
        tensors=tuple(lines) if tensors else (),
        format=contents.format,
        words=contents.words,
        architecture=str(config["class_name"]) if isinstance(config.get("class_name"), str) else None,
        written_by=contents.written_by,
        read_by=read_by(contents),
        optimizer=optimizer_of(contents),
        precision=precision_of(contents),
        inputs=inputs_of(contents),
        signatures=contents.signatures,
        notes=contents.notes,
    )


def _line_of_entry(entry: TensorEntry) -> TensorLine:
    return TensorLine(entry.name, entry.dtype, entry.shape, entry.nbytes, entry.pieces[0].file, entry.aliases)


def _is_random_state(line: TensorLine) -> bool:
    """Tell the state of a seed generator, as `state/seeds.py` names it and Keras shapes it."""
    return line.name.endswith("/state") and line.shape == (2,) and line.dtype == "I64"


def _elements(lines: Iterable[TensorLine]) -> int:
    return sum(math.prod(line.shape) for line in lines)


def _groups(lines: Sequence[TensorLine]) -> tuple[GroupLine, ...]:
    members: dict[str, list[TensorLine]] = {}
    for line in lines:
        members.setdefault(line.name.partition("/")[0], []).append(line)
    return tuple(_group(group, found) for group, found in members.items())


def _group(name: str, found: Sequence[TensorLine]) -> GroupLine:
    return GroupLine(name, len(found), _elements(found), sum(line.nbytes for line in found))
