"""The helper that runs TensorFlow in child processes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from anyrig.testing.processes import run_python, start_python


def test_arguments_and_json_come_through(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import json, sys; print('noise'); print(json.dumps([__name__, *sys.argv[1:]]))")
    assert run_python(script, "a", 2).json() == ["__main__", "a", "2"]
    assert run_python("import sys; print(sys.argv[1:])", 3).stdout == "['3']\n"


def test_an_unexpected_exit_code_shows_the_output() -> None:
    with pytest.raises(AssertionError, match=r"(?s)expected exit code 0: exit code 7.*last words"):
        run_python("import sys; print('last words', file=sys.stderr); sys.exit(7)")
    assert run_python("raise SystemExit(7)", expect=7).returncode == 7


def test_a_child_that_hangs_shows_its_stack_and_is_gone() -> None:
    code = "import time\ndef stuck_here(): time.sleep(600)\nprint('started', flush=True)\nstuck_here()"
    start = time.monotonic()
    with pytest.raises(AssertionError, match=r"(?s)still running after 1 s.*started.*<module>"):
        run_python(code, timeout=1)
    assert time.monotonic() - start < 60


def test_grandchildren_do_not_outlive_the_block() -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    with start_python(code) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and _is_running(grandchild):
        time.sleep(0.05)
    assert not _is_running(grandchild)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z" and os.path.exists(f"/proc/{pid}")
