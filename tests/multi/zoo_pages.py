"""The pages same-numbers.md and keras-parity.md of docs/ as text, from what was measured; nothing is run here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

Stored = Mapping[str, Any]
NOTE = "<!-- Written by `make tables` from docs/measured/; do not edit. -->"
SGD_LIMIT = 1e-6


def same_numbers_page(stored: Stored) -> str:
    """Return the page on equal bytes over device counts."""
    table, families = stored["same-numbers"], stored["applications"]
    lines = [
        NOTE,
        "# The same numbers on any devices",
        "Each case below is a small model as users write it (the code is in `tests/multi/zoo_*.py`). It is trained "
        "for six steps with V = 4 and V = 6 virtual replicas on 1, 2 and 4 devices, each count in a process of its "
        "own, on 34 rows in batches that never divide evenly. The devices are logical ones of one processor. After "
        "each step the bytes of every tensor of the state (weights, optimizer, averages, metrics, seeds) are compared, "
        "and at the end the history: by `anyrig.testing.same_runs`, which is there for your models, too. A cell names "
        "the device counts of which that is shown; `not run`: not shown for two. `make tables` makes this page anew; "
        "`make test-full` runs all cases, `make test` a sample.",
        made_on(table),
        summary(table),
        *(section(kind, ["case", "name", "V = 4", "V = 6"], rows) for kind, rows in by_kind(table, _verdicts)),
        "## Families of keras.applications",
        "One small member of each family, with random weights and the smallest images it takes: two steps, of 4 and "
        "of 3 rows, with V = 2, on 1 and 2 devices. Seconds are for building, tracing and training, on a machine that "
        "did other work beside it.",
        made_on(families),
        grid(
            ["family", "member", "parameters", "pixels", "1 and 2 devices", "seconds on 1, 2", "peak memory, MiB"],
            (_family(family, list(found.values())) for family, found in families["families"].items()),
        ),
    ]
    return "\n\n".join(lines) + "\n"


def keras_parity_page(stored: Stored) -> str:
    """Return the page on how far V = 1 is from Keras's own fit."""
    table = stored["keras-parity"]
    lines = [
        NOTE,
        "# As Keras computes it",
        "The same cases with V = 1 on one device, trained once by `Rig.fit` and once by Keras's own `fit` (without "
        "XLA, rows in order). Random layers draw the same numbers: before each of its steps, Keras's seed generators "
        "are given the keys that the rig computes. The columns show the largest absolute difference of any number in "
        "weights and optimizer after one step and after ten, and of any value in the history of the first epoch. Zero "
        f"means the same bytes. With SGD at most {SGD_LIMIT:g} is allowed after ten steps. Optimizers that divide by "
        "the root of squared gradients make of a last bit in a gradient near zero a difference of the learning rate's "
        "size: there the first step is compared, and the later gap is shown. ScheduleFreeAdamW is built in the model "
        "function: where Keras's `fit` builds it, in the first step's trace, the weights begin at zero. `make tables` "
        "makes this page anew.",
        made_on(table),
        *(
            section(kind, ["case", "name", "optimizer", "1 step", "10 steps", "history"], rows)
            for kind, rows in by_kind(table, _differences)
        ),
    ]
    return "\n\n".join(lines) + "\n"


PAGES: dict[str, Callable[[Stored], str]] = {
    "same-numbers.md": same_numbers_page,
    "keras-parity.md": keras_parity_page,
}


def made_on(table: Stored) -> str:
    """Return one sentence on versions and machine."""
    on = table["made_on"]
    onednn = "on" if on["onednn"] else "off"
    return (
        f"Made with TensorFlow {on['tensorflow']} and Keras {on['keras']} on {on['cpu']}, {on['intra_op_threads']} "
        f"intra_op threads, oneDNN {onednn}."
    )


def summary(table: Stored) -> str:
    """Return how many runs had the same bytes, and how many did not train."""
    verdicts = [verdict(run) for run in table["runs"].values()]
    counts = Counter(text.split(",")[0].split(":")[0] for text in verdicts)
    listed = "; ".join(f"{text}: **{count}**" for text, count in counts.most_common())
    return f"{len(table['cases'])} cases, {len(verdicts)} runs. {listed}."


def by_kind(table: Stored, row: Callable[[str, Stored], list[str]]) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the rows of each kind of case."""
    kinds = dict.fromkeys(kind for kind, _ in table["cases"].values())
    for kind in kinds:
        names = [name for name, (own, _) in table["cases"].items() if own == kind]
        yield kind, [[table["cases"][name][1], f"`{name}`", *row(name, table)] for name in names]


def verdict(run: Mapping[str, Any]) -> str:
    """Return what one run over the device counts has shown, in a few words."""
    where = f"on {' and '.join(map(str, run['devices']))}"
    if "errors" in run:
        return f"{'refused' if run['refused'] else 'does not train'} {where}: {', '.join(run['errors'])}"
    if len(run["devices"]) < 2:
        return "not run"
    count, different = run["tensors"], run["different"]
    return (
        f"bytes differ {where}, {len(different)} of {count}"
        if different
        else f"same bytes {where}, {count} tensors and logs"
    )


def section(title: str, header: list[str], rows: Iterable[list[str]]) -> str:
    """Return a heading and a table."""
    return f"## {title}\n\n{grid(header, rows)}"


def grid(header: list[str], rows: Iterable[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _verdicts(name: str, table: Stored) -> list[str]:
    return [verdict(found) for run, found in table["runs"].items() if run.partition(":")[0] == name]


def _differences(name: str, table: Stored) -> list[str]:
    found = table["differences"].get(name)
    if found is None:
        return ["", "not run", "", ""]
    if "error" in found:
        return ["", f"not compared: {found['error']}", "", ""]
    after = f"{found['last']:.2g}" + ("" if found["steps"] == 10 else f" ({found['steps']} steps)")
    return [found["optimizer"], f"{found['first']:.2g}", after, f"{found['history']:.2g}"]


def _family(family: str, outcomes: Sequence[Any]) -> list[str]:
    errors = sorted({outcome["error"] for outcome in outcomes if outcome and "error" in outcome})
    if errors or None in outcomes:
        return [family, "", "", "", f"does not train: {', '.join(errors)}" if errors else "not run", "", ""]
    first = outcomes[0]
    same = all(outcome["digest"] == first["digest"] for outcome in outcomes)
    return [
        family,
        f"`{first['member']}`",
        f"{first['parameters']:,}",
        str(first["pixels"]),
        "same bytes" if same else "bytes differ",
        ", ".join(f"{outcome['seconds']:.0f}" for outcome in outcomes),
        ", ".join(f"{outcome['peak_mib']:,}" for outcome in outcomes),
    ]
