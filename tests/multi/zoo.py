"""The table of cases: models, losses, optimizers and data as users write them, each with the kind it stands for.

`CASES` is driven by `zoo_program.py`, which trains cases on several device counts, and by `zoo_keras.py`, which holds
them against Keras's own `fit`. A case never knows of devices or virtual replicas. Its data have 34 rows in batches of
13, 13 and 8, so that rows never divide evenly; `zoo_loop` has batches with fewer rows than virtual replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

ROWS, SIZE = 34, 13


class Case(NamedTuple):
    """What a user would write: a model function, and the arguments of `fit`, made anew for each call."""

    build: Callable[[], keras.Model]
    fit: Callable[[], dict[str, Any]]
    precision: str = "auto"


class Entry(NamedTuple):
    """A case in the table: `title` is the first line of what its function says of it, `refused` how it must end."""

    kind: str
    title: str
    make: Callable[[], Case]
    refused: str = ""


CASES: dict[str, Entry] = {}


def kind(name: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Return a decorator that puts a function that makes a case into the table, among those of this kind."""

    def add(make: Callable[[], Case]) -> Callable[[], Case]:
        CASES[make.__name__] = Entry(name, str(make.__doc__).strip().partition("\n")[0].rstrip("."), make)
        return make

    return add


def arrays(x: Any, y: Any, **others: Any) -> Callable[[], dict[str, Any]]:
    """Return arguments of `fit` for arrays."""
    return lambda: {"x": x, "y": y, "batch_size": SIZE, **others}


def floats(*shape: int, seed: int = 0) -> Any:
    """Return normal numbers, float32, shape (34, *shape)."""
    return np.random.default_rng(seed).normal(size=(ROWS, *shape)).astype("float32")


def weights(*shape: int) -> Any:
    """Return weights from 0 to 2, some of them 0, float32, shape (34, *shape)."""
    drawn = np.random.default_rng(5).uniform(-0.3, 2, (ROWS, *shape)).clip(0)
    return drawn.astype("float32")


def integers(limit: int, *shape: int, seed: int = 1) -> Any:
    """Return whole numbers below `limit`, int32, shape (34, *shape)."""
    return np.random.default_rng(seed).integers(0, limit, (ROWS, *shape)).astype("int32")


def one_hot(classes: int) -> Any:
    """Return one-hot labels, float32, shape (34, classes)."""
    return np.eye(classes, dtype="float32")[integers(classes)]


def compiled(model: keras.Model, loss: Any = "mse", optimizer: Any = None, **others: Any) -> keras.Model:
    """Return `model`, compiled with SGD and momentum if nothing else is said."""
    model.compile(optimizer or keras.optimizers.SGD(0.02, momentum=0.9), loss, **others)
    return model


def stack(shape: tuple[int, ...], *layers: keras.layers.Layer) -> keras.Model:
    """Return a Sequential model of layers for inputs of this shape."""
    return keras.Sequential([keras.Input(shape), *layers])
