"""How commands end: messages, exit codes, and never a traceback unless it is asked for."""

from __future__ import annotations

import click
import pytest

from anyrig.cli import main
from anyrig.errors import AnyrigError, CheckFailed, Stopped, UsageError
from tests.cli.conftest import Command


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Let `anyrig ls X` raise the exception that the test puts into this list."""
    raised: list[BaseException] = []

    @click.command("ls")
    @click.argument("run")
    def raising(run: str) -> None:
        raise raised[0]

    monkeypatch.setattr("anyrig.cli.ls.command", raising)
    return raised


@pytest.mark.parametrize(("kind", "code"), [(AnyrigError, 1), (UsageError, 2), (CheckFailed, 3), (Stopped, 75)])
def test_named_errors_are_messages(
    kind: type[AnyrigError], code: int, ending: list[BaseException], anyrig: Command
) -> None:
    ending.append(kind("ANY-X-001", "what happened", hint="type this"))
    result = anyrig("ls", "x")
    assert (result.code, result.out) == (code, "")
    assert result.err == "what happened\n  next: type this  [ANY-X-001]\n"
    debugged = anyrig("ls", "x", debug=True)
    assert debugged.code == code
    assert "Traceback" in debugged.err


def test_anything_else_is_one_line_and_says_how_to_see_more(ending: list[BaseException], anyrig: Command) -> None:
    ending.append(ZeroDivisionError("first\nsecond"))
    result = anyrig("ls", "x")
    assert result.code == 1
    assert result.err == "ZeroDivisionError: first\n  next: run it again with --debug and report this\n"


def test_an_interrupt_is_quiet(ending: list[BaseException], anyrig: Command) -> None:
    ending.append(KeyboardInterrupt())
    result = anyrig("ls", "x")
    assert (result.code, result.out, result.err.strip()) == (130, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "there is no command trian; did you mean train?"),
        (["xyz"], "there is no command xyz; use one of: demo, train,"),
        (["ls"], "Missing argument 'PATH'"),
        (["ls", "x", "--no-such"], "No such option"),
        (["train", "x.yaml", "--resume", "perhaps"], "'perhaps' is not one of"),
        (["train", "none.yaml"], "none.yaml: there is no such file"),
        (["inspect", "none"], "none does not exist"),
    ],
)
def test_wrong_usage_exits_2(arguments: list[str], message: str, anyrig: Command) -> None:
    result = anyrig(*arguments)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


def test_debug_is_taken_anywhere_and_main_exits_with_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main.main(["inspect", "none", "--debug"])
    assert caught.value.code == 2
    assert "Traceback" in capsys.readouterr().err
