"""How a position in a run is told to people, everywhere in the same words."""

from __future__ import annotations


def describe_position(epoch: int, batch: int, epochs: int | None = None) -> str:
    """Return where a run is: `epoch` epochs are finished, and `batch` batches of the next one are done.

    >>> describe_position(2, 64, 5)
    'in epoch 3 of 5, batch 64'
    """
    of = "" if epochs is None else f" of {epochs}"
    if batch:
        return f"in epoch {epoch + 1}{of}, batch {batch}"
    return f"after epoch {epoch}{of}" if epoch else "at the start"
