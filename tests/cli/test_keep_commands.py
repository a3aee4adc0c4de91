"""`prune`, `pin`, `wait` and the marks of `ls`: which checkpoints of a run stay, and following it."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from anyrig import wait
from anyrig.errors import AnyrigError, UsageError
from anyrig.store.commit import committed_steps
from anyrig.store.lock import RunLock
from anyrig.store.retain import Keep
from anyrig.store.tensors import StoredTensor
from anyrig.store.write import write_checkpoint
from tests.cli.conftest import Command

KEEP = Keep(last=1, best=1, monitor="val_loss")
LOSSES = {10: 0.5, 20: 0.3, 30: 0.4, 40: 0.6}


def save(folder: Path, step: int, loss: float, keep: Keep | None = KEEP) -> None:
    write_checkpoint(
        folder,
        step,
        [StoredTensor(name="model/a", array=np.zeros(step, np.float32))],
        progress={
            "boundary": "epoch",
            "position": {"epoch": step // 10, "batch": 0},
            "metrics": {"val_loss": loss, "quality": 1.0},
        },
        record={"keep": asdict(keep)} if keep else {},
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of four checkpoints, none of which was removed yet."""
    for step, loss in LOSSES.items():
        save(tmp_path / "run" / "checkpoints", step, loss)
    return tmp_path / "run"


def steps(run: Path) -> list[int]:
    return committed_steps(run / "checkpoints")


def test_prune_tells_what_goes_and_why_by_the_rules_of_the_run(run: Path, anyrig: Command) -> None:
    shown = anyrig("prune", run, "--dry-run")
    assert shown.code == 0
    lines = [line.split("  ")[-1] for line in shown.out.splitlines()]
    assert lines[0] == "kept: the last one, the best by val_loss (min)"
    assert lines[2:6] == [
        "goes: no rule keeps it",
        "stays: best by val_loss",
        "goes: no rule keeps it",
        "stays: newest",
    ]
    assert "2 of 4 (" in lines[6]
    assert lines[6].endswith("would go; nothing was removed")
    assert steps(run) == [10, 20, 30, 40]
    assert anyrig("prune", run).out.endswith(" removed\n")
    assert steps(run) == [20, 40]


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (["--keep-last", "2"], [20, 30, 40]),
        (["--keep-last", "all"], [10, 20, 30, 40]),
        (["--keep-best", "0"], [40]),
        (["--mode", "max"], [40]),
        (["--keep-every", "15"], [20, 30, 40]),
        (["--max-total-size", "1"], [40]),
    ],
)
def test_an_option_replaces_a_rule(run: Path, anyrig: Command, options: list[str], left: list[int]) -> None:
    assert anyrig("prune", run, *options).code == 0
    assert steps(run) == left


def test_a_size_that_cannot_be_held_is_told(run: Path, anyrig: Command) -> None:
    assert "max_total_size (1 B) cannot be held" in anyrig("prune", run, "--max-total-size", "1").err


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--keep-last", "none"], "keep_last='none'"),
        (["--keep-last", "0"], "keep_last=0"),
        (["--monitor", "quality"], "whether a small or a large quality is better is not known"),
        (["--min-free", "some"], "min_free: expected"),
        (["--monitor", "val_los"], "no checkpoint has a metric 'val_los'; there are quality, val_loss"),
    ],
)
def test_rules_that_make_no_sense_remove_nothing(run: Path, anyrig: Command, options: list[str], found: str) -> None:
    refused = anyrig("prune", run, *options)
    assert refused.code == 2
    assert found in refused.err
    assert steps(run) == [10, 20, 30, 40]


def test_a_run_that_is_alive_is_only_looked_at(run: Path, anyrig: Command) -> None:
    with RunLock(run):
        refused = anyrig("prune", run)
        assert refused.code == 1
        assert "is in use: process" in refused.err
        assert anyrig("prune", run, "--dry-run").code == 0
    assert steps(run) == [10, 20, 30, 40]


def test_prune_of_older_runs_and_of_nothing(tmp_path: Path, anyrig: Command) -> None:
    folder = tmp_path / "old" / "checkpoints"
    folder.mkdir(parents=True)
    assert anyrig("prune", folder.parent).out == f"{folder}: no committed checkpoint yet\n"
    for step in range(1, 6):
        save(folder, step, 0.1, keep=None)
    unknown = anyrig("prune", folder.parent, "--keep-best", 1, "--monitor", "val_loss")
    assert unknown.code == 2
    assert "does not say by which rules its checkpoints are kept; nothing was removed" in unknown.err
    assert committed_steps(folder) == [1, 2, 3, 4, 5]
    assert anyrig("prune", folder.parent, "--keep-last", 3).code == 0
    assert committed_steps(folder) == [3, 4, 5]
    refused = anyrig("prune", tmp_path)
    assert refused.code == 2
    assert "not a run" in refused.err


