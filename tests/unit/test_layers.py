"""The direction of imports (DESIGN 4), and that no package is a knot."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest
from importlinter.api import read_configuration
from importlinter.application.use_cases import SUCCESS, lint_imports

import anyrig
from anyrig import testing

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "anyrig"
PUBLIC_INITS = (PACKAGE, PACKAGE / "compat", PACKAGE / "testing")
EMPTY_INITS = [path for path in PACKAGE.rglob("__init__.py") if path.parent not in PUBLIC_INITS]


def test_modules_import_only_from_smaller_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    passed = lint_imports(config_filename=str(ROOT / "pyproject.toml"), cache_dir=None)
    assert passed == SUCCESS, capsys.readouterr().out


def test_the_contracts_cover_the_design() -> None:
    contracts = read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]
    assert [contract["type"] for contract in contracts] == ["layers", "forbidden"]
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    assert listed["exhaustive"] is True


def test_the_test_kit_has_its_names() -> None:
    assert [getattr(testing, name).__name__ for name in testing.__all__] == testing.__all__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        testing.nothing  # noqa: B018


@pytest.mark.parametrize("path", EMPTY_INITS, ids=lambda path: path.parent.name)
def test_only_what_is_imported_by_users_has_an_init_with_code(path: Path) -> None:
    assert path.read_text() == ""


def test_public_names_are_found_lazily_and_exist() -> None:
    for name, home in anyrig._HOMES.items():
        source = PACKAGE.joinpath(*home.split(".")[1:]).with_suffix(".py")
        tree = ast.parse(source.read_text())
        defined = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        assert name in defined, f"{home} does not define {name}"
    assert set(anyrig.__all__) <= set(dir(anyrig))
    assert anyrig.__version__ == "0.1.0"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        anyrig.nothing  # noqa: B018
