"""A step that needed more memory than there is, and whether it had changed anything when it failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

_WHAT = re.compile(r"OOM when allocating tensor with shape\[[^\]]*\]|[Oo]ut of memory[^\n]*|failed to allocate[^\n]*")


class OutOfMemory(Exception):
    """A training step ran out of memory. `half_made` tells whether its update had begun, so that variables are mixed.

    The text is what TensorFlow says of the allocation.
    """

    def __init__(self, what: str, *, half_made: bool) -> None:
        super().__init__(what)
        self.half_made = half_made


@contextmanager
def exhaustion(half_made: Callable[[], bool]) -> Iterator[None]:
    """Turn what TensorFlow, NumPy or Python raise for want of memory into `OutOfMemory`."""
    try:
        yield
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        text = str(error).strip()
        found = _WHAT.search(text)
        what = found.group() if found else text.partition("\n")[0] or type(error).__name__
        raise OutOfMemory(what, half_made=half_made()) from error
