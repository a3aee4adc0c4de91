"""`anyrig ls`: the checkpoints of a run, or the runs in a folder."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyrig.cli import options, text
from anyrig.errors import UsageError
from anyrig.report import words
from anyrig.sizes import size

if TYPE_CHECKING:
    from anyrig.locations import Location
    from anyrig.store.commit import Rejected
    from anyrig.store.read import Checkpoint

_RIGHT = frozenset({"step", "newest step", "size", "age"})
_LEFT_OVER = {
    "damaged": "found damaged and set aside, so that it is not used; delete it when nobody needs it",
    "removed": "its removal was interrupted; the next start of the run removes it",
    "replaced": "its replacement was interrupted; the next start of the run removes it, or gives it its name back",
}
_UNFINISHED = "an upload or a removal that is going on or was broken off; the run's next upload uses or removes it"


@click.command("ls")
@click.argument("path")
@options.as_json
@options.debug
def command(path: str, as_json: bool) -> None:
    """List the checkpoints of a run, or the runs in a folder.

    PATH is a run directory, the URL of one, or a folder that holds some. Only committed checkpoints count; what was
    never finished, cannot be read or was set aside as damaged is told below the list. Other commands, and anyrig.load,
    take PATH/best and PATH/step-N for one of a run directory.
    """
    from anyrig.locations import resolve
    from anyrig.store.remote.url import is_url

    if is_url(path):
        _list_url(path, as_json)
        return
    location = resolve(path)
    if location.kind in ("run", "checkpoints"):
        _list_run(location, as_json)
    elif location.kind == "folder" and (runs := _runs_in(location.path)):
        _list_runs(location.path, runs, as_json)
    else:
        raise UsageError(
            "ANY-CLI-002",
            f"{path} is {location.words}" + (" and holds no run" if location.kind == "folder" else ", not a run"),
            hint=f"type: anyrig inspect {path}" if location.kind == "checkpoint" else "give the folder named by --run",
        )


def _list_run(location: Location, as_json: bool) -> None:
    from anyrig.locations import checkpoints_folder
    from anyrig.store.pins import pins

    folder = checkpoints_folder(location)
    committed, rejected = _read(folder)
    others = [
        *({"name": i.name, "step": i.step, "reason": i.reason.removeprefix(f"{folder / i.name} ")} for i in rejected),
        *_left_over(folder),
    ]
    rows = [_row(checkpoint, _written(checkpoint.path)) for checkpoint in committed]
    _tell(str(location.path), _marked(rows, pins(folder), committed), others, as_json)


def _list_url(url: str, as_json: bool) -> None:
    from anyrig.store.remote.reading import RunAt

    run = RunAt.look(url)
    steps = [(step.description, step.modified) for step in run.listing.steps]
    rows = [_row(checkpoint, modified) for checkpoint, modified in steps]
    pinned = dict.fromkeys(run.listing.pinned, "")
    others = [{"name": item.name, "step": item.step, "reason": item.reason} for item in run.listing.rejected]
    others += [{"name": Path(folder).name, "step": None, "reason": _UNFINISHED} for folder in run.listing.sweep]
    _tell(run.objects.url, _marked(rows, pinned, [checkpoint for checkpoint, _ in steps]), others, as_json)


def _tell(place: str, rows: list[dict[str, Any]], others: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"checkpoints": rows, "not_committed": others}, indent=2, ensure_ascii=False))
        return
    click.echo(_table(rows) if rows else f"{place}: no committed checkpoint yet")
    for item in others:
        click.echo(f"not committed: {item['name']}: {item['reason']}")


def _list_runs(folder: Path, runs: list[Path], as_json: bool) -> None:
    rows = [_run_row(folder, run) for run in runs]
    if as_json:
        click.echo(json.dumps({"runs": rows}, indent=2, ensure_ascii=False))
        return
    lines = [
        (
            row["name"],
            "none" if row["step"] is None else words.value(row["step"]),
            row["position"] or "",
            words.values(row["metrics"]),
        )
        for row in rows
    ]
    click.echo(text.table(("run", "newest step", "position", "metrics of the last epoch"), lines, _RIGHT))


def _runs_in(folder: Path) -> list[Path]:
    """Return the run directories in `folder` and in its folders, as `runs/demo` holds some."""
    from anyrig.locations import CHECKPOINTS

    return sorted(found.parent for depth in ("*", "*/*") for found in folder.glob(f"{depth}/{CHECKPOINTS}"))


def _run_row(folder: Path, run: Path) -> dict[str, Any]:
    from anyrig.locations import CHECKPOINTS

    committed, _ = _read(run / CHECKPOINTS)
    newest = (
        _row(committed[-1], _written(committed[-1].path)) | {"metrics": committed[-1].progress.get("metrics") or {}}
        if committed
        else {"step": None, "position": None, "metrics": {}}
    )
    return {"name": str(run.relative_to(folder)), "checkpoints": len(committed), **newest}


def _read(folder: Path) -> tuple[list[Checkpoint], list[Rejected]]:
    """Return the committed checkpoints, oldest first, and the other folders that bear a step."""
    from anyrig.store.commit import Rejected, folders_with_steps

    found = list(folders_with_steps(folder))[::-1]
    return [item for item in found if not isinstance(item, Rejected)], [i for i in found if isinstance(i, Rejected)]


def _left_over(folder: Path) -> list[dict[str, Any]]:
    """Return what was set aside, and what interrupted removals left (unfinished saves are told by the store)."""
    from anyrig.store.layout import leftover_of

    named = [(name, leftover_of(name)) for name in sorted(os.listdir(folder))]
    return [
        {"name": name, "step": found[0], "reason": _LEFT_OVER[found[1]]}
        for name, found in named
        if found and found[1] in _LEFT_OVER
    ]


def _row(checkpoint: Checkpoint, written: float | None) -> dict[str, Any]:
    from anyrig.store.known import known_of

    position = checkpoint.progress.get("position") or {}
    return {
        "step": checkpoint.step,
        "epoch": position.get("epoch"),
        "batch": position.get("batch"),
        "position": text.position(checkpoint.progress),
        "metrics": dict(known_of(checkpoint).metrics),
        "bytes": sum(entry.size for entry in checkpoint.manifest.files),
        "written": written,
    }


def _marked(rows: list[dict[str, Any]], pinned: Mapping[int, str], committed: list[Checkpoint]) -> list[dict[str, Any]]:
    """Add to each row its marks: the newest, the best ones by the run's own rule, and pins with their names."""
    from anyrig.store.known import known_of, metric_of, stored_rule
    from anyrig.store.retain import Keep, StepInfo, best_of

    keep = stored_rule(committed[-1] if committed else None) or Keep()
    known = [known_of(checkpoint) for checkpoint in committed]
    best = best_of([StepInfo(item.step, metric_of(item.metrics, keep.monitor)) for item in known], keep)
    return [
        {**row, "newest": row is rows[-1], "best": row["step"] in best, "pin": pinned.get(row["step"])} for row in rows
    ]


def _marks(row: dict[str, Any]) -> str:
    pin = row["pin"]
    pinned = None if pin is None else f"pinned as {pin}" if pin else "pinned"
    return ", ".join(filter(None, ("newest" if row["newest"] else "", "best" if row["best"] else "", pinned)))


def _written(folder: Path) -> float:
    """Return when the checkpoint was written, in seconds since 1970."""
    return (folder / "manifest.json").stat().st_mtime


def _table(rows: list[dict[str, Any]]) -> str:
    now = time.time()
    lines = [
        (
            words.value(row["step"]),
            row["position"],
            size(row["bytes"]),
            "" if row["written"] is None else words.age(now - row["written"]),
            _marks(row),
            words.values(row["metrics"]),
        )
        for row in rows
    ]
    return text.table(("step", "position", "size", "age", "", "metrics of the last epoch"), lines, _RIGHT)
