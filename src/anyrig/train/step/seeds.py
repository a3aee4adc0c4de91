"""Random numbers that belong to the step, not to the device: a key for each generator, step and virtual replica.

Before each micro-batch every seed generator of the model gets the state that `keys` computes, so that masks differ
between steps, virtual replicas and layers, do not depend on who does the work, and no random state can be lost.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

GLOBAL_GENERATOR = "/global"  # Keras's own, which belongs to no model; no layer path begins with a slash


def keys(
    run_seed: int, generators: Sequence[tuple[str, int]], step: int, virtual_replicas: int
) -> npt.NDArray[np.int64]:
    """Return the states of all generators for one step, int64, shape (virtual replicas, generators, 2).

    `generators` are (stable path, own seed). Each state is the two 31-bit halves of
    hash64(run seed, path, own seed, step, v), so that Keras's reduction of seeds to int32 keeps them apart.
    """
    result = np.zeros((virtual_replicas, len(generators), 2), dtype=np.int64)
    for index, (path, own) in enumerate(generators):
        prefix = path.encode() + b"\0" + struct.pack("<qq", _int64(run_seed), _int64(own))
        for v in range(virtual_replicas):
            key = xxhash.xxh3_64_intdigest(prefix + struct.pack("<qq", step, v))
            result[v, index] = (key >> 33, key & 0x7FFFFFFF)
    return result


def _int64(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)
