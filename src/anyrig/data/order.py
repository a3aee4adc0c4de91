"""The global order of rows: which row stands at which position of an epoch, fixed by (seed, epoch).

A keyed permutation of 0..n-1 that is computed position by position, so that starting in the middle of an epoch
costs nothing and no list of n numbers is held. It is made of integer arithmetic alone, so it is the same on every
machine and in every version of NumPy. The construction is a balanced Feistel network over the next even number of
bits, walked until the result is below n (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002), with the
finaliser of SplitMix64 as round function.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_ROUNDS = 6
_UINT64 = (1 << 64) - 1


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the SplitMix64 finaliser of each element."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The order of `rows` rows in one epoch; `shuffle=False` keeps them as they are."""

    rows: int
    seed: int
    epoch: int
    shuffle: bool = True

    def take(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the row numbers at positions `start` to `stop` (cut at the end), int64, shape (count,)."""
        positions = np.arange(start, min(stop, self.rows), dtype=np.uint64)
        if self.shuffle:
            positions = self._permute(positions)
        return positions.astype(np.int64)

    def _permute(self, positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        result = self._network(positions)
        while (outside := result >= np.uint64(self.rows)).any():
            result[outside] = self._network(result[outside])
        return result

    def _network(self, value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        half = np.uint64(max(1, ((self.rows - 1).bit_length() + 1) // 2))
        mask = np.uint64((1 << int(half)) - 1)
        left, right = value >> half, value & mask
        for key in self._keys():
            left, right = right, left ^ (_mix(right ^ key) & mask)
        return (left << half) | right

    def _keys(self) -> npt.NDArray[np.uint64]:
        golden = 0x9E3779B97F4A7C15
        base = _mix(np.array([(self.seed * golden + self.epoch + 1) & _UINT64], dtype=np.uint64))
        rounds = np.array([(i * golden) & _UINT64 for i in range(1, _ROUNDS + 1)], dtype=np.uint64)
        return _mix(base + rounds)
