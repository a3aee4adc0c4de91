"""Python in a child process with a bounded time, because each device count of TensorFlow needs a process of its own.

A child that runs too long is told to dump the stacks of its threads, then its whole process group is killed. Nothing
is left running when a block ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SHOWN = 6000  # characters of each stream in a failure
_GRACE = 10.0  # seconds to dump stacks
_SET_UP = "from anyrig.topology.devices import configure; configure({devices})\n"
_RUN_PATH = "import runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')\n"


@dataclass(frozen=True, slots=True)
class Finished:
    """A child process that has ended."""

    returncode: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """Return the JSON in the last line of its output."""
        return json.loads(self.stdout.strip().splitlines()[-1])

    def __str__(self) -> str:
        return f"exit code {self.returncode}\n--- stdout\n{self.stdout[-_SHOWN:]}\n--- stderr\n{self.stderr[-_SHOWN:]}"


@contextmanager
def start_python(
    code: str | Path,
    *arguments: object,
    devices: int | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """Yield the running child process; it and its own children are killed at the end of the block.

    `code` is source text, or the path of a script. `devices` sets up that many devices first. The child has this
    process's environment without what would change numbers or devices (TF_*, KERAS_*), and `env`.
    """
    child = subprocess.Popen(  # noqa: S603  (this Python, with code of this package or of its caller)
        [*_command(code, devices), *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**_environment(), **(env or {})},
        cwd=cwd,
        start_new_session=True,
    )
    with child:
        try:
            yield child
        finally:
            _kill_group(child, signal.SIGKILL)


def wait_for(child: subprocess.Popen[str], timeout: float) -> Finished:
    """Return how `child` ended; raise TimeoutError with its output and stacks when it does not within `timeout`."""
    try:
        stdout, stderr = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGABRT)  # faulthandler dumps all stacks
        stdout, stderr = _last_words(child)
        finished = Finished(child.returncode, stdout, stderr)
        raise TimeoutError(f"still running after {timeout:g} s: {finished}") from None
    return Finished(child.returncode, stdout, stderr)


def _last_words(child: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return child.communicate(timeout=_GRACE)
    except subprocess.TimeoutExpired:
        _kill_group(child, signal.SIGKILL)
        return child.communicate()


def _command(code: str | Path, devices: int | None) -> list[str]:
    set_up = "" if devices is None else _SET_UP.format(devices=devices)
    if isinstance(code, Path):
        return [sys.executable, "-c", set_up + _RUN_PATH, str(code)]
    return [sys.executable, "-c", set_up + code]


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("TF_", "KERAS_"))}
    return {**kept, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONFAULTHANDLER": "1"}


def _kill_group(child: subprocess.Popen[str], number: signal.Signals) -> None:
    try:
        os.killpg(child.pid, number)
    except ProcessLookupError:
        return  # all of it has ended
