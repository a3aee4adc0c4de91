"""What is written about the store is true: every code has an entry, and the format page's example runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from anyrig.store.dtypes import ITEM_BYTES
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint

ROOT = Path(__file__).parents[2]
OURS = re.compile(r"ANY-(?:STORE|LOAD|VERIFY|LOCK)-[0-9]{3}")


def sources() -> list[Path]:
    package = ROOT / "src" / "anyrig"
    return [*package.glob("store/*.py"), package / "locations.py", *package.glob("diagnose/*.py")]


def test_every_code_has_one_entry_and_every_entry_a_code() -> None:
    raised = {code for path in sources() for code in OURS.findall(path.read_text())}
    entries = re.findall(rf"^### ({OURS.pattern})$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
    assert len(entries) == len(set(entries))
    assert raised <= set(entries)


def test_the_example_of_the_format_page_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "format.md").read_text(), re.DOTALL)
    checkpoint = write_checkpoint(
        tmp_path, 1, [StoredTensor(name="model/ä", array=np.zeros(3))], progress={"loss": 0.1, "best": float("inf")}
    )
    subprocess.run([sys.executable, "-c", program], cwd=checkpoint.path, check=True, env=os.environ)
    manifest = checkpoint.path / "manifest.json"
    manifest.chmod(0o600)
    manifest.write_bytes(manifest.read_bytes().replace(b'"loss":0.1', b'"loss":0.2'))
    failed = subprocess.run([sys.executable, "-c", program], cwd=checkpoint.path, check=False, capture_output=True)
    assert b"AssertionError" in failed.stderr


def test_the_format_page_lists_the_types() -> None:
    text = (ROOT / "docs" / "format.md").read_text().replace("\n", " ")
    (types,) = re.findall(r"Types: (.*?)\.", text)
    assert set(types.split(", ")) == set(ITEM_BYTES)
