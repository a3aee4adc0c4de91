"""Open, verify and convert every file of the corpus, and write docs/compatibility.md; driven by `make compatibility`.

    python tests/corpus/compatibility.py [page]

What is measured is kept in docs/measured/compatibility.json, and the page is written from that and nothing else, which
a test checks; so it does that reading and verifying, which take no time, still give what is kept. With `page` nothing
is opened.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from anyrig.diagnose.verify import verify  # noqa: E402
from tests.corpus import keras1, keras2, keras3  # noqa: E402
from tests.corpus import tensorflow_checkpoints as checkpoints  # noqa: E402
from tests.corpus.artefacts import unpacked  # noqa: E402

MEASURED = ROOT / "docs" / "measured" / "compatibility.json"
PAGE = ROOT / "docs" / "compatibility.md"
OF_KERAS_2 = ("model.keras", "model.h5", "weights.h5", "saved_model", "checkpoint")
EQUAL = 1e-5
HEAD = """\
<!-- Written by `make compatibility` from docs/measured/compatibility.json; do not edit. -->

# What is opened, and what is kept

Each row is a kind of file, each number how many of the test corpus's files of that kind. They were written by the
program that the row names; the published ones come from packages that people can install. Keras 1 runs nowhere any
more: its files are put together, and their outputs are those of tf-keras 2.21, which reads them too (of one of Theano's
after its windows were turned, as Keras 2 did and tf-keras does not). Nothing but *open_model*, *outputs*, *optimizer*
and *convert* needs TensorFlow.

- **inspect, verify**: every tensor is listed, and read to its last byte; in brackets, which checksums are compared.
- **open_model**: *model*: `anyrig.open_model(path)` returns the Keras model. *filled*: the file has weights alone, and
  `open_model(path, into=build)` fills the model that the user builds (musicnn's with `rules=`: its names count layers,
  many of one shape). *predicts*: a SavedModel without a description of its layers, which is run with
  `trust="program"`. A code (see [errors.md](errors.md)) or a few words: why not.
- **outputs**: the largest difference from the outputs of the program that wrote the file, relative to the largest.
- **optimizer**: how many models got all of their optimizer's state from the file, and, of these, how far the weights
  are from the writer's after one more training step of both. Keras 2 and 3 round some optimizers differently (RMSprop,
  Nadam, AdamW, Adagrad), and Keras 2 leaves the optimizers of before 2.11 out of its `.keras` files.
- **convert**: `anyrig.convert` to `.keras`, proved by equal arrays and outputs.
"""
FILES = {
    "model.keras": ".keras",
    "unzipped": ".keras, unpacked",
    "model.h5": "whole model, .h5",
    "model.weights.h5": ".weights.h5",
    "weights.h5": "weights, .h5",
    "sharded.weights.json": "weights in several files",
    "saved_model": "SavedModel",
    "checkpoint": "tf.train.Checkpoint",
}


@dataclass(frozen=True)
class Case:
    """A file of the corpus: the kind is its row. `name` is a model's in `corpus`, None where it is only read."""

    kind: str
    path: Path
    corpus: str | None = None
    name: str = ""


def cases(folder: Path) -> Iterator[Case]:
    """Yield all files, unpacked below `folder`."""
    for title, corpus, files in (("Keras 3.15", keras3, keras3.FILES), ("Keras 2 (tf-keras 2.21)", keras2, OF_KERAS_2)):
        for name in corpus.NAMES:
            place = corpus.unpack(name, folder / corpus.__name__)
            for file in files:
                if file == "checkpoint" or (place / file).exists():
                    opened = None if name == "subclassed" else corpus.__name__  # its class is not in the corpus
                    yield Case(f"{title}: {FILES[file]}", place / file, opened, name)
    for name in keras1.NAMES:
        yield Case("Keras 1.2's layout: whole model, .h5", keras1.FOLDER / f"{name}.h5", keras1.__name__, name)
    for name in checkpoints.NAMES:
        kind = "tf.train.Checkpoint" if "objects" in name else "Saver of TensorFlow 1"
        yield Case(f"TensorFlow 2.21: {kind}", checkpoints.unpack(name, folder / "tensorflow"))
    yield from _published()
    others = Path(__file__).parent / "others"
    yield Case("Keras 3.15: folder of OrbaxCheckpoint", others / "orbax")
    yield from (Case("ONNX", path) for path in sorted(others.glob("*.onnx")))
    yield from (Case("TFLite", path) for path in sorted(others.glob("*.tflite")))


