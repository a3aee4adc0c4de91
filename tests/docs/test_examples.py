"""Each script in examples/ runs as it stands, and says that what it loads is what it saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from anyrig.testing.processes import run_python

EXAMPLES = sorted(Path("examples").glob("*.py"))
SAYS = {
    "saving_habits": ["the same from weights: True", "the same from a folder: True", "the same from HDF5: True"],
    "several_devices": ["the same predictions: True", "the same from a checkpoint: True"],
}


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(script: Path, tmp_path: Path) -> None:
    said = run_python(script, tmp_path).stdout
    assert [line for line in SAYS[script.stem] if line not in said] == []
    assert "False" not in said
