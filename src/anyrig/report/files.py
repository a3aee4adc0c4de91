"""Metrics as files: `metrics.jsonl`, one line for each record, and `metrics.csv`, one row for each epoch.

A run that is carried on continues its file: what came after the checkpoint is taken out first, since it comes again.
Files are replaced as a whole, by renaming, so that a kill leaves the old one or the new one.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
from pathlib import Path
from typing import IO, Any

from anyrig.report.record import Mark, Record


class JsonLinesFile:
    """Appends {"kind": "step", "step", "epoch", metrics, speed} or the same of kind "epoch" for each record."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def open(self, after: Mark | None) -> None:
        """Take out what comes again, and a line that a kill cut short."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)
            replace_text(self._path, "".join(line for line in lines if _stays(line, after)))
        self._file = self._path.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        """Append one line."""
        assert self._file is not None
        line: dict[str, Any] = {
            "kind": record.kind,
            "step": record.mark.step,
            "epoch": record.epoch,
            **record.metrics,
            **record.speed,
            **record.load,
        }
        if record.weights:
            line["weights"] = {name: dataclasses.asdict(spread) for name, spread in record.weights.items()}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self, error: BaseException | None) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class CsvFile:
    """Keeps a table of the epochs: epoch, step, speed and metrics. A metric that comes later gets a column then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[dict[str, Any]] = []

    def open(self, after: Mark | None) -> None:
        """Read the epochs that stay."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            with self._path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            self._rows = [row for row in rows if after is None or Mark(int(row["step"]), True) <= after]

    def write(self, record: Record) -> None:
        """Add an epoch and write the table."""
        if not record.mark.of_epoch:
            return
        self._rows.append({"epoch": record.epoch, "step": record.mark.step, **record.speed, **record.metrics})
        columns = list(dict.fromkeys(name for row in self._rows for name in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        replace_text(self._path, text.getvalue())

    def close(self, error: BaseException | None) -> None:
        """Do nothing: the table is complete after each epoch."""


def replace_text(path: Path, text: str) -> None:
    """Write `text` beside `path`, then rename it."""
    beside = path.with_name(f".{path.name}.partial")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def _stays(line: str, after: Mark | None) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return after is None or Mark(record["step"], record["kind"] == "epoch") <= after
