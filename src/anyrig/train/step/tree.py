"""The one shape in which parts of a step are added, whoever computed them.

The sum of n parts is the sum of the first k and the sum of the rest, where k is the largest power of two below n.
Floating-point addition depends on its order, so a fixed shape is what makes the result the same on any devices. Whole
subtrees lie inside the block of one device, so only their sums have to travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Part = TypeVar("Part")


def reduce_tree(parts: Sequence[Part], join: Callable[[Part, Part, range], Part]) -> Part:
    """Return the parts joined in the fixed tree; `join` also gets the range of parts that its two sides cover.

    >>> reduce_tree(list("abcdef"), lambda left, right, _: f"({left}{right})")
    '(((ab)(cd))(ef))'
    """
    return _reduce(parts, range(len(parts)), join)


def _reduce(parts: Sequence[Part], span: range, join: Callable[[Part, Part, range], Part]) -> Part:
    if len(span) == 1:
        return parts[span[0]]
    split = 1 << ((len(span) - 1).bit_length() - 1)
    return join(_reduce(parts, span[:split], join), _reduce(parts, span[split:], join), span)
