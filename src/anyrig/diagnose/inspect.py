"""Say what a run, a checkpoint or a safetensors file holds, from manifests and headers alone.

Reads no tensor and imports neither numpy nor TensorFlow, so it costs the same for any size; only statistics, which
are made on request, read what there is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anyrig.diagnose.verify import Watch, unwatched
from anyrig.errors import UsageError
from anyrig.formats import safetensors
from anyrig.formats.checkpoint import contents_of
from anyrig.formats.contents import Budget
from anyrig.locations import Location, checkpoints_folder, find_checkpoint, resolve
from anyrig.store.commit import folders_with_steps
from anyrig.store.header import TensorSpec, read_header
from anyrig.store.manifest import TensorEntry
from anyrig.store.read import Checkpoint, open_checkpoint
from anyrig.store.remote.url import cleaned, is_url

if TYPE_CHECKING:
    from anyrig.diagnose.stats import TensorStats


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
    What a safetensors file does not record is None or empty. `tensors` is filled on request.
    """

    path: Path | str
    kind: Literal["run", "checkpoint", "safetensors"]
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

    @property
    def epoch(self) -> Any:
        """The epoch that the progress names, on its own or in its position; None if it names none."""
        position = self.progress.get("position")
        return self.progress.get("epoch", position.get("epoch") if isinstance(position, dict) else None)


def inspect(
    path: str | os.PathLike[str], *, tensors: bool = False, stats: bool = False, watch: Watch = unwatched
) -> Inspection:
    """Describe a run directory, a folder of checkpoints, a checkpoint or a safetensors file.

    `stats` reads every tensor once, lists them, and gives each its `stats`; `watch` is told how far it has come.
    """
    if is_url(path) and not stats:
        return _inspect_url(str(path), tensors)
    found = _inspect(resolve(path), tensors or stats)
    return _with_stats(found, watch) if stats else found


def _inspect(location: Location, tensors: bool) -> Inspection:
    if location.kind == "safetensors":
        return _inspect_file(location.path, tensors)
    if location.kind == "checkpoint":
        return _inspect_checkpoint(location.path, "checkpoint", open_checkpoint(location.path), (), tensors)
    if location.kind in ("run", "checkpoints"):
        return _inspect_run(location, tensors)
    raise UsageError(
        "ANY-LOAD-015",
        f"{location.path} is {location.words}: there is nothing to inspect.",
        hint="give a run directory, a checkpoint (a folder named step-N) or a .safetensors file",
    )


def _with_stats(found: Inspection, watch: Watch) -> Inspection:
    from anyrig.diagnose.stats import all_stats

    stored = (
        safetensors.read(Path(found.path), Budget())
        if found.checkpoint is None
        else contents_of(open_checkpoint(found.checkpoint))
    )
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


def _inspect_file(path: Path, tensors: bool) -> Inspection:
    lines = [_line_of_spec(spec, path.name) for spec in read_header(path)]
    return Inspection(
        path=path,
        kind="safetensors",
        parameters=_elements(lines),
        nbytes=sum(line.nbytes for line in lines),
        groups=_groups(lines),
        files=((path.name, path.stat().st_size),),
        tensors=tuple(lines) if tensors else (),
    )


def _line_of_entry(entry: TensorEntry) -> TensorLine:
    return TensorLine(entry.name, entry.dtype, entry.shape, entry.nbytes, entry.pieces[0].file, entry.aliases)


def _line_of_spec(spec: TensorSpec, file: str) -> TensorLine:
    return TensorLine(spec.name, spec.dtype, spec.shape, spec.nbytes, file)


def _is_random_state(line: TensorLine) -> bool:
    """Tell the state of a seed generator, as `state/seeds.py` names it and Keras shapes it."""
    return line.name.endswith("/state") and line.shape == (2,) and line.dtype == "I64"


def _elements(lines: Iterable[TensorLine]) -> int:
    return sum(math.prod(line.shape) for line in lines)


def _groups(lines: Sequence[TensorLine]) -> tuple[GroupLine, ...]:
    members: dict[str, list[TensorLine]] = {}
    for line in lines:
        members.setdefault(line.name.partition("/")[0], []).append(line)
    return tuple(
        GroupLine(group, len(found), _elements(found), sum(line.nbytes for line in found))
        for group, found in members.items()
    )
