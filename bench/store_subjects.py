"""What `store.py` measures: each way of saving and loading one training state, behind the same two functions.

A process serves all ways of one framework: it builds the state once, takes lines of JSON, does what they say and
answers with seconds. The state is 64 square float32 kernels with biases and Adam's two slots of each, in TensorFlow
that of a Keras model, elsewhere arrays of the same shapes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

LAYERS = 64
ROWS = 8


def width_of(nbytes: int) -> int:
    """Return the width of the layers whose kernels, biases and slots have so many bytes, a multiple of 16."""
    return max(16, round((nbytes / (LAYERS * 3 * 4)) ** 0.5 / 16) * 16)


def timed(act: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


class TensorFlowWays:
    """The ways to store a compiled Keras model. `save` returns seconds of the pause and of the whole save."""

    names = (
        "anyrig",
        "anyrig, verify off",
        "Keras .weights.h5",
        "Keras .keras",
        "tf.train.Checkpoint",
        "tf.train.Checkpoint, async",
        "safetensors and assign",
    )

    def __init__(self, nbytes: int) -> None:
        import keras
        import tensorflow as tf

        width = width_of(nbytes)
        self.keras, self.tf = keras, tf
        generator = np.random.default_rng(0)
        self.model = keras.Sequential([keras.Input((width,)), *(keras.layers.Dense(width) for _ in range(LAYERS))])
        self.model.compile(keras.optimizers.Adam(1e-6), "mse", jit_compile=False)
        self.x = generator.normal(size=(ROWS, width)).astype("float32")
        self.loaded = self.model  # what the last load gave: the model itself but for .keras, which makes a new one
        self.train()
        self.predict()
        # Of TensorFlow's variables, not of the model: an asynchronous save of Keras 3's fails from the second on.
        self.checkpoint = tf.train.Checkpoint(variables=[v.value for v in self.variables])

    def train(self) -> None:
        self.loaded.train_on_batch(self.x, self.x)

    def predict(self) -> None:
        self.loaded.predict_on_batch(self.x)

    @property
    def variables(self) -> list[Any]:
        return [*self.model.variables, *self.model.optimizer.variables]

    def save(self, way: str, path: Path) -> tuple[float, float]:
        import anyrig

        begun = time.perf_counter()
        if way.startswith("anyrig"):
            saving = anyrig.save(path, self.model, wait=False)
            pause = time.perf_counter() - begun
            saving.wait()
            return pause, time.perf_counter() - begun
        if way == "tf.train.Checkpoint, async":
            options = self.tf.train.CheckpointOptions(experimental_enable_async_checkpoint=True)
            self.checkpoint.write(str(path / "state"), options)
            pause = time.perf_counter() - begun
            self.checkpoint.sync()
            return pause, time.perf_counter() - begun
        if way == "tf.train.Checkpoint":
            self.checkpoint.write(str(path / "state"))
        elif way == "Keras .weights.h5":
            self.model.save_weights(f"{path}.weights.h5")
        elif way == "Keras .keras":
            self.model.save(f"{path}.keras")
        else:
            from safetensors.numpy import save_file

            save_file({str(i): np.asarray(v.value) for i, v in enumerate(self.variables)}, f"{path}.safetensors")
        seconds = time.perf_counter() - begun
        return seconds, seconds

    def load(self, way: str, path: Path) -> None:
        import anyrig

        self.loaded = self.model
        if way.startswith("anyrig"):
            anyrig.load(path, self.model, verify="off" if way.endswith("off") else "full")
        elif way.startswith("tf.train.Checkpoint"):
            # Its own counter of saves may be wanting, of which TensorFlow warns; `check` looks at the state.
            self.checkpoint.read(str(path / "state")).expect_partial()
        elif way == "Keras .weights.h5":
            self.model.load_weights(f"{path}.weights.h5")
        elif way == "Keras .keras":
            self.loaded = self.keras.saving.load_model(f"{path}.keras")
        else:
            from safetensors.numpy import load_file

            stored = load_file(f"{path}.safetensors")
            for i, variable in enumerate(self.variables):
                variable.assign(stored[str(i)])

    def change(self) -> None:
        """Train the model a step, so that a load has something to do; its variables have their own memory then."""
        before = self.sample(self.model)
        self.loaded = self.model
        self.train()
        assert any(not np.array_equal(*pair) for pair in zip(before, self.sample(self.model), strict=True))

    def check(self, way: str, saved: Any) -> None:
        """See that what was loaded is what was saved."""
        assert all(np.array_equal(*pair) for pair in zip(saved, self.sample(self.loaded), strict=True)), way

    def sample(self, model: Any) -> list[Any]:
        """Copy some of the state, of weights and of slots."""
        held = [*model.variables, *model.optimizer.variables]
        return [v.value.numpy() for v in held[:: LAYERS // 2]]


class TorchWays:
    """The same arrays as PyTorch tensors, in memory of their own; a load copies into them."""

    names = ("torch.save", "torch.save, mapped load", "torch distributed checkpoint")

    def __init__(self, nbytes: int) -> None:
        import torch

        self.torch, width = torch, width_of(nbytes)
        shapes = [(width, width), (width,)] * LAYERS
        self.state = {f"{part}.{i}": torch.rand(s) for part in ("w", "m", "v") for i, s in enumerate(shapes)}

    def save(self, way: str, path: Path) -> tuple[float, float]:
        begun = time.perf_counter()
        if way == "torch distributed checkpoint":
            import torch.distributed.checkpoint as dcp

            dcp.save(self.state, checkpoint_id=path, no_dist=True)
        else:
            self.torch.save(self.state, f"{path}.pt")
        seconds = time.perf_counter() - begun
        return seconds, seconds

    def load(self, way: str, path: Path) -> None:
        if way == "torch distributed checkpoint":
            import torch.distributed.checkpoint as dcp

            dcp.load(self.state, checkpoint_id=path, no_dist=True)
            return
        mapped = way.endswith("mapped load")
        stored = self.torch.load(f"{path}.pt", mmap=mapped, weights_only=True)
        if mapped:
            self.state = stored
            return
        for name, tensor in self.state.items():
            tensor.copy_(stored[name])


class JaxWays:
    """The same arrays as JAX arrays, stored by Orbax."""

    names = ("Orbax",)

    def __init__(self, nbytes: int) -> None:
        import jax
        import orbax.checkpoint as ocp

        width = width_of(nbytes)
        shapes = [(width, width), (width,)] * LAYERS
        generator = np.random.default_rng(0)
        self.state = {
            f"{part}.{i}": jax.numpy.asarray(generator.random(s, dtype=np.float32))
            for part in ("w", "m", "v")
            for i, s in enumerate(shapes)
        }
        self.jax, self.checkpointer = jax, ocp.StandardCheckpointer()

    def save(self, way: str, path: Path) -> tuple[float, float]:
        begun = time.perf_counter()
        self.checkpointer.save(path, self.state)
        pause = time.perf_counter() - begun
        self.checkpointer.wait_until_finished()
        return pause, time.perf_counter() - begun

    def load(self, way: str, path: Path) -> None:
        self.state = self.checkpointer.restore(path, self.state)
        self.jax.block_until_ready(self.state)


class RawWays:
    """What memory and disk give: one copy of all arrays, one file written, flushed and read."""

    names = ("memcpy", "write", "write and fsync", "read")

    def __init__(self, nbytes: int) -> None:
        generator = np.random.default_rng(0)
        width = width_of(nbytes)
        shape = (LAYERS * 3, width * width + width)
        self.source = generator.random(shape, dtype=np.float32)
        self.target = np.zeros_like(self.source)

    def save(self, way: str, path: Path) -> tuple[float, float]:
        begun = time.perf_counter()
        if way == "memcpy":
            np.copyto(self.target, self.source)
        elif way != "read":
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            left = self.source.reshape(-1).view(np.uint8).data
            while left:
                left = left[os.write(descriptor, left) :]
            if way == "write and fsync":
                os.fsync(descriptor)
            os.close(descriptor)
        else:
            self.source.tofile(path)
            begun = time.perf_counter()
            with open(path, "rb", buffering=0) as file:
                left = self.target.reshape(-1).view(np.uint8).data
                while left:
                    left = left[file.readinto(left) :]
        seconds = time.perf_counter() - begun
        return seconds, seconds

    def load(self, way: str, path: Path) -> None:
        """There is nothing to load."""


FLUSHED = ("anyrig", "anyrig, verify off", "memcpy", "write", "write and fsync", "read")
FRAMEWORKS: dict[str, Any] = {"raw": RawWays, "tensorflow": TensorFlowWays, "torch": TorchWays, "jax": JaxWays}


def flush(folder: Path) -> None:
    """Return when every file below `folder` is on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def round_of(ways: Any, way: str, folder: Path) -> dict[str, float]:
    """Save and load once; return seconds: `pause` until the call returns, `save` until all is on the disk.

    A step of training comes first: else variables could still share the pages of a file that was loaded before. Those
    that do not flush what they write are followed by a flush. What the system still has to write is written before each
    measurement.
    """
    path = folder / "state"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if isinstance(ways, TensorFlowWays):
        ways.train()
    os.sync()
    saved = ways.sample(ways.model) if isinstance(ways, TensorFlowWays) else None
    pause, whole = ways.save(way, path)
    found = {"pause": pause, "save": whole}
    if way not in FLUSHED:
        found["save"] += timed(lambda: flush(folder))
    if isinstance(ways, TensorFlowWays):
        ways.change()
    os.sync()
    if not isinstance(ways, RawWays):
        found["load"] = timed(lambda: ways.load(way, path))
    if isinstance(ways, TensorFlowWays):
        ways.check(way, saved)
        if way == "Keras .keras":  # makes a new model: its first batch is traced, which is another thing than loading
            return found
        for name, act in (("predict", ways.predict), ("train", ways.train)):
            found[f"load and {name}"] = timed(lambda: (ways.load(way, path), act()))  # noqa: B023 - called at once
            ways.load(way, path)
    return found


def serve(framework: str, nbytes: int) -> None:
    """Answer each line {"way", "folder"} on stdin with seconds, as JSON."""
    ways = FRAMEWORKS[framework](nbytes)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(round_of(ways, asked["way"], Path(asked["folder"]))), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
