"""Run the whole crash suite and write docs/reliability.md from what it measured; driven by `make reliability`.

    python tests/crash/reliability.py [page]

What is measured is kept in docs/measured/reliability.json, and the page is written from that and nothing else, which a
test checks. With `page` nothing is run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from anyrig.environment import environment  # noqa: E402
from anyrig.sizes import size  # noqa: E402
from tests.crash.actions import ACTIONS  # noqa: E402
from tests.crash.conftest import COLLECTED  # noqa: E402

MEASURED = ROOT / "docs" / "measured" / "reliability.json"
PAGE = ROOT / "docs" / "reliability.md"
PAGE_TEST = "test_reliability_page"  # of the page that is to be written

HEAD = """\
<!-- Written by `make reliability` from docs/measured/reliability.json; do not edit. -->

# What is promised of checkpoints, and how it is shown

1. **A committed checkpoint is whole.** A step is committed when its folder has its final name and a valid manifest
   ([format.md](format.md)); until that rename nothing takes it for a checkpoint, and a step that is there stays until
   the next one, or the one that replaces it, is on the disk.
2. **The newest committed checkpoint loads after anything that stops the process**: a kill, a full disk, a power cut.
   The next start of the run removes what was unfinished and goes on from it.
3. **Damage is found before it is used.** Every byte is under a checksum. A run falls back to the step before and says
   why; a load is refused with the file and the tensor named.
4. **A save that failed is an error with a code**, in the training loop; never a warning, never silence.
5. **One writer.** A second start in a run directory is refused with the first one's process id and host (ANY-LOCK-001);
   the lock of a process that died is taken over, on the same machine at once.
"""

LIMITS = """\
## Where the promises end

* **A disk that lies.** "On the disk" means that `fsync` of the file and of its folder came back. A disk or a virtual
  machine that says so too early can lose on a power cut what it confirmed. A kill of the process loses nothing there.
* **Network file systems.** A rename is whole for every reader, and `fsync` reaches the server if its export is `sync`.
  Where `flock` does not work, two starts in the same instant may both take the lock; the one that was replaced stops
  at its next save. Data files are read, not mapped, as a server can cut a mapped file short.
* **A lock taken by hand.** Whoever deletes `.lock` of a run that is alive lets a second one write beside it. Each save
  looks first whether the lock is still its own (ANY-LOCK-002), and no save writes into another's folder; but retention
  of one can remove what the other counts on. On another machine an owner counts as gone 300 s after its last sign of
  life, so a machine that was suspended for longer finds its lock taken, and stops.
* **Replacing a step** takes two renames. Killed between them, the step has no folder of its final name until the next
  start gives the former one back; older steps are there all the time. `anyrig.load` finds the new one at once.
* **One damaged copy.** Checksums find damage, they do not mend it. Keep more than one step (`keep_last`), and another
  disk for what matters. A forger can compute checksums: they are no signature.
