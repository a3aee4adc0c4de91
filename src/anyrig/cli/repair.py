"""`anyrig repair`: makes a run directory ready to go on after kills and power cuts, and says what it did."""

from __future__ import annotations

import click

from anyrig.cli import bar, options


@click.command("repair")
@click.argument("run")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@options.as_json
@options.debug
def command(run: str, dry_run: bool, as_json: bool) -> None:
    """Clean up a run directory after a crash; no committed step is deleted.

    Every checkpoint of the run directory RUN is read in full. Saves that were complete but for their name get it,
    unfinished ones and interrupted removals are swept away, a lost environment.json and a torn end of events.jsonl
    are mended. Damaged checkpoints are listed and left: a start of the run goes on from the newest sound one by itself.
    Refused while the run is alive. Exits 3 when no checkpoint is left to go on from.
    """
    from anyrig.diagnose.repair import repair

    report = repair(run, dry_run=dry_run, watch=bar.reading)
    if as_json:
        import dataclasses
        import json

        content = dataclasses.asdict(report) | {"newest": report.newest}
        click.echo(json.dumps(content, indent=2, ensure_ascii=False, default=str))
        report.require_resumable()
        return
    for line in report.done:
        click.echo(f"would have {line}" if dry_run else line)
    if not report.done:
        click.echo("nothing to repair")
    for name, reason in report.damaged.items():
        click.echo(f"damaged, and left as it is: {name}: {reason}")
    for name in report.aside:
        click.echo(f"set aside earlier: {name}")
    report.require_resumable()
    if report.newest is None:
        click.echo("there is no checkpoint yet: the run starts from the beginning")
    else:
        click.echo(f"{len(report.sound)} sound, newest step {report.newest:,}: the run goes on from there")
