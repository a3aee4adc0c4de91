"""Positions in words."""

from __future__ import annotations

import pytest

from anyrig.positions import describe_position


@pytest.mark.parametrize(
    ("position", "words"),
    [
        ((0, 0, 5), "at the start"),
        ((0, 3, 5), "in epoch 1 of 5, batch 3"),
        ((2, 0, 5), "after epoch 2 of 5"),
        ((2, 64, None), "in epoch 3, batch 64"),
    ],
)
def test_positions_in_words(position: tuple[int, int, int | None], words: str) -> None:
    assert describe_position(*position) == words
