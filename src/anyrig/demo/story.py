"""The demo: the same training four times, on other devices and through kills, with the same bytes at the end.

Every training is a process of its own, started with the command that a user would type. The kills are real: SIGKILL in
the middle of the second epoch, and SIGTERM, which saves and exits with 75.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from anyrig.demo.files import prepare
from anyrig.errors import EXIT_STOPPED, AnyrigError, CheckFailed
from anyrig.events import read_events
from anyrig.locations import find_checkpoint
from anyrig.store.read import open_checkpoint

WANTED_ACCURACY = 0.97
_LIMIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process of a story: how many devices, and the signal that ends it in the middle of epoch 2, if any."""

    devices: int
    ended_by: signal.Signals | None = None

    def __str__(self) -> str:
        devices = f"{self.devices} device" + ("s" if self.devices > 1 else "")
        return devices if self.ended_by is None else f"{devices}, {self.ended_by.name} in epoch 2"


STORIES: dict[str, Sequence[Part]] = {
    "a": [Part(devices=4)],
    "b": [Part(devices=2)],
    "c": [Part(devices=4, ended_by=signal.SIGKILL), Part(devices=1)],
    "d": [Part(devices=2, ended_by=signal.SIGTERM), Part(devices=4)],
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one story ended."""

    step: int
    updates: int
    accuracy: float
    digest: str


def tell(folder: Path, *, epochs: int, wanted_accuracy: float | None) -> None:
    """Run the demo in `folder` and print it; raise CheckFailed if any digest differs or the accuracy is too low."""
    prepare(folder, epochs)
    print(f"Real handwritten digits, a small CNN with BatchNorm, Dropout and augmentation, {epochs} epochs; V = 4.\n")
    # Two at a time: most of a short process is the import of TensorFlow, which uses one core.
    with ThreadPoolExecutor(max_workers=2) as pool:
        outcomes = dict(zip(STORIES, pool.map(lambda name: _live(folder, name), STORIES), strict=True))
    _print_outcomes(outcomes)
    print("\nA picture from a file, and what is in the checkpoint:")
    picture = next(folder.glob("a-*.png"))
    _show("predict", str(folder / "c"), str(picture))
    _show("inspect", str(folder / "c"))
    _check(outcomes, wanted_accuracy)


def _live(folder: Path, name: str) -> Outcome:
    run, log = folder / name, folder / f"{name}.log"
    for part in STORIES[name]:
        started = time.monotonic()
        print(f"  ({name}) {part!s:<32} begins", flush=True)
        code = _train(folder, run, log, part)
        print(f"  ({name}) {part!s:<32} exit {code:>3} after {time.monotonic() - started:4.0f} s", flush=True)
        expected = 0 if part.ended_by is None else {signal.SIGKILL: -9, signal.SIGTERM: EXIT_STOPPED}[part.ended_by]
        if code != expected:
            raise AnyrigError(
                "ANY-DEMO-003",
                f"story ({name}), {part}: exit code {code}, expected {expected}",
                hint=f"look into {log}",
            )
    checkpoint = open_checkpoint(find_checkpoint(run))
    progress = checkpoint.progress
    return Outcome(progress["step"], progress["updates"], progress["metrics"]["val_accuracy"], checkpoint.state_digest)


def _train(folder: Path, run: Path, log: Path, part: Part) -> int:
    """Train as a user would, end it as `part` says, and return the exit code."""
    command = _command("train", str(folder / "recipe.yaml"), "--run", str(run), "--devices", str(part.devices))
    with (
        log.open("ab") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=_environment()) as process,
    ):
        try:
            if part.ended_by is not None:
                _wait_for_second_epoch(run, process)
                process.send_signal(part.ended_by)
            return process.wait(timeout=_LIMIT_SECONDS)
        finally:
            process.kill()


def _wait_for_second_epoch(run: Path, process: subprocess.Popen[bytes]) -> None:
    """Return once a checkpoint from within the second epoch was saved, or the process has ended."""
    log, deadline = run / "events.jsonl", time.monotonic() + _LIMIT_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        events = read_events(log) if log.exists() else []
        epochs = [event for event in events if event["kind"] == "epoch"]
        if epochs and events[-1]["kind"] == "save" and events[-1]["step"] != epochs[-1]["step"]:
            return
        time.sleep(0.01)


def _print_outcomes(outcomes: dict[str, Outcome]) -> None:
    print(f"\n  {'':3} {'how':<46} {'steps':>5} {'updates':>7} {'accuracy':>8}  state digest")
    for name, outcome in outcomes.items():
        how = ", then ".join(str(part) for part in STORIES[name])
        print(f"  ({name}) {how:<46} {outcome.step:>5} {outcome.updates:>7} {outcome.accuracy:>8.4f}  {outcome.digest}")


def _check(outcomes: dict[str, Outcome], wanted_accuracy: float | None) -> None:
    if len({outcome.digest for outcome in outcomes.values()}) > 1:
        raise CheckFailed(
            "ANY-DEMO-004",
            "the digests are not equal",
            hint="type: anyrig inspect --tensors on two of the runs, and please report it",
        )
    accuracy = outcomes["a"].accuracy
    if wanted_accuracy is not None and accuracy < wanted_accuracy:
        raise CheckFailed(
            "ANY-DEMO-005",
            f"accuracy on held-out digits is {accuracy:.4f}, expected at least {wanted_accuracy}",
            hint="please report it",
        )
    print("\nAll four digests are equal: the same bytes, whatever the devices and wherever it was stopped.")


def _show(*arguments: str) -> None:
    print(f"\n$ anyrig {' '.join(arguments)}", flush=True)
    code = subprocess.run(_command(*arguments), env=_environment(), timeout=_LIMIT_SECONDS, check=False).returncode
    if code:
        raise AnyrigError(
            "ANY-DEMO-003", f"anyrig {arguments[0]} ended with exit code {code}", hint="its message is above"
        )


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "anyrig", *arguments]


def _environment() -> dict[str, str]:
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
