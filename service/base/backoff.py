"""Pause after the nth failure in a row: exponential, bounded, with jitter. [P]

The shape is that of Kafka's `ExponentialBackoff`: ``first * 2 ** (failures - 1)``, capped at the longest,
times a factor in 1 ± jitter, and capped again. The caller passes the random number, so that it owns the
source of randomness.

>>> backoff(1, first=500, longest=30_000, jitter=0.2, uniform=0.5)
500.0
>>> backoff(50, first=500, longest=30_000, jitter=0.2, uniform=1.0)
30000
"""

from __future__ import annotations

from typing import Final, TypeVar

_MOST_DOUBLINGS: Final = 30
Number = TypeVar("Number", int, float)


def backoff(failures: int, *, first: float, longest: float, jitter: float, uniform: float) -> float:
    """Return the pause after `failures` (at least 1) failures in a row, in the unit of `first` and `longest`.

    `uniform` lies in [0, 1].
    """
    pause = doubled(failures, first, longest)
    return min(longest, pause * (1 + jitter * (2 * uniform - 1)))


def doubled(failures: int, first: Number, longest: Number) -> Number:
    """Return the pause without jitter: `first`, twice as long after each further failure, at most
    `longest`."""
    return min(first * (1 << min(failures - 1, _MOST_DOUBLINGS)), longest)
