"""`anyrig prune`: removes the checkpoints of a run that a rule lets go."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from anyrig.cli import options, text
from anyrig.cli.runs import checkpoints_of
from anyrig.errors import UsageError
from anyrig.report import words
from anyrig.sizes import size

if TYPE_CHECKING:
    from pathlib import Path

    from anyrig.store.read import Checkpoint
    from anyrig.store.retain import Keep, Verdict


@click.command("prune")
@click.argument("run", type=click.Path())
@click.option("--keep-last", metavar="N|all", help="Keep the newest N.")
@click.option("--keep-best", type=click.IntRange(min=0), help="Keep the best N by --monitor.")
@click.option("--monitor", metavar="METRIC", help="The metric that says what is best.")
@click.option("--mode", type=click.Choice(["auto", "min", "max"]), help="Whether small or large is better.")
@click.option("--keep-every", type=click.IntRange(min=1), help="Keep those whose step N divides.")
@click.option("--max-total-size", metavar="SIZE", help="The most that all may take, e.g. 20GB.")
@click.option("--min-free", metavar="SIZE", help="What is left free on the disk.")
@click.option("--dry-run", is_flag=True, help="Show what would go; remove nothing.")
@options.as_json
@options.debug
def command(run: str, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Remove the checkpoints of a run that its rules let go.

    Of each checkpoint of RUN it says why it stays or goes. The rules are those that the run was last trained with (its
    `checkpoint` settings); each option replaces one. Where none are stored, at least --keep-last has to be given. The
    newest checkpoint and pinned ones always stay. Refused while the run is being trained, but for --dry-run.
    """
    from contextlib import ExitStack

    from anyrig.store.lock import RunLock
    from anyrig.train.keeping import Keeper

    directory, folder = checkpoints_of(run)
    with ExitStack() as stack:
        if not dry_run:
            stack.enter_context(RunLock(directory))
        keeper = Keeper(folder, _rule(folder, {name: value for name, value in given.items() if value is not None}))
        verdicts = keeper.judge()
        told = _as_json(verdicts, dry_run=dry_run) if as_json else _told(folder, verdicts, keeper.keep, dry_run=dry_run)
        warning = None if dry_run else keeper.retain()[1]
    click.echo(told)
    if warning:
        click.echo(warning, err=True)


def _rule(folder: Path, given: dict[str, Any]) -> Keep:
    from dataclasses import asdict

    from anyrig.store.commit import folders_with_steps
    from anyrig.store.read import Checkpoint
    from anyrig.store.retain import Keep
    from anyrig.train.checkpoint import keep_rule

    committed = [found for found in folders_with_steps(folder) if isinstance(found, Checkpoint)]
    from anyrig.store.known import stored_rule

    stored = stored_rule(committed[0] if committed else None)
    if stored is None and committed and "keep_last" not in given:
        raise UsageError(
            "ANY-CLI-015",
            f"{folder} does not say by which rules its checkpoints are kept; nothing was removed",
            hint="say how many stay: --keep-last 3, with --keep-best 1 --monitor val_loss the best one, too",
        )
    _refuse_missing(given.get("monitor"), committed)
    settings = asdict(stored or Keep())
    named = {name.removeprefix("keep_"): value for name, value in given.items()}
    if "monitor" in named:  # another metric: what is better is asked anew, and one of the best is kept at least
        settings |= {"mode": "auto", "best": settings["best"] or None}
    if "last" in named:
        named["last"] = None if named["last"] == "all" else _whole(named["last"])
    try:
        return keep_rule(**(settings | named))
    except ValueError as error:
        raise UsageError("ANY-CLI-014", str(error), hint="see: anyrig prune --help") from error


def _refuse_missing(monitor: str | None, committed: list[Checkpoint]) -> None:
    """Raise if no checkpoint has the metric that is asked for: no best one would be seen, and all would go."""
    from anyrig.store.known import known_of, metric_of

    metrics = [known_of(found).metrics for found in committed]
    there = {name for found in metrics for name in found if metric_of(found, name) is not None}
    if monitor is None or not committed or monitor in there:
        return
    raise UsageError(
        "ANY-CLI-014",
        f"--monitor: no checkpoint has a metric {monitor!r}; there are {', '.join(sorted(there)) or 'none'}",
        hint="give one of these",
    )


def _whole(value: str) -> int | str:
    return int(value) if value.isdecimal() else value


def _told(folder: Path, verdicts: list[Verdict], keep: Keep, *, dry_run: bool) -> str:
    from anyrig.store.layout import MANIFEST, step_name
    from anyrig.train.keeping import describe_keep

    if not verdicts:
        return f"{folder}: no committed checkpoint yet"
    now, lines = time.time(), []
    for verdict in verdicts:
        age = now - (folder / step_name(verdict.info.step) / MANIFEST).stat().st_mtime
        why = f"stays: {', '.join(verdict.stays)}" if verdict.stays else f"goes: {verdict.goes}"
        lines.append((words.value(verdict.info.step), size(verdict.info.nbytes), words.age(age), why))
    going = [verdict.info.nbytes for verdict in verdicts if not verdict.stays]
    done = "would go; nothing was removed" if dry_run else "removed"
    table = text.table(("step", "size", "age", ""), lines, frozenset({"step", "size", "age"}))
    return f"kept: {describe_keep(keep)}\n{table}\n{len(going)} of {len(verdicts)} ({size(sum(going))}) {done}"


def _as_json(verdicts: list[Verdict], *, dry_run: bool) -> str:
    rows = [
        {"step": v.info.step, "bytes": v.info.nbytes, "metric": v.info.metric, "stays": list(v.stays), "goes": v.goes}
        for v in verdicts
    ]
    return json.dumps({"removed": not dry_run, "checkpoints": rows}, indent=2, ensure_ascii=False)