def test_a_pinned_checkpoint_stays_and_is_shown(run: Path, anyrig: Command) -> None:
    assert anyrig("pin", run, 10, "--name", "paper").out == "step 10 is pinned as paper: no rule removes it\n"
    assert anyrig("pin", run, 30).out == "step 30 is pinned: no rule removes it\n"
    shown = anyrig("ls", run).out.splitlines()
    marks = ["pinned as paper", "best", "pinned", "newest"]
    assert [[cell.strip() for cell in line.split("  ") if cell.strip()][-2] for line in shown[1:]] == marks
    rows = json.loads(anyrig("ls", run, "--json").out)["checkpoints"]
    assert [(row["step"], row["pin"], row["best"], row["newest"]) for row in rows] == [
        (10, "paper", False, False),
        (20, None, True, False),
        (30, "", False, False),
        (40, None, False, True),
    ]
    rows = json.loads(anyrig("prune", run, "--keep-best", 0, "--json").out)["checkpoints"]
    assert [row["stays"] for row in rows] == [["pinned"], [], ["pinned"], ["newest"]]
    assert steps(run) == [10, 30, 40]
    assert anyrig("pin", run, 10, "--remove").out == "step 10 is no longer pinned\n"
    assert anyrig("pin", run, 10, "--remove").out == "step 10 was not pinned\n"
    anyrig("prune", run)
    assert steps(run) == [30, 40]


def test_a_checkpoint_that_the_end_changed_has_no_metric_and_is_never_the_best(run: Path, anyrig: Command) -> None:
    folder = run / "checkpoints"
    write_checkpoint(
        folder,
        50,
        [StoredTensor(name="model/a", array=np.zeros(2, np.float32))],
        progress={"boundary": "end", "changed_at_end": True, "metrics": {"val_loss": 0.1}},
        record={"keep": asdict(KEEP)},
    )
    rows = json.loads(anyrig("ls", run, "--json").out)["checkpoints"]
    assert [(row["step"], row["metrics"].get("val_loss")) for row in rows if row["best"]] == [(20, 0.3)]
    assert (rows[-1]["step"], rows[-1]["metrics"]) == (50, {})


def test_pins_that_cannot_be(run: Path, anyrig: Command) -> None:
    missing = anyrig("pin", run, 15)
    assert missing.code == 2
    assert "has no checkpoint of step 15" in missing.err
    assert anyrig("pin", run, 10, "--remove", "--name", "a").code == 2


def test_what_is_not_committed_is_named_once(run: Path, anyrig: Command) -> None:
    (run / "checkpoints" / ".step-000000050.partial-0123abcd").mkdir()
    told = anyrig("ls", run).out.splitlines()[-1]
    assert told.startswith("not committed: .step-000000050.partial-0123abcd: was not finished")
    assert told.count(".step-000000050") == 1


def test_wait_prints_the_next_committed_step(run: Path, anyrig: Command) -> None:
    folder = run / "checkpoints"
    (folder / "step-000000050").mkdir()  # not committed
    assert anyrig("wait", run, "--after", 10).out == f"{folder / 'step-000000020'}\n"
    late = anyrig("wait", run, "--timeout", "0.1")
    assert late.code == 1
    assert "has no checkpoint after step 40 yet; waited for 0.1 s" in late.err
    assert anyrig("wait", run, "--timeout", "soon").code == 2
    assert anyrig("wait", folder / "step-000000010", "--timeout", "1").code == 2


def test_wait_follows_a_run_that_is_not_there_yet(tmp_path: Path) -> None:
    run, found = tmp_path / "later", []

    def follow() -> None:
        after = None
        while after != 2:
            path = wait(run, after=after, timeout=60, poll=0.01)
            after = int(path.name.removeprefix("step-"))
            found.append(path.name)

    follower = threading.Thread(target=follow)
    follower.start()
    for step in (1, 2):
        save(run / "checkpoints", step, 0.1)
    follower.join(60)
    assert found == ["step-000000001", "step-000000002"]
    with pytest.raises(AnyrigError, match="has no checkpoint yet") as caught:
        wait(tmp_path / "never", timeout=0.05, poll=0.01)
    assert caught.value.code == "ANY-RUN-043"
    with pytest.raises(UsageError, match="timeout: expected"):
        wait(run, timeout=-1)
