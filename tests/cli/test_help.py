"""Help texts: every command and option has one, and the list of commands says what the commands say."""

from __future__ import annotations

import importlib
import textwrap
from pathlib import Path

import click
import pytest

from anyrig.cli.main import COMMANDS
from anyrig.train.recipe.schema import load_recipe
from tests.cli.conftest import Command


def _load(name: str) -> click.Command:
    loaded = importlib.import_module(f"anyrig.cli.{COMMANDS[name][0]}").command
    assert isinstance(loaded, click.Command)
    return loaded


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says(name: str) -> None:
    help_text = _load(name).help or ""
    assert help_text.splitlines()[0] == COMMANDS[name][1]
    assert _load(name).name == name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name: str) -> None:
    options = [option for option in _load(name).params if isinstance(option, click.Option)]
    assert [option.name for option in options if not option.help] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_is_shown(name: str, anyrig: Command) -> None:
    result = anyrig(name, "--help")
    assert result.code == 0
    assert result.out.startswith(f"Usage: anyrig {name}")
    assert "--debug" in result.out


def test_the_help_of_train_shows_a_recipe(anyrig: Command, tmp_path: Path) -> None:
    out = anyrig("train", "--help").out
    assert "docs/recipe.md" in out
    example = out[out.index("    model:") : out.index("Options:")]
    assert len(example.strip().splitlines()) == 6
    (tmp_path / "recipe.yaml").write_text(textwrap.dedent(example))
    assert load_recipe(tmp_path / "recipe.yaml").epochs == 10


def test_the_list_of_commands_is_shown(anyrig: Command) -> None:
    result = anyrig("--help")
    assert result.code == 0
    assert all(f"  {name} " in result.out for name in COMMANDS)


def test_the_version_names_what_matters(anyrig: Command) -> None:
    result = anyrig("--version")
    assert result.code == 0
    assert result.out.startswith("anyrig 0.")
    assert ", keras 3." in result.out
