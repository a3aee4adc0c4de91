"""`anyrig parity`: a few steps of a recipe on several device counts, and a verdict for every tensor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from anyrig.cli import options
from anyrig.errors import EXIT_CHECK_FAILED, EXIT_USAGE, CheckFailed, UsageError

if TYPE_CHECKING:
    from anyrig.train.parity.report import Report


@click.command("parity")
@options.recipe
@options.overrides
@click.option("--devices", metavar="N,N,...", default="1,2,4", show_default=True, help="The device counts to compare.")
@click.option("--steps", metavar="N", type=int, default=5, show_default=True, help="Steps to train on each of them.")
@click.option(
    "--virtual-replicas",
    metavar="V",
    type=int,
    help="Virtual replicas. Default: those of the recipe, or else the largest device count.",
)
@options.as_json
@options.debug
def command(
    recipe: str,
    overrides: tuple[str, ...],
    devices: str,
    steps: int,
    virtual_replicas: int | None,
    as_json: bool,
) -> int:
    """Train a few steps on several device counts; compare every tensor.

    Each device count is a process of its own (on a machine without GPUs, with that many logical CPUs). Nothing is
    saved. Exits 3 when the bytes differ, and says since which step, in which layer it began, and the likely cause.
    """
    from anyrig.train.parity.run import parity

    report = parity(
        recipe, overrides=overrides, devices=_counts(devices), steps=steps, virtual_replicas=virtual_replicas
    )
    click.echo(json.dumps(report.as_json(), indent=2, ensure_ascii=False) if as_json else str(report))
    if not report.trained:
        return EXIT_USAGE
    if not report.same and not as_json:
        raise _different(report)
    return 0 if report.same else EXIT_CHECK_FAILED


def _counts(devices: str) -> list[int]:
    try:
        return [int(part) for part in devices.split(",")]
    except ValueError:
        raise UsageError(
            "ANY-PARITY-004",
            f"devices: expected numbers with commas, found {devices}",
            hint="type --devices 1,2,4",
        ) from None


def _different(report: Report) -> CheckFailed:
    promise = "" if report.promised else " (not promised for a model with its own train_step)"
    found = "some device counts could not train" if report.problems else f"{len(report.differing)} tensors differ"
    return CheckFailed(
        "ANY-PARITY-006",
        f"the device counts do not give the same run: {found}{promise}",
        hint="correct what is named above, and run it again; docs/parity.md explains each cause",
    )
