"""The global order: a permutation for each (seed, epoch), the same for ever, entered anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyrig.data.order import EpochOrder


@given(rows=st.integers(1, 3000), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 10**6))
def test_every_row_stands_exactly_once_in_an_epoch(rows: int, seed: int, epoch: int) -> None:
    order = EpochOrder(rows, seed, epoch).take(0, rows)
    assert np.array_equal(np.sort(order), np.arange(rows))


@given(rows=st.integers(1, 500), start=st.integers(0, 500), count=st.integers(0, 100))
def test_any_part_is_that_part_of_the_whole(rows: int, start: int, count: int) -> None:
    order = EpochOrder(rows, 3, 5)
    assert np.array_equal(order.take(start, start + count), order.take(0, rows)[start : start + count])


def test_the_order_is_pinned_for_ever() -> None:
    assert EpochOrder(10, seed=0, epoch=0).take(0, 10).tolist() == [6, 0, 2, 1, 8, 9, 4, 7, 3, 5]


def test_seed_and_epoch_change_the_order() -> None:
    orders = {tuple(EpochOrder(50, seed, epoch).take(0, 50)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


def test_unshuffled_rows_stay_as_they_are() -> None:
    assert EpochOrder(7, 1, 1, shuffle=False).take(2, 99).tolist() == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("rows", [64, 1000])
def test_positions_are_not_correlated_with_rows(rows: int) -> None:
    orders = np.stack([EpochOrder(rows, seed, 0).take(0, rows) for seed in range(200)])
    means = orders.mean(axis=0) / (rows - 1)
    assert means.min() > 0.4
    assert means.max() < 0.6
