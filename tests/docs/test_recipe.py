"""docs/recipe.md and the recipe's models say the same: every key, its default, and examples that are accepted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from anyrig.cli.main import COMMANDS
from anyrig.train.recipe.errors import Section, sections_of
from anyrig.train.recipe.schema import Recipe, parse_recipe
from anyrig.train.recipe.yaml import apply_overrides

TEXT = (Path(__file__).parents[2] / "docs" / "recipe.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([\w.]+)` \| (.+?) \| (.+?) \| (.+?) \| `(.+?)` \|$", re.MULTILINE)
ROWS = {key: (kind, default, meaning, example) for key, kind, default, meaning, example in ROW.findall(TEXT)}
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)
MINIMAL: dict[str, Any] = {"model": "a.py:f", "epochs": 1, "data": {"train": {"npz": "a.npz"}}}


def _keys(section: type[Section], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys; those of `data.validation` are those of `data.train`."""
    for name, field in section.model_fields.items():
        yield prefix + name
        if prefix + name != "data.validation":
            for inner in sections_of(field):
                yield from _keys(inner, f"{prefix}{name}.")


def _base(key: str) -> dict[str, Any]:
    """Return a recipe in which `key` alone may be set."""
    base: dict[str, Any] = {**MINIMAL, "compile": {"optimizer": "adam", "loss": "mse"}}
    if key == "checkpoint.keep_best":
        base["checkpoint"] = {"monitor": "val_loss"}
    if key.startswith("phases"):  # in place of epochs
        base = {**base, "epochs": None, "phases": [{"epochs": 1}, {"epochs": 2}]}
    return {**base, "data": {"train": {"arrays": {"x": "x.npy"}}}} if "arrays" in key else base


def test_every_key_is_documented_and_none_is_invented() -> None:
    assert sorted(ROWS) == sorted(_keys(Recipe))


def test_every_row_of_the_table_is_read() -> None:
    table = TEXT[TEXT.index("| key |") :].partition("\n\n")[0]
    assert len(table.splitlines()) == len(ROWS) + 2


@pytest.mark.parametrize("key", ROWS)
def test_the_default_is_the_one_that_holds(key: str) -> None:
    default = ROWS[key][1]
    beside = "arrays" if key == "data.train.npz" else key  # exactly one of the two is there
    is_inside = key.startswith(("compile.", "data.train.arrays.", "phases."))
    recipe = parse_recipe(_base(beside) if is_inside or beside != key else MINIMAL, base_dir=Path())
    found: Any = recipe.canonical()
    owner: Any = Recipe
    *outer, name = key.split(".")
    for part in outer:
        owner, found = next(sections_of(owner.model_fields[part])), found[part]
        found = found[0] if isinstance(found, list) else found
    if default == "required":
        assert owner.model_fields[name].is_required()
    elif default == "none":
        assert found[name] is None or (key == "epochs" and owner.model_fields[name].default is None)
    else:
        shown = yaml.safe_load(default.strip("`"))
        wanted = (
            {k: v for k, v in found[name].items() if v is not None} if isinstance(found[name], dict) else found[name]
        )
        assert shown == wanted


@pytest.mark.parametrize("key", ROWS)
def test_the_example_is_accepted(key: str) -> None:
    base, (first, _, name) = _base(key), key.partition(".")
    if first == "phases" and name:
        base["phases"][0][name] = yaml.safe_load(ROWS[key][3])
    else:
        base = apply_overrides(base, [f"{key}={ROWS[key][3]}"])
    parse_recipe(base, base_dir=Path())


@pytest.mark.parametrize("block", BLOCKS)
def test_what_is_shown_is_a_recipe(block: str) -> None:
    shown = yaml.safe_load(block)
    parse_recipe({**MINIMAL, **({"epochs": None} if "phases" in shown else {}), **shown}, base_dir=Path())


def test_the_overrides_shown_are_accepted() -> None:
    (line,) = re.findall(r"^anyrig train recipe.yaml (.+)$", TEXT, flags=re.MULTILINE)
    recipe = parse_recipe(apply_overrides(_base(""), line.split()), base_dir=Path())
    assert recipe.compile is not None
    assert recipe.compile.optimizer == {"adamw": {"learning_rate": 0.001}}


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`anyrig (\w+)", TEXT))))
def test_every_command_named_exists(command: str) -> None:
    assert command in COMMANDS
