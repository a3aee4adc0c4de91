"""Saving and loading a training state, side by side: anyrig, ways of Keras and TensorFlow, other stores, raw limits.

Each framework is a process of its own (`store_subjects.py`); in every round all ways take their turn, so that a noisy
machine disturbs all alike. Medians are compared, as ratios. Files come from the page cache in all loads: what is
compared is the work, not the disk's speed of reading. PyTorch and Orbax are left out where they are not installed.

Prints ratios with their goals and writes `store.json`, of which `page.py` makes `docs/performance.md` and its plot.
Use: python bench/store.py [--sizes 0.1,1,4] [--folders /tmp,/dev/shm] [--rounds 3] [--out DIR]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from page import machine, reached
from store_slowdown import inspect_seconds, slowdown
from store_subjects import FRAMEWORKS

GIB = 2**30
NEEDS = {"torch": "torch", "jax": "orbax"}
OURS, UNVERIFIED = "anyrig", "anyrig, verify off"
ASYNC = ("anyrig", "tf.train.Checkpoint, async", "Orbax")

Found = dict[str, dict[str, float]]


@contextmanager
def served(framework: str, nbytes: int) -> Iterator[subprocess.Popen[str]]:
    """Start the process of a framework and wait until it has its state."""
    command = [sys.executable, str(Path(__file__).with_name("store_subjects.py")), framework, str(nbytes)]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=quiet, text=True)
    try:
        answer(process)
        yield process
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait(60)


def answer(process: subprocess.Popen[str], question: Mapping[str, str] | None = None) -> dict[str, float]:
    assert process.stdin
    assert process.stdout
    if question:
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
    while line := process.stdout.readline():
        if line.startswith("{"):
            found: dict[str, float] = json.loads(line)
            return found
    raise RuntimeError(f"{process.args} ended")


def measure(nbytes: int, folder: Path, rounds: int) -> Found:
    """Return the medians of seconds for each way; a first round, which warms up, is not counted."""
    seconds: dict[str, list[dict[str, float]]] = {}
    present = [name for name in FRAMEWORKS if importlib.util.find_spec(NEEDS.get(name, "json"))]
    together = nbytes < 2 * GIB  # else one process after the other, each with all its rounds
    for names in [present] if together else [[name] for name in present]:
        one_group(names, nbytes, folder, rounds, seconds)
    return {
        way: {key: statistics.median(found[key] for found in many) for key in many[0]} for way, many in seconds.items()
    }


def one_group(names: list[str], nbytes: int, folder: Path, rounds: int, seconds: dict[str, Any]) -> None:
    with ExitStack() as stack:
        processes = {name: stack.enter_context(served(name, nbytes)) for name in names}
        for number in range(rounds + 1):
            for name, process in processes.items():
                for way in FRAMEWORKS[name].names:
                    found = answer(process, {"way": way, "folder": str(folder / "anyrig-bench")})
                    if number:
                        seconds.setdefault(way, []).append(found)


def ratios(found: Found) -> list[tuple[str, float, str]]:
    """Return (what, ratio, goal); a ratio is of speeds, so more is better, but for the pause."""
    peers = {way: times for way, times in found.items() if "load" in times and not way.startswith("anyrig")}
    copying = {way: times for way, times in peers.items() if not way.endswith("mapped load")}

    def best(key: str) -> float:
        return min(times[key] for times in copying.values() if key in times)

    keras, ours, unverified = found["Keras .weights.h5"], found[OURS], found[UNVERIFIED]
    listed = [
        ("pause of a save, to one memcpy of the state", ours["pause"] / found["memcpy"]["save"], "<= 0.5"),
        ("save, to raw write and fsync", found["write and fsync"]["save"] / ours["save"], ">= 0.9"),
        ("save, to the best peer", best("save") / ours["save"], ">= 1.5"),
        ("load without verifying, to Keras", keras["load"] / unverified["load"], ">= 10"),
        ("load without verifying, to the best peer", best("load") / unverified["load"], ">= 3"),
        ("load, verified, to the best peer", best("load") / ours["load"], ">= 2"),
    ]
    for key in ("load and predict", "load and train"):
        listed.append((f"{key}, without verifying, to Keras", keras[key] / unverified[key], ""))
        listed.append((f"{key}, without verifying, to the best peer", best(key) / unverified[key], ""))
        listed.append((f"{key}, verified, to the best peer", best(key) / ours[key], ""))
    return listed


def show(title: str, found: Found, compared: list[tuple[str, float, str]]) -> None:
    print(f"\n{title}")
    keys = ("pause", "save", "load", "load and predict", "load and train")
    print(f"  {'':<30}" + "".join(f"{key:>18}" for key in keys))
    for way, times in found.items():
        cells = (f"{times[key] * 1000:.1f} ms" if key in times else "" for key in keys)
        print(f"  {way:<30}" + "".join(f"{cell:>18}" for cell in cells))
    show_ratios(compared)


def show_ratios(compared: list[tuple[str, float, str]]) -> None:
    for what, ratio, goal in compared:
        print(
            f"  {what:<60} {ratio:>7.2f}  {goal and f'goal {goal}'}{'' if reached(ratio, goal) else ': missed'}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="0.1,1,4", help="GiB")
    parser.add_argument("--folders", default="/tmp,/dev/shm", help="a disk and a tmpfs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "measured")
    given = parser.parse_args()
    report: dict[str, Any] = {"made_on": machine(), "runs": []}
    for folder in map(Path, given.folders.split(",")):
        for size in map(float, given.sizes.split(",")):
            found = measure(int(size * GIB), folder, given.rounds)
            compared = ratios(found)
            kind = "tmpfs" if folder == Path("/dev/shm") else "disk"
            show(f"{size:g} GiB, {kind}", found, compared)
            rounded = {way: {key: round(value, 5) for key, value in times.items()} for way, times in found.items()}
            listed = [[what, round(ratio, 3), goal] for what, ratio, goal in compared]
            report["runs"].append({"gib": size, "on": kind, "seconds": rounded, "ratios": listed})
            write(given.out, report)
    compared = [
        ("training with a save every 100 steps, to without", slowdown(3 * given.rounds), "<= 1.02"),
        ("seconds of `anyrig inspect` of 10 GiB, whole process", inspect_seconds(given.rounds), "<= 0.3"),
    ]
    print()
    show_ratios(compared)
    report["others"] = [[what, round(ratio, 4), goal] for what, ratio, goal in compared]
    write(given.out, report)


def write(folder: Path, report: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "store.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
