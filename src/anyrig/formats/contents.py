"""What a file of any format holds, in one form: named tensors read block by block, configurations, and who wrote it.

Every reader of this package returns `Contents`. Opening parses names, types and shapes; data is read with the blocks of
a tensor. Nothing here and in the readers imports TensorFlow or Keras, follows a link out of what was opened, or makes
room for more than is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from anyrig.errors import AnyrigError
from anyrig.store.dtypes import ITEM_BYTES, numpy_dtype

if TYPE_CHECKING:
    import numpy as np

BLOCK_ELEMENTS = 2**18
TEXT = "STRING"
"""The `dtype` of text: blocks are arrays of Python `bytes` objects."""

Role = Literal["weight", "optimizer", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTensor:
    """A tensor of a file. `dtype` is in safetensors spelling, `TEXT`, or the format's own name of any other type.

    `name` is the whole name that the format itself gives, without its decorations, and no other tensor's; `aliases` are
    further names that the file gives (a variable's full name beside its path). `role` says what it is for; a slot of an
    optimizer has in `of` the name of the weight that it belongs to and in `slot` its name in the file, where the file
    tells. `nbytes` counts the elements' bytes (of text: its characters), `checksum` is the xxh3-128 of them where one
    is recorded, `place` the fingerprint of its place in the graph, which only this project's checkpoints have. `origin`
    is what was opened, `file` the file in it. `read` yields the elements in C order, flat, in arrays of any size,
    little-endian; of a type that is not known here as bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    origin: Path
    file: str
    read: Callable[[], Iterator[np.ndarray[Any, Any]]] = field(repr=False, compare=False)
    checksum: str | None = None
    aliases: tuple[str, ...] = ()
    role: Role = "weight"
    of: str | None = None
    slot: str | None = None
    place: str | None = None

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    def blocks(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield its elements in C order, flat, `BLOCK_ELEMENTS` at a time, the rest last."""
        return _in_blocks(self.read())

    def array(self) -> np.ndarray[Any, Any]:
        """Return the whole tensor; an unknown type as bytes, flat. Raises ANY-FORMAT-002 for a shape beyond numpy's."""
        import numpy as np

        parts = list(self.read())
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else np.empty(0, self.numpy_dtype)
        if self.dtype not in ITEM_BYTES and self.dtype != TEXT:
            return whole
        try:
            return whole.reshape(self.shape)
        except (ValueError, OverflowError) as error:
            raise damaged(self.origin, f"{self.name} cannot have the shape {self.shape}: {error}") from error

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The type of what `read` yields."""
        import numpy as np

        if self.dtype in ITEM_BYTES:
            return numpy_dtype(self.dtype)
        return np.dtype(object) if self.dtype == TEXT else np.dtype(np.uint8)


def _in_blocks(parts: Iterable[np.ndarray[Any, Any]]) -> Iterator[np.ndarray[Any, Any]]:
    import numpy as np

    held: list[np.ndarray[Any, Any]] = []
    size = 0
    for part in parts:
        start = 0
        while start < part.size:
            taken = part[start : start + BLOCK_ELEMENTS - size]
            start += taken.size
            held.append(taken)
            size += taken.size
            if size == BLOCK_ELEMENTS:
                yield held[0] if len(held) == 1 else np.concatenate(held)
                held, size = [], 0
    if held:
        yield held[0] if len(held) == 1 else np.concatenate(held)


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """An input or output of a signature: `shape` has None where any size goes."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True)
class Signature:
    """A function that a file offers to call."""

    name: str
    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What is at `path`, which is written as the format itself names it (a TensorFlow checkpoint: its prefix).

    `format` is the reader's name of it, `words` the same for a sentence. `config` is the configuration of the model's
    architecture, `compile_config` that of its training, both as they are stored (Keras's JSON). `written_by` maps
    programs to versions, as far as the file tells. `assets` gives further files (vocabularies), `files` all names and
    sizes. `notes` say what a reader left out or found odd. `checked` says which checksums are compared when everything
    is read (in words: "the CRC-32 of each file in the archive"), `unchecked` for what there are none.
    """

    format: str
    words: str
    path: Path
    tensors: tuple[FileTensor, ...]
    config: Mapping[str, Any] | None = None
    compile_config: Mapping[str, Any] | None = None
    written_by: Mapping[str, str] = field(default_factory=dict)
    signatures: tuple[Signature, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    assets: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)
    files: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """What opening a file of unknown origin may cost; more is refused (ANY-FORMAT-003).

    `tensors` and `depth` (of groups, messages, JSON) are counts; `header_bytes` bounds what is parsed (names, JSON,
    graphs) and `ratio` how many bytes may come of one stored byte of compressed data.
    """

    tensors: int = 1_000_000
    depth: int = 100
    header_bytes: int = 2**30
    ratio: int = 2_000


class Reader(Protocol):
    """A module of this package that reads one format, or several kindred ones."""

    def recognize(self, path: Path) -> Path | None:
        """Return the path under which the format is read, if its content is at `path` (whatever its suffix), else None.

        Cheap, and never an error: it looks at magic numbers and names of files alone.
        """
        ...

    def read(self, path: Path, budget: Budget) -> Contents:
        """Return what is at a path that `recognize` returned."""
        ...


def damaged(path: Path, what: str) -> AnyrigError:
    """Return the error for a file that breaks the rules of its format."""
    return AnyrigError(
        "ANY-FORMAT-002",
        f"{path} is damaged, or is not what it seems: {what}.",
        hint="copy or download it again, and compare its size or checksum with the sender's",
    )


def over_budget(path: Path, what: str) -> AnyrigError:
    """Return the error for a file that asks for more than it may."""
    return AnyrigError(
        "ANY-FORMAT-003",
        f"{path} is refused: {what}.",
        hint="a sound file does not ask for that; get it from a source that you trust",
    )


def unsafe(path: Path, what: str) -> AnyrigError:
    """Return the error for a file that reaches out of itself."""
    return AnyrigError(
        "ANY-FORMAT-004",
        f"{path} is refused: {what}.",
        hint="only data inside the file itself is read; ask the sender for a file that holds it",
    )
