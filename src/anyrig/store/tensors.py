"""What is given to be stored: a named array with its aliases and its place in the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredTensor:
    """An array of any shape (0-d and empty included) and any type that safetensors has.

    `name` is made of escaped parts (`anyrig.names.join`); its first part is the group of the data file. `aliases` are
    other names under which it can be read back. `place` is kept in the manifest as it is. Instead of an array there may
    be what becomes one when it is written (`dtype`, `shape`, `size`, `nbytes`, `__array__`): an accelerator's tensor.
    """

    name: str
    array: np.ndarray[Any, Any]
    aliases: tuple[str, ...] = ()
    place: str | None = None


def host_array(tensor: StoredTensor) -> np.ndarray[Any, Any]:
    """Return the array, brought to the host if it is not there yet."""
    import numpy as np

    return np.asarray(tensor.array)


def bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    """Return the array's bytes in C order, little-endian; without a copy when it already is."""
    import numpy as np

    ordered = np.asarray(array, order="C")
    if ordered.dtype.newbyteorder("<") != ordered.dtype:
        ordered = ordered.astype(ordered.dtype.newbyteorder("<"))
    return ordered.reshape(-1).view(np.uint8).data
