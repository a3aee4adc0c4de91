"""Two more measurements for `store.py`: what saving costs while training goes on, and what a look at 10 GiB costs."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS, EVERY = 300, 100


def slowdown(rounds: int) -> float:
    """Return the time of training with a save every 100 steps over that without: medians of one process, in turns."""
    command = [sys.executable, __file__, str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def train(rounds: int) -> float:
    import keras
    import numpy as np

    import anyrig

    def build() -> Any:
        hidden = [keras.layers.Dense(1024, "relu") for _ in range(6)]
        model = keras.Sequential([keras.Input((256,)), *hidden, keras.layers.Dense(10)])
        model.compile("adam", "mse", jit_compile=False)
        return model

    rig = anyrig.Rig(1)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(STEPS * 64, 256)).astype("float32")
    y = generator.normal(size=(STEPS * 64, 10)).astype("float32")
    model = rig.build(build)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for saving in (True, False):
                clock: list[float] = []
                note = keras.callbacks.LambdaCallback(
                    on_epoch_begin=lambda *_, clock=clock: clock.append(time.perf_counter()),
                    on_epoch_end=lambda *_, clock=clock: clock.append(time.perf_counter()),
                )
                run = anyrig.Checkpoint(Path(folder) / str(number), every=f"{EVERY} steps")
                callbacks = [note, run] if saving else [note]
                rig.fit(model, x, y, batch_size=64, shuffle=False, verbose=0, callbacks=callbacks)
                if number:
                    seconds[saving].append(clock[1] - clock[0])
    return statistics.median(seconds[True]) / statistics.median(seconds[False])


def inspect_seconds(rounds: int) -> float:
    """Return the processor seconds of a whole `anyrig inspect` of a checkpoint of 10 GiB (a sparse file)."""
    with tempfile.TemporaryDirectory() as folder:
        path = sparse(Path(folder), 10 * 2**30)
        found = []
        for _ in range(rounds):
            before = os.times()
            subprocess.run([sys.executable, "-m", "anyrig", "inspect", str(path)], capture_output=True, check=True)
            after = os.times()
            found.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return statistics.median(found)


def sparse(folder: Path, nbytes: int) -> Path:
    """Write a checkpoint of 200 tensors whose data is a hole in the file; its checksums are of nothing."""
    from anyrig.store.digest import CHUNK_BYTES
    from anyrig.store.header import TensorSpec, build_header
    from anyrig.store.manifest import FileEntry, Manifest, Piece, TensorEntry, encode

    size, name, checksum = nbytes // 200 // 64 * 64, "model-00001-of-00001.safetensors", "0" * 32
    specs = [TensorSpec(f"model/w{i}", "F32", (size // 4,), size) for i in range(200)]
    header = build_header(specs)
    chunks = (checksum,) * -(-size // CHUNK_BYTES)
    tensors = []
    for i, spec in enumerate(specs):
        start = len(header) + i * size
        piece = Piece((0,), spec.shape, name, start, start + size, chunks)
        tensors.append(TensorEntry(spec.name, (), spec.dtype, spec.shape, checksum, None, (piece,)))
    path = folder / "step-000000001"
    path.mkdir()
    with (path / name).open("wb") as stream:
        stream.write(header)
        stream.truncate(len(header) + 200 * size)
    files = (FileEntry(name, len(header) + 200 * size, checksum),)
    (path / "manifest.json").write_bytes(encode(Manifest(step=1, files=files, tensors=tuple(tensors))))
    return path


if __name__ == "__main__":
    print(train(int(sys.argv[1])))
