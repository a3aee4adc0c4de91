"""The arrays of a mapping: each stored tensor read, joined, laid out and cast as its pair says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from anyrig.errors import AnyrigError
from anyrig.mapping.layout import applied, joined
from anyrig.mapping.result import Mapping, Pair

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


def arrays(mapping: Mapping) -> Iterator[tuple[str, Array]]:
    """Yield the name of each paired variable and its value, of the variable's shape and dtype, one tensor at a time.

    What is not paired is not here: look at `mapping.complete` first. Raises ANY-MAP-001 if a tensor does not give the
    wanted shape, -007 if its type says
    nothing of its bytes, and ANY-STATE-016 if a number would not survive a cast.
    """
    for pair in mapping.pairs:
        yield pair.wanted.name, array_of(pair)


def array_of(pair: Pair) -> Array:
    """Return the value for one variable."""
    from anyrig.state.choice import convert
    from anyrig.store.dtypes import ITEM_BYTES, numpy_dtype

    wanted = pair.wanted
    if pair.stored.dtype not in ITEM_BYTES:
        raise _unknown_type(pair)
    value = laid_out(joined([tensor.array() for tensor in pair.stored.tensors], pair.stored.axis), pair)
    if pair.cast and wanted.dtype in ITEM_BYTES:
        return convert(pair.stored.name, value, numpy_dtype(wanted.dtype))
    return value


def laid_out(value: Array, pair: Pair) -> Array:
    """Return a stored value in the layout of its variable, in C order."""
    import numpy as np

    try:
        value = applied(value, pair.steps)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise _wrong(pair, list(value.shape)) from error
    if value.shape != pair.wanted.shape:
        raise _wrong(pair, list(value.shape))
    return value if value.flags.c_contiguous else np.ascontiguousarray(value)


def _unknown_type(pair: Pair) -> AnyrigError:
    return AnyrigError(
        "ANY-MAP-007",
        f"{pair.stored.name} {list(pair.stored.shape)} is of the type {pair.stored.dtype}, which does not say what its "
        "bytes mean; nothing was changed",
        hint="Keras writes bfloat16 into .h5 without saying so: save it as .keras where it was made, which says it",
    )


def _wrong(pair: Pair, found: list[int]) -> AnyrigError:
    steps = ", ".join(map(str, pair.steps)) or "as it is"
    return AnyrigError(
        "ANY-MAP-001",
        f"{pair.stored.name} {list(pair.stored.shape)}, {steps}, gives {found}; {pair.wanted.name} wants "
        f"{list(pair.wanted.shape)}; nothing was changed",
        hint="this is no mistake of yours: report it with both shapes",
    )
