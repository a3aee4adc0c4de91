"""Records as TensorBoard scalars, over the steps of the run: "epoch/val_loss", "step/loss", "speed/rows_per_second".

Of a load they are "load/tensors", ..., "load/first_loss", and a histogram "load/model/..." of each loaded weight.

A run that is carried on goes on in a new event file, into which what stays of the earlier ones is copied before they
are removed: so no point stands twice and no curve goes back, whatever reads the files. Only files that were written
here are touched; their names end in `.anyrig`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from anyrig.report.record import Mark, Record
from anyrig.report.weights import Spread

_SUFFIX = ".anyrig"
_Event = tf.compat.v1.Event
_Summary = tf.compat.v1.Summary


class TensorBoardFolder:
    """Event files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def open(self, after: Mark | None) -> None:
        """Begin an event file with what stays of the earlier ones, and remove those."""
        self._folder.mkdir(parents=True, exist_ok=True)
        earlier = [] if after is None else sorted(self._folder.glob(f"events.out.tfevents.*{_SUFFIX}"))
        name = f"events.out.tfevents.{time.time():.4f}.{socket.gethostname()}.{os.getpid()}{_SUFFIX}"
        self._writer = tf.io.TFRecordWriter(str(self._folder / name))
        self._add(_Event(wall_time=time.time(), file_version="brain.Event:2"))
        if earlier:  # a TensorBoard that is open forgets what it read from the files that go away
            session = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
            self._add(_Event(wall_time=time.time(), step=0, session_log=session))
        copied = set()  # two files hold the same points after a kill between copying and removing
        for event in (event for path in earlier for event in _events(path) if event.HasField("summary")):
            point = _mark(event), event.summary.value[0].tag if event.summary.value else ""
            if after is not None and point[0] <= after and point not in copied:
                copied.add(point)
                self._add(event)
        self._writer.flush()
        for path in earlier:
            path.unlink()

    def write(self, record: Record) -> None:
        """Write the scalars of one record, and of a load the histograms of the weights."""
        values = [_Summary.Value(tag=tag, simple_value=value) for tag, value in record.values().items()]
        values += [_histogram(f"load/{name}", spread) for name, spread in record.weights.items()]
        self._add(_Event(wall_time=time.time(), step=record.mark.step, summary=_Summary(value=values)))
        self._writer.flush()

    def close(self, error: BaseException | None) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def _add(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())


def _histogram(tag: str, spread: Spread) -> Any:
    """Return a spread as TensorBoard's histogram, whose sums are estimated from mean and deviation."""
    count = sum(spread.counts)
    histogram = tf.compat.v1.HistogramProto(
        min=spread.edges[0] if count else 0.0,
        max=spread.edges[-1] if count else 0.0,
        num=count,
        sum=spread.mean * count,
        sum_squares=(spread.deviation**2 + spread.mean**2) * count,
        bucket_limit=spread.edges[1:],
        bucket=spread.counts,
    )
    return _Summary.Value(tag=tag, histo=histogram)


def _events(path: Path) -> Iterator[Any]:
    """Yield the events of a file; a kill may have cut the last one short."""
    with contextlib.suppress(tf.errors.DataLossError):
        for raw in tf.data.TFRecordDataset(str(path)):
            yield _Event.FromString(raw.numpy())


def _mark(event: Any) -> Mark:
    return Mark(event.step, any(value.tag.startswith("epoch/") for value in event.summary.value))
