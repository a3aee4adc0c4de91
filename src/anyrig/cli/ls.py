"""`anyrig ls`: the checkpoints of a run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from anyrig.cli import options, text
from anyrig.errors import UsageError

if TYPE_CHECKING:
    from anyrig.store.commit import Rejected
    from anyrig.store.read import Checkpoint

_RIGHT = frozenset({"step", "epoch", "batch", "size", "age"})


@click.command("ls")
@click.argument("run")
@options.as_json
def command(run: str, as_json: bool) -> None:
    """List the checkpoints of a run.

    Only committed checkpoints count; a folder that was never finished or cannot be read is told below the list.
    """
    committed, rejected = _read(run)
    rows = [_row(checkpoint) for checkpoint in committed]
    if as_json:
        others = [{"name": item.name, "step": item.step, "reason": item.reason} for item in rejected]
        click.echo(json.dumps({"checkpoints": rows, "not_committed": others}, indent=2, ensure_ascii=False))
        return
    click.echo(_table(rows) if rows else f"{run}: no committed checkpoint yet")
    for item in rejected:
        click.echo(f"not committed: {item.name}: {item.reason}")


def _read(run: str) -> tuple[list[Checkpoint], list[Rejected]]:
    """Return the committed checkpoints, oldest first, and the other folders that bear a step."""
    from anyrig.locations import checkpoints_folder, resolve
    from anyrig.store.commit import Rejected, folders_with_steps

    location = resolve(run)
    if location.kind not in ("run", "checkpoints"):
        raise UsageError(
            "ANY-CLI-002",
            f"{run} is {location.words}, not a run directory",
            hint=f"type: anyrig inspect {run}" if location.kind == "checkpoint" else "give the folder named by --run",
        )
    found = list(folders_with_steps(checkpoints_folder(location)))[::-1]
    return [item for item in found if not isinstance(item, Rejected)], [i for i in found if isinstance(i, Rejected)]


def _row(checkpoint: Checkpoint) -> dict[str, Any]:
    position = checkpoint.progress.get("position") or {}
    return {
        "step": checkpoint.step,
        "epoch": position.get("epoch"),
        "batch": position.get("batch"),
        "metrics": checkpoint.progress.get("metrics") or {},
        "bytes": sum(entry.size for entry in checkpoint.manifest.files),
        "written": _written(checkpoint.path),
    }


def _written(folder: Path) -> float:
    """Return when the checkpoint was written, in seconds since 1970."""
    return (folder / "manifest.json").stat().st_mtime


def _table(rows: list[dict[str, Any]]) -> str:
    now = time.time()
    lines = [
        (
            text.value(row["step"]),
            text.value("" if row["epoch"] is None else row["epoch"]),
            text.value("" if row["batch"] is None else row["batch"]),
            text.size(row["bytes"]),
            text.age(now - row["written"]),
            "newest" if row is rows[-1] else "",
            text.values(row["metrics"]),
        )
        for row in rows
    ]
    return text.table(("step", "epoch", "batch", "size", "age", "", "metrics of the last epoch"), lines, _RIGHT)
