"""`anyrig verify`: reads every byte of a checkpoint, or of all of a run, and compares the checksums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from anyrig.cli import bar, options
from anyrig.errors import EXIT_CHECK_FAILED
from anyrig.sizes import size

if TYPE_CHECKING:
    from anyrig.diagnose.verify import VerifyReport


@click.command("verify")
@click.argument("path")
@options.as_json
@options.debug
def command(path: str, as_json: bool) -> int:
    """Check every byte of a checkpoint against its checksums.

    PATH is a checkpoint, or a run directory, of which every checkpoint is checked. Exits 3 when something is damaged.
    """
    from anyrig.diagnose.verify import verify

    report = verify(path, watch=bar.reading)
    if as_json:
        click.echo(_as_json(report))
        return 0 if report.sound else EXIT_CHECK_FAILED
    for verdict in report.checkpoints:
        state = "DAMAGED" if verdict.damage else "sound"
        click.echo(f"{verdict.path.name}  {state}  {size(verdict.nbytes)} read")
    for rejected in report.rejected:
        click.echo(f"{rejected.name}  NOT COMMITTED")
    if not report.checkpoints and not report.rejected:
        click.echo(f"{report.path}: there is no checkpoint to check")
    report.require_sound()
    return 0


def _as_json(report: VerifyReport) -> str:
    import dataclasses
    import json

    return json.dumps({"sound": report.sound, **dataclasses.asdict(report)}, indent=2, ensure_ascii=False, default=str)