def _published() -> Iterator[Case]:
    kinds = {
        "spliceai": ("Keras 2.0.5: whole model, .h5", "*.h5"),
        "fer": ("Keras 2.0.5: whole model, .hdf5", "*.hdf5"),
        "mhcnuggets": ("Keras 2.1 and 2.2: weights, .h5", "*.h5"),
        "guesslang": ("TensorFlow 2.5: SavedModel of an estimator", "saved_model.pb"),
        "musicnn": ("TensorFlow 1: Saver, from another disk", "checkpoint"),
    }
    for package, (kind, pattern) in kinds.items():
        for path in sorted(unpacked(package).rglob(pattern)):
            yield Case(f"published, {package}; {kind}", path, "published", package)


def readings(found: Iterable[Case]) -> dict[str, dict[str, Any]]:
    """Return, for each kind, how many files were read whole and sound, and what was checked."""
    rows: dict[str, dict[str, Any]] = {}
    for case in found:
        row = rows.setdefault(case.kind, {"files": 0, "sound": 0, "checked": []})
        report = verify(case.path)
        row["files"] += 1
        row["sound"] += report.sound and report.file is not None and not report.file.unread
        row["checked"] = sorted({*row["checked"], *(report.file.checked if report.file else ())})
    return rows


def openings(found: Iterable[Case]) -> dict[str, dict[str, Any]]:
    """Return, for each kind, what became of the files that were opened."""
    rows: dict[str, dict[str, Any]] = {}
    for case in found:
        if case.corpus is not None:
            outcome = _opened(case)
            print(case.kind, case.name, outcome, flush=True)
            row = rows.setdefault(
                case.kind, {"how": Counter(), "outputs": [], "steps": [], "kept": [], "converted": []}
            )
            row["how"][outcome.how] += 1
            row["outputs"] += [] if outcome.outputs is None else [outcome.outputs]
            row["kept"] += [] if outcome.kept is None else [outcome.kept]
            row["steps"] += [outcome.step] if outcome.kept else []
            if outcome.how == "model":
                row["converted"].append(_converts(case))
    return rows


def _opened(case: Case) -> Any:
    if case.corpus == "published":
        from tests.corpus.published import outcome_of

        return outcome_of(case.name, case.path)
    from tests.corpus.opening import outcome

    corpora = {corpus.__name__: corpus for corpus in (keras1, keras2, keras3)}
    return outcome(corpora[case.corpus or ""], case.name, case.path.parent, case.path.name)


def _converts(case: Case) -> bool:
    """Tell whether a file is converted with its proof; a refusal counts as none."""
    import warnings

    from anyrig.errors import AnyrigError
    from anyrig.exchange.convert import convert

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            convert(case.path, Path(folder) / "converted.keras")
        except AnyrigError as error:
            print("  not converted:", error.code, error.message, flush=True)
            return False
    return True


def page(measured: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of the page."""
    columns = ["file", "files", "inspect, verify", "open_model", "outputs", "optimizer", "convert"]
    lines = [columns, ["---"] * len(columns), *(_row(kind, row) for kind, row in measured.items())]
    return HEAD + "\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _row(kind: str, row: Mapping[str, Any]) -> list[str]:
    checked = f" ({'; '.join(row['checked'])})" if row["checked"] else ""
    opened = ", ".join(f"{count} {how}" for how, count in sorted(row.get("how", {}).items(), key=lambda item: -item[1]))
    outputs, steps, kept, converted = (row.get(key, []) for key in ("outputs", "steps", "kept", "converted"))
    return [
        kind,
        str(row["files"]),
        f"{row['sound']}{checked}",
        opened or "arrays by name",
        _shown(max(outputs)) if outputs else "",
        f"{sum(kept)} of {len(kept)}, {_shown(max(steps))}" if steps else "",
        f"{sum(converted)} of {len(converted)}" if converted else "",
    ]


def _shown(difference: float) -> str:
    return f"{difference:.0e}" if difference else "equal"


def main() -> None:
    """Measure, unless only the page is wanted, and write it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "page" not in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            found = list(cases(Path(folder)))
            rows, opened = readings(found), openings(found)
        both = {kind: row | opened.get(kind, {}) for kind, row in rows.items()}
        MEASURED.write_text(json.dumps(both, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(MEASURED.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
