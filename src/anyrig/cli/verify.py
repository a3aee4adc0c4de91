"""`anyrig verify`: reads every byte of a checkpoint, of all of a run, or of any file, and compares the checksums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from anyrig.cli import bar, options
from anyrig.errors import EXIT_CHECK_FAILED
from anyrig.sizes import size

if TYPE_CHECKING:
    from anyrig.diagnose.verify import VerifyReport
    from anyrig.diagnose.verify_file import FileVerdict


@click.command("verify")
@click.argument("path")
@options.as_json
@options.debug
def command(path: str, as_json: bool) -> int:
    """Check every byte of a checkpoint or a model file against its checksums.

    PATH is a run directory, of which every checkpoint is checked, a checkpoint, or a file or folder of another format
    (those that `anyrig inspect` knows): each of its tensors is read, and the checksums that its format has are
    compared; which these are is printed. Exits 3 when something is damaged.
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
    if report.file is not None:
        click.echo(_described(report.file))
    elif not report.checkpoints and not report.rejected:
        click.echo(f"{report.path}: there is no checkpoint to check")
    report.require_sound()
    return 0


def _described(verdict: FileVerdict) -> str:
    state = "DAMAGED" if verdict.damage else "sound" if verdict.checked else "readable"
    lines = [f"{verdict.path}  {state}  {verdict.words}: {verdict.tensors:,} tensors, {size(verdict.nbytes)} read"]
    if verdict.tensors or not verdict.damage:
        lines += [
            f"  checked: {what}"
            for what in verdict.checked or ("that every tensor can be read; there is no checksum to compare",)
        ]
        lines += [f"  not checked: {what}" for what in verdict.unchecked]
        lines += [f"  not read: {fault}" for fault in verdict.unread]
    return "\n".join(lines)


def _as_json(report: VerifyReport) -> str:
    import dataclasses
    import json

    return json.dumps({"sound": report.sound, **dataclasses.asdict(report)}, indent=2, ensure_ascii=False, default=str)
