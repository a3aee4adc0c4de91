"""`ls`, `inspect` and `verify`: what they print about a run, a checkpoint and a file."""

from __future__ import annotations

import json
from pathlib import Path

from anyrig.store.read import open_checkpoint
from tests.cli.conftest import STEPS, Command


def _folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:09d}"


def _damage(run: Path, step: int) -> str:
    """Flip a byte of the kernel and return the file's name."""
    file = next(_folder(run, step).glob("model-*.safetensors"))
    file.chmod(0o600)
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    return file.name


def test_ls_lists_what_is_committed_and_tells_the_rest(stored: Path, anyrig: Command) -> None:
    lines = anyrig("ls", stored).out.splitlines()
    assert lines[0].split() == ["step", "epoch", "batch", "size", "age", "metrics", "of", "the", "last", "epoch"]
    assert [line.split()[:3] for line in lines[1:4]] == [["6", "1", "0"], ["9", "1", "3"], ["1,200", "200", "0"]]
    assert ["newest" in line for line in lines[1:4]] == [False, False, True]
    assert all(line.endswith("accuracy 0.9712, loss 0.1031") for line in lines[1:4])
    assert lines[4].startswith("not committed: .step-000001206.partial-0123abcd: ")
    assert len(lines) == 5


def test_ls_as_json(stored: Path, anyrig: Command) -> None:
    listed = json.loads(anyrig("ls", stored, "--json").out)
    assert [row["step"] for row in listed["checkpoints"]] == list(STEPS)
    assert listed["checkpoints"][-1]["metrics"]["accuracy"] == 0.97123
    assert [item["step"] for item in listed["not_committed"]] == [1206]


def test_ls_of_a_run_without_checkpoints_and_of_other_things(tmp_path: Path, stored: Path, anyrig: Command) -> None:
    (tmp_path / "new" / "checkpoints").mkdir(parents=True)
    assert "no committed checkpoint yet" in anyrig("ls", tmp_path / "new").out
    result = anyrig("ls", _folder(stored, 6))
    assert result.code == 2
    assert "is a checkpoint, not a run directory\n  next: type: anyrig inspect" in result.err


def test_inspect_describes_the_newest_checkpoint_of_a_run(stored: Path, anyrig: Command) -> None:
    out = anyrig("inspect", stored).out
    checkpoint = open_checkpoint(_folder(stored, 1200))
    assert "step          1,200 (epoch 200, batch 0)" in out
    assert "parameters    154" in out
    assert f"state digest  {checkpoint.state_digest}" in out
    assert "model/conv/kernel" not in out


def test_inspect_lists_tensors(stored: Path, anyrig: Command) -> None:
    lines = anyrig("inspect", _folder(stored, 6), "--tensors").out.splitlines()
    kernel = next(line for line in lines if line.startswith("model/conv/kernel"))
    assert kernel.split("  ")[0] == "model/conv/kernel"
    assert "F32" in kernel
    assert "3 x 3 x 1 x 16" in kernel
    assert any(line.startswith("optimizer/main/iterations") and "scalar" in line for line in lines)


def test_the_last_line_of_digest_is_the_state_digest_alone(stored: Path, anyrig: Command) -> None:
    for path, step in ((stored, 1200), (_folder(stored, 9), 9)):
        lines = anyrig("inspect", path, "--digest").out.splitlines()
        assert lines[-1] == open_checkpoint(_folder(stored, step)).state_digest
        assert lines[1] == open_checkpoint(_folder(stored, step)).model_digest


def test_inspect_as_json(stored: Path, anyrig: Command) -> None:
    found = json.loads(anyrig("inspect", stored, "--json", "--tensors").out)
    assert found["step"] == 1200
    assert {line["name"] for line in found["tensors"]} == {
        "model/conv/kernel",
        "model/head/bias",
        "optimizer/main/iterations",
    }


def test_inspect_of_a_safetensors_file(stored: Path, anyrig: Command) -> None:
    file = next(_folder(stored, 6).glob("model-*.safetensors"))
    assert "parameters  154" in anyrig("inspect", file).out
    result = anyrig("inspect", file, "--digest")
    assert result.code == 2
    assert "records no digest" in result.err


def test_verify_names_file_and_tensor_and_exits_3(stored: Path, anyrig: Command) -> None:
    (stored / "checkpoints" / ".step-000001206.partial-0123abcd").rmdir()
    assert anyrig("verify", stored).code == 0
    file = _damage(stored, 9)
    result = anyrig("verify", stored)
    assert result.code == 3
    assert [line.split()[1] for line in result.out.splitlines()] == ["sound", "DAMAGED", "sound"]
    assert f"step-000000009: {file} (model/" in result.err
    assert anyrig("verify", _folder(stored, 9)).code == 3
    assert anyrig("verify", _folder(stored, 6)).code == 0


def test_verify_as_json(stored: Path, anyrig: Command) -> None:
    _damage(stored, 9)
    result = anyrig("verify", stored, "--json")
    assert result.code == 3
    report = json.loads(result.out)
    assert report["sound"] is False
    assert [len(verdict["damage"]) for verdict in report["checkpoints"]] == [0, 1, 0]
