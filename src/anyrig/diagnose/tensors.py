"""Named tensors of a checkpoint or a safetensors file, read block by block, whatever their size.

Readers and comparisons ask for no more than `NamedTensor` answers, so that other formats can stand beside these.
numpy is imported with the first block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from anyrig.errors import AnyrigError
from anyrig.store.check import fault_of_file, unreadable
from anyrig.store.dtypes import ITEM_BYTES, numpy_dtype
from anyrig.store.header import read_header
from anyrig.store.read import Checkpoint

if TYPE_CHECKING:
    import numpy as np

BLOCK_ELEMENTS = 2**18


class NamedTensor(Protocol):
    """A stored tensor: `dtype` in safetensors spelling, `checksum` of its bytes where one is recorded."""

    @property
    def name(self) -> str:
        """Its whole name."""
        ...

    @property
    def dtype(self) -> str:
        """Its type."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    @property
    def checksum(self) -> str | None:
        """xxh3-128 of its bytes, or None."""
        ...

    @property
    def origin(self) -> Path:
        """The checkpoint or file that it is in."""
        ...

    def blocks(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield its elements in C order, `BLOCK_ELEMENTS` at a time, the rest last."""
        ...


@dataclass(frozen=True, slots=True)
class TensorInFile:
    """A tensor whose bytes are `nbytes` of `file` from `start` on; of an unknown type the elements are bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    checksum: str | None
    origin: Path
    file: Path
    start: int
    nbytes: int

    def blocks(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield its elements in C order, `BLOCK_ELEMENTS` at a time, the rest last."""
        import numpy as np

        dtype = numpy_dtype(self.dtype) if self.dtype in ITEM_BYTES else np.dtype(np.uint8)
        left = self.nbytes // dtype.itemsize
        try:
            with open(self.file, "rb", buffering=0) as file:
                file.seek(self.start)
                while left:
                    block = np.fromfile(file, dtype, min(left, BLOCK_ELEMENTS))
                    if not block.size:
                        raise OSError(0, "the file ended early")
                    left -= block.size
                    yield block
        except OSError as error:
            raise unreadable(self.file, error) from error


def tensors_in(checkpoint: Checkpoint) -> list[TensorInFile]:
    """Return the tensors of a checkpoint; each file was seen to have its size and to be no link."""
    for entry in checkpoint.manifest.files:
        if fault := fault_of_file(checkpoint.path, entry):
            raise AnyrigError(
                "ANY-LOAD-008",
                f"The file {entry.name!r} of {checkpoint.path} {fault}.",
                hint=f"see all damage with: anyrig verify {checkpoint.path}",
            )
    return [
        TensorInFile(
            entry.name,
            entry.dtype,
            entry.shape,
            entry.checksum,
            checkpoint.path,
            checkpoint.path / entry.pieces[0].file,
            entry.pieces[0].start,
            entry.nbytes,
        )
        for entry in checkpoint.manifest.tensors
    ]


def tensors_in_file(path: Path) -> list[TensorInFile]:
    """Return the tensors of a safetensors file, which records no checksums."""
    specs = read_header(path)
    start = path.stat().st_size - sum(spec.nbytes for spec in specs)  # the header was checked: data fills the file
    found = []
    for spec in specs:
        found.append(TensorInFile(spec.name, spec.dtype, spec.shape, None, path, path, start, spec.nbytes))
        start += spec.nbytes
    return found
