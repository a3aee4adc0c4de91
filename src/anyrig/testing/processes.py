"""Child processes for tests: `anyrig.processes` with failures that are AssertionErrors and show the child's output."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from anyrig.processes import Finished, start_python, wait_for

__all__ = ["Finished", "run_python", "start_python"]


def run_python(
    code: str | Path,
    *arguments: object,
    devices: int | None = None,
    timeout: float = 240,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    expect: int | None = 0,
) -> Finished:
    """Run `code` (source text, or the path of a script) in a child process and return how it ended.

    `devices` sets up that many devices first. Raises AssertionError, with its output, when the exit code is not
    `expect` (None: any) or it takes longer than `timeout` seconds.
    """
    with start_python(code, *arguments, devices=devices, env=env, cwd=cwd) as child:
        try:
            finished = wait_for(child, timeout)
        except TimeoutError as error:
            raise AssertionError(str(error)) from None
    if expect is not None and finished.returncode != expect:
        raise AssertionError(f"expected exit code {expect}: {finished}")
    return finished
