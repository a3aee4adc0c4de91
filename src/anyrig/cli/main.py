"""The command line: finds the command, imports only that one, and turns errors into messages and exit codes.

Nothing here does the work of a command, and nothing here imports TensorFlow, pydantic or rich: `anyrig --help` and
`anyrig inspect` start in a blink.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from anyrig.errors import EXIT_FAILED, AnyrigError

_EXIT_INTERRUPTED = 130  # as shells count: 128 + SIGINT

# name: module under anyrig.cli, what it does in a line. The module holds the click command as `command`.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("demo", "Train digits on 4 devices, be killed, go on with 1, compare, predict."),
    "train": ("train", "Train what a recipe describes; start, or go on from the newest checkpoint."),
    "plan": ("plan", "Show what train would do: devices, batches, checkpoints."),
    "parity": ("parity", "Train a few steps on several device counts; compare every tensor."),
    "tune": ("tune", "Find a setting by a short test, e.g. the learning rate."),
    "fork": ("fork", "Begin a new run from the state of an old one, with another V or precision."),
    "predict": ("predict", "Predict from arrays or images with a run, a checkpoint or a model file."),
    "evaluate": ("evaluate", "Compute loss and metrics of a run, a checkpoint or a model file."),
    "ls": ("ls", "List the checkpoints of a run, or the runs in a folder."),
    "prune": ("prune", "Remove the checkpoints of a run that its rules let go."),
    "pin": ("pin", "Mark a checkpoint that no rule may remove."),
    "wait": ("wait", "Print the next checkpoint of a run as soon as it is there."),
    "inspect": ("inspect", "Show what a checkpoint or a model file holds, without TensorFlow."),
    "diff": ("diff", "Compare two checkpoints: tensors, files, configuration, progress."),
    "explain": ("explain", "Say why a file does not load into a model, and the rule that makes it."),
    "convert": ("convert", "Write a model in another format, and prove that it is the same."),
    "verify": ("verify", "Check every byte of a checkpoint or a model file against its checksums."),
    "sync": ("sync", "Upload the checkpoints of the run at URL that wait on this machine."),
    "repair": ("repair", "Clean up a run directory after a crash; no committed step is deleted."),
}


class Commands(click.Group):
    """Commands that are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"anyrig.cli.{COMMANDS[cmd_name][0]}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the nearest command for one that does not exist."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            end = f"; did you mean {near[0]}?" if near else f"; use one of: {', '.join(COMMANDS)}"
            raise click.UsageError(f"there is no command {args[0]}{end}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table, without importing a single command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from anyrig.environment import PACKAGES, version

    click.echo(", ".join(f"{package} {version(package) or 'not installed'}" for package in PACKAGES))
    ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show versions."
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show the whole traceback of an error.")
def cli() -> None:
    """Train a Keras model on whatever devices are there, stop anywhere, carry on anywhere else."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `arguments` (default: those of the process) and exit with the command's code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(run([argument for argument in given if argument != "--debug"], debug="--debug" in given))


def run(arguments: list[str], *, debug: bool) -> int:
    """Run one command and return its exit code; errors are told on stderr."""
    if not debug:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's own notes on start-up
    try:
        code = cli.main(arguments, prog_name="anyrig", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001  (told in one line; --debug shows all)
        return _tell(error, debug=debug)
    return code if isinstance(code, int) else 0


def _tell(error: Exception, *, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exception(error)
    elif isinstance(error, AnyrigError):
        click.echo(str(error), err=True)
    else:
        first = str(error).strip().partition("\n")[0]
        click.echo(f"{type(error).__name__}: {first}\n  next: run it again with --debug and report this", err=True)
    return error.exit_code if isinstance(error, AnyrigError) else EXIT_FAILED