* **A permission that is missing** is an error, never "no checkpoint": a run does not begin anew because of it.
"""


def page(stored: dict[str, Any]) -> str:
    """Return the page."""
    on, tables = stored["made_on"], stored["tables"]
    walks = _merged(sorted(tables["walks"], key=_by_action))
    parts = [
        HEAD,
        f"Made with Python {on['python']} on {on['platform']}, {on['cpu']}. `make reliability` makes this page anew; "
        "`make test` runs a sample by its printed seed, `make test-full` all. What breaks things is part of the "
        "package, for stores of your own: `anyrig.testing.faults` and `anyrig.testing.power`.\n",
        "## Killed in training\n",
        *(_training(row) for row in tables["training"]),
        "## At every call\n",
        "Each action below is done once for every call that it makes to the file system, in a fresh run directory, "
        "and broken at that call. Kills are real (SIGKILL, in a process of its own). Afterwards everything "
        "that is committed is read back: it is as before the action, as after it, or, where an action has several "
        "parts, in between (`as it should be`: these are one state). The next start leaves nothing else, and the "
        "newest step is the one that a run goes on from. No other outcome was seen, and the tests fail at the first.\n",
        _grid(
            ["action", "broken by", "times", "what was there afterwards"],
            map(_walk, walks),
        ),
        "`power loss` is a model of a disk: what was not flushed is gone, names of files come either late or early. "
        "`each use of a name` is every open, listing, rename or removal that Python does below the run, also those of "
        "locks and readers.\n",
        "## Damage\n",
        _grid(["damage", "in", "times", "found", "told by a load"], map(_damage, _sorted(tables["damage"]))),
        "`none: what it takes is sound`: a load takes neither the header nor documents that it was not asked for; "
        "`anyrig verify` and the start of a run read everything, and found all.\n",
        "## Large and many\n",
        _grid(
            ["what", "save, s", "open, s", "load, s", "load verified, s", "verify, s", "save", "load verified"],
            map(_size, _sorted(tables["sizes"])),
        ),
        "On a machine that did other work beside it. The last two columns: per tensor where there are many, else per "
        "GiB.\n",
        LIMITS,
    ]
    return "\n".join(parts)


def _training(row: dict[str, Any]) -> str:
    when = "; ".join(f"{words}: {count}" for words, count in sorted(row["when"].items()))
    return (
        f"A training that saves after every step, in the background, was killed **{row['kills']} times** at random "
        f"moments and started again each time, over {row['steps']:,} steps ({when}). After each kill every committed "
        "checkpoint verified in full. The newest one was compared with the state that an undisturbed run has at that "
        f"step: {len(row['different'])} differed.\n"
    )


ORDER = [action.words for action in ACTIONS.values()]
# What they are about is finished by the next start, so there is one state in which it leaves everything.
ONE_STATE = {action.words for action in ACTIONS.values() if action.states[0] == action.states[-1]}


def _by_action(row: dict[str, Any]) -> tuple[int, str]:
    return ORDER.index(row["action"]) if row["action"] in ORDER else len(ORDER), row["fault"]


def _merged(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the rows of one action that differ only by the error into one."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        error, at, when = row["fault"].partition(" at each")
        of_errors = bool(at) and not error.startswith("kill")
        key = row["action"], f"any error{at}{when}" if of_errors else row["fault"]
        empty = {"action": key[0], "errors": [], "fault": key[1], "tried": 0, "outcomes": Counter()}
        total = found.setdefault(key, empty)
        total["errors"] += [error] if of_errors else []
        total["tried"] += row["tried"]
        total["outcomes"].update(row["outcomes"])
    for row in found.values():
        row["fault"] = row["fault"].replace("any error", ", ".join(row["errors"]))
    return list(found.values())


def _walk(row: dict[str, Any]) -> list[str]:
    outcomes: Counter[str] = Counter()
    codes = set()
    for words, count in row["outcomes"].items():
        state, _, told = words.partition(", ")
        outcomes["as it should be" if row["action"] in ONE_STATE else state] += count
        codes |= {told} - {"", "done"}
    found = ", ".join(f"{words} {count}" for words, count in sorted(outcomes.items()))
    return [row["action"], row["fault"], str(row["tried"]), found + (f" ({', '.join(sorted(codes))})" if codes else "")]


def _damage(row: dict[str, Any]) -> list[str]:
    return [row["damage"], row["where"], str(row["tried"]), str(row["found"]), row["load"]]


def _size(row: dict[str, Any]) -> list[str]:
    def per(name: str) -> str:
        if name not in row:
            return ""
        if row["count"] > 1:
            return f"{row[name] / row['count'] * 1e6:,.0f} µs"
        return f"{row[name] / (row['bytes'] / 2**30):.2f} s"

    names = ["save", "open", "load, not verified", "load, verified", "verify"]
    seconds = [f"{row[name]:.3f}" if name in row else "" for name in names]
    return [f"{row['what']} (manifest {size(row['manifest'])})", *seconds, per("save"), per("load, verified")]


def _sorted(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


def _grid(header: list[str], rows: Iterable[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows]) + "\n"


def collected() -> dict[str, Any]:
    """Return what the crash tests have kept, by table."""
    tables: dict[str, list[Any]] = {}
    for path in sorted(COLLECTED.glob("*.json")):
        row = json.loads(path.read_text(encoding="utf-8"))
        tables.setdefault(row.pop("table"), []).append(row)
    return {"made_on": environment(), "tables": {name: _sorted(rows) for name, rows in sorted(tables.items())}}


def main(arguments: list[str]) -> int:
    """Measure unless only the page is wanted, and write the page; return the tests' exit code."""
    if arguments != ["page"]:
        shutil.rmtree(COLLECTED, ignore_errors=True)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--full", str(ROOT / "tests" / "crash")], check=False
        )
        if done.returncode:
            return done.returncode
        MEASURED.write_text(json.dumps(collected(), indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(MEASURED.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
