"""How soon a large checkpoint of TensorFlow is listed: `anyrig inspect` against `tf.train.list_variables`.

Both as whole processes, in turns, from the page cache; medians. Writes docs/measured/inspect.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from bench.page import MEASURED, goals, machine  # noqa: E402

TENSORS = 128
_WRITE = """
import sys, tensorflow as tf
prefix, rows, tensors = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
layers = [tf.Variable(tf.random.normal((rows, 1024), seed=n), name=f"layer_{n}/kernel") for n in range(tensors)]
tf.train.Checkpoint(layers=layers, step=tf.Variable(7)).write(prefix)
"""
_LIST = "import sys, tensorflow as tf; assert len(tf.train.list_variables(sys.argv[1])) > 9"
SUBJECTS = {
    "anyrig inspect": ["-m", "anyrig", "inspect"],
    "anyrig inspect --tensors": ["-m", "anyrig", "inspect", "--tensors"],
    "tf.train.list_variables": ["-c", _LIST],
}


def seconds(command: list[str], prefix: Path) -> float:
    """Return how long a process takes, from its start to its end, with compiled modules kept as they are by default."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    subprocess.run([sys.executable, *command, str(prefix)], check=True, capture_output=True, env=env)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", help="where the checkpoint is written; default: the folder for temporary files")
    given = parser.parse_args()
    on = machine()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        prefix = Path(folder) / "ckpt"
        rows = int(given.gib * 2**30) // (4 * 1024 * TENSORS)
        subprocess.run([sys.executable, "-c", _WRITE, prefix, str(rows), str(TENSORS)], check=True, capture_output=True)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        times: dict[str, list[float]] = {name: [] for name in SUBJECTS}
        for _ in range(given.rounds):
            for name, command in SUBJECTS.items():
                times[name].append(seconds(command, prefix))
    medians = {name: statistics.median(found) for name, found in times.items()}
    ratios = [
        ["seconds of anyrig inspect", medians["anyrig inspect"], "<= 0.5"],
        ["list_variables : anyrig inspect", medians["tf.train.list_variables"] / medians["anyrig inspect"], ">= 10"],
    ]
    report = {"made_on": on, "bytes": size, "tensors": TENSORS, "seconds": medians, "ratios": ratios}
    (MEASURED / "inspect.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(goals(ratios))


if __name__ == "__main__":
    main()
