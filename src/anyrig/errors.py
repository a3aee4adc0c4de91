"""Errors that tell the user what was set, what was found, and what to type next.

Every error carries a stable code (`ANY-LOAD-012`). Each code has an entry in `docs/errors.md`; a test compares
the codes raised in the source with the entries there. The command line prints `str(error)` and exits with `exit_code`.
"""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CHECK_FAILED = 3
EXIT_STOPPED = 75


class AnyrigError(Exception):
    """A failure with a code, a message and the next thing to type.

    `message` says what was set and what was found; `hint` what to do or type next.
    """

    exit_code = EXIT_FAILED

    def __init__(self, code: str, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.hint}  [{self.code}]"


class UsageError(AnyrigError):
    """What the user gave (an argument, a recipe, data) cannot be used."""

    exit_code = EXIT_USAGE


class CheckFailed(AnyrigError):
    """A comparison or verification the user asked for came out negative."""

    exit_code = EXIT_CHECK_FAILED


class Stopped(AnyrigError):
    """A signal ended the run after its state was saved; starting it again goes on from there."""

    exit_code = EXIT_STOPPED

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows (IPython asks for it): nothing went wrong, so the message alone."""
        return [str(self)]
