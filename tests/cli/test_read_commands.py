"""`ls`, `inspect` and `verify`: what they print about a run, a checkpoint and a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from anyrig.store.read import open_checkpoint
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint
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
    (stored / "checkpoints" / ".step-000000008.damaged-0123abcd").mkdir()
    (stored / "checkpoints" / ".step-000000003.removed-0123abcd").mkdir()
    lines = anyrig("ls", stored).out.splitlines()
    assert lines[0].split() == ["step", "position", "size", "age", "metrics", "of", "the", "last", "epoch"]
    assert [line.split("  ")[0].strip() for line in lines[2:4]] == ["", "1,200"]
    assert [" after epoch 1 " in lines[1], " in epoch 2, batch 3 " in lines[2]] == [True, True]
    assert ["newest" in line for line in lines[1:4]] == [False, False, True]
    assert all(line.endswith("accuracy 0.9712, loss 0.1031") for line in lines[1:4])
    assert lines[4].startswith("not committed: .step-000001206.partial-0123abcd: ")
    assert lines[5].startswith("not committed: .step-000000003.removed-0123abcd: its removal was interrupted")
    assert lines[6].startswith("not committed: .step-000000008.damaged-0123abcd: found damaged and set aside")
    assert len(lines) == 7


def test_ls_of_a_folder_lists_its_runs(stored: Path, anyrig: Command) -> None:
    (stored.parent / "deeper" / "new" / "checkpoints").mkdir(parents=True)
    (stored.parent / "other").mkdir()
    lines = [line.split("  ") for line in anyrig("ls", stored.parent).out.splitlines()]
    found = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert found[1:] == [["deeper/new", "none"], ["stored", "1,200", "after epoch 200", "accuracy 0.9712, loss 0.1031"]]
    listed = json.loads(anyrig("ls", stored.parent, "--json").out)["runs"]
    assert [(run["name"], run["step"], run["checkpoints"]) for run in listed] == [
        ("deeper/new", None, 0),
        ("stored", 1200, 3),
    ]
    refused = anyrig("ls", stored.parent / "other")
    assert refused.code == 2
    assert "other is a folder that is neither a run directory nor a checkpoint and holds no run" in refused.err


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
    assert "is a checkpoint, not a run\n  next: type: anyrig inspect" in result.err


def test_inspect_describes_the_newest_checkpoint_of_a_run(stored: Path, anyrig: Command) -> None:
    out = anyrig("inspect", stored).out
    checkpoint = open_checkpoint(_folder(stored, 1200))
    assert "step          1,200, after epoch 200" in out
    assert "accuracy 0.9712" in out.partition("progress")[2].partition("\n")[0]
    assert "parameters    154" in out
    assert f"state digest  {checkpoint.state_digest}" in out
    assert "model/conv/kernel" not in out


def test_random_state_is_no_parameter(tmp_path: Path, anyrig: Command) -> None:
    tensors = [
        StoredTensor(name="model/head/kernel", array=np.zeros((4, 5), np.float32)),
        StoredTensor(name="model/own/state", array=np.zeros(2, np.float32)),
        StoredTensor(name="model/dropout.0/seed_generator/state", array=np.zeros(2, np.int64)),
    ]
    write_checkpoint(tmp_path / "checkpoints", 1, tensors, progress={})
    assert "parameters    22\n" in anyrig("inspect", tmp_path).out


def test_inspect_lists_tensors(stored: Path, anyrig: Command) -> None:
    lines = anyrig("inspect", _folder(stored, 6), "--tensors").out.splitlines()
    kernel = next(line for line in lines if line.startswith("model/conv/kernel"))
    assert kernel.split("  ")[0] == "model/conv/kernel"
    assert "F32" in kernel
    assert "3 x 3 x 1 x 16" in kernel
    assert any(line.startswith("optimizer/main/iterations") and "scalar" in line for line in lines)


def test_inspect_shows_statistics(stored: Path, anyrig: Command) -> None:
    lines = anyrig("inspect", _folder(stored, 6), "--stats").out.splitlines()
    header = next(line.split() for line in lines if line.startswith("tensor"))
    assert header == ["tensor", "dtype", "shape", "min", "max", "mean", "norm", "zeros", "nan", "inf"]
    bias = next(line.split() for line in lines if line.startswith("model/head/bias"))
    assert bias == ["model/head/bias", "F32", "10", "0", "0", "0", "0", "10", "0", "0"]
    kernel = next(line.split() for line in lines if line.startswith("model/conv/kernel"))
    assert kernel[-7:-4] == ["6", "149", "77.5"]
    found = json.loads(anyrig("inspect", stored, "--stats", "--json").out)
    assert found["tensors"][0]["stats"]["min"] == 1200


def test_diff_lists_what_differs_and_exits_3(stored: Path, anyrig: Command) -> None:
    result = anyrig("diff", _folder(stored, 6), stored)
    assert result.code == 3
    lines = result.out.splitlines()
    assert "1 tensors equal, 2 differ, 0 only in a, 0 only in b" in lines
    kernel = next(line.split("  ") for line in lines if line.startswith("model/conv/kernel"))
    assert [cell.strip() for cell in kernel if cell] == [
        *("model/conv/kernel", "F32 3 x 3 x 1 x 16", "144 of 144", "1194", "0.995"),
        "[0, 0, 0, 0]",
    ]
    assert "  position.epoch: 1 -> 200" in lines
    found = json.loads(anyrig("diff", _folder(stored, 6), stored, "--json").out)
    assert found["equal"] is False
    assert found["changed"][0]["values"]["max_abs"] == 1194


def test_diff_of_equal_ones_exits_0(stored: Path, anyrig: Command) -> None:
    result = anyrig("diff", stored, _folder(stored, 1200))
    assert result.code == 0
    assert "\nequal: 3 tensors, files, configuration, progress\n" in result.out
    assert result.out.endswith("equal by their recorded checksums (anyrig verify reads the data)\n")
    _damage(stored, 1200)
    assert anyrig("diff", stored, _folder(stored, 1200)).out == result.out


def test_diff_tells_bookkeeping_and_does_not_count_it(tmp_path: Path, anyrig: Command) -> None:
    for name, progress in (
        ("run", {"epoch": 2, "loop": "fit", "boundary": "end", "position": {"step": 6}}),
        ("named", {"epoch": 2, "named_save": True, "boundary": "epoch"}),
        ("later", {"epoch": 3, "named_save": True}),
    ):
        write_checkpoint(tmp_path / name / "checkpoints", 6, [], progress=progress)
    told = anyrig("diff", tmp_path / "run", tmp_path / "named")
    assert told.code == 0
    assert told.out.endswith(
        "bookkeeping (no part of the state):\n  boundary: end -> epoch\n  loop: fit -> (nothing)\n"
        "  position: {'step': 6} -> (nothing)\n  named_save: (nothing) -> True\n"
    )
    assert "recorded checksums" not in told.out
    differs = anyrig("diff", tmp_path / "named", tmp_path / "later")
    assert differs.code == 3
    assert "progress:\n  epoch: 2 -> 3\n\nbookkeeping" in differs.out


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


def test_repair_says_what_it_does_and_from_where_the_run_goes_on(stored: Path, anyrig: Command) -> None:
    would = anyrig("repair", stored, "--dry-run")
    assert would.out.startswith("would have removed .step-000001206.partial-0123abcd: a save of step 1206 that was not")
    _damage(stored, 9)
    result = anyrig("repair", stored)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0] == would.out.splitlines()[0].removeprefix("would have ")
    assert lines[1].startswith("damaged, and left as it is: step-000000009: model-")
    assert lines[2:] == ["2 sound, newest step 1,200: the run goes on from there"]
    assert anyrig("repair", stored).out.startswith("nothing to repair\n")


def test_repair_exits_3_when_nothing_is_left_to_go_on_from(stored: Path, anyrig: Command) -> None:
    for step in STEPS:
        _damage(stored, step)
    assert anyrig("repair", stored).code == 3
    result = anyrig("repair", stored, "--json")
    assert result.code == 3
    assert json.loads(result.out)["newest"] is None


def test_verify_of_another_format_says_what_was_checked(tmp_path: Path, anyrig: Command) -> None:
    np.savez(tmp_path / "w.npz", w=np.arange(100.0))
    sound = anyrig("verify", tmp_path / "w.npz")
    assert sound.code == 0
    assert sound.out.splitlines() == [
        f"{tmp_path / 'w.npz'}  sound  an archive of numpy arrays: 1 tensors, 800 B read",
        "  checked: the CRC-32 of each file in the archive",
    ]
    data = bytearray((tmp_path / "w.npz").read_bytes())
    data[400] ^= 1
    (tmp_path / "w.npz").write_bytes(data)
    damaged = anyrig("verify", tmp_path / "w.npz")
    assert damaged.code == 3
    assert "DAMAGED" in damaged.out
    assert "w: " in damaged.err
    report = json.loads(anyrig("verify", tmp_path / "w.npz", "--json").out)
    assert (report["sound"], report["file"]["damage"][0]["tensors"]) == (False, ["w"])
