"""Both sides of a mapping without files and without Keras: tensors of a file, variables of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anyrig.formats.contents import FileTensor
from anyrig.state.wanted import Wanted
from anyrig.store.dtypes import spelling_of

Array = np.ndarray[Any, Any]
DENSE = {"kernel": (4, 4), "bias": (4,)}


def tensor(name: str, value: Array, **facts: Any) -> FileTensor:
    """Return a tensor of a file that holds `value`."""
    dtype = spelling_of(value.dtype)
    assert dtype is not None
    return FileTensor(
        name=name,
        dtype=dtype,
        shape=value.shape,
        nbytes=value.nbytes,
        origin=Path("file"),
        file="file",
        read=lambda: iter([value.reshape(-1)]),
        **facts,
    )


def stored(values: Mapping[str, Array]) -> list[FileTensor]:
    return [tensor(name, value) for name, value in values.items()]


def numbers(shape: Sequence[int], seed: int) -> Array:
    """Return numbers that no other seed gives."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def layer(
    path: str,
    variables: Mapping[str, Sequence[int]] = DENSE,
    *,
    kind: str = "Dense",
    rank: int = 0,
    before: Sequence[int] = (),
    automatic: bool | None = None,
) -> list[Wanted]:
    """Return the variables of one layer of a model."""
    return [
        Wanted(
            name=f"model/{path}/{leaf}",
            dtype="F32",
            shape=tuple(shape),
            layer=path,
            layer_class=kind,
            leaf=leaf,
            index=index,
            automatic="." in path if automatic is None else automatic,
            rank=rank,
            before=frozenset(before),
        )
        for index, (leaf, shape) in enumerate(variables.items())
    ]


def chain(*paths: str, variables: Mapping[str, Sequence[int]] = DENSE, kind: str = "Dense") -> list[Wanted]:
    """Return layers of which each comes before the next."""
    return [
        item
        for rank, path in enumerate(paths)
        for item in layer(path, variables, kind=kind, rank=rank, before=range(rank))
    ]
