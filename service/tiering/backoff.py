"""How long to wait after the nth failure in a row: exponential, bounded, with jitter. [P]

Same shape as Kafka's `ExponentialBackoff`: ``initial * 2 ** (failures - 1)``, times a factor in 1 ±
jitter, and never above the maximum. Randomness comes in as a number, so that the caller owns its source.

>>> backoff_ms(1, initial_ms=500, max_ms=30_000, jitter=0.2, uniform=0.5)
500
>>> backoff_ms(50, initial_ms=500, max_ms=30_000, jitter=0.2, uniform=1.0)
30000
"""

from __future__ import annotations

_MAX_DOUBLINGS = 30


def backoff_ms(failures: int, *, initial_ms: int, max_ms: int, jitter: float, uniform: float) -> int:
    """Milliseconds to wait after `failures` (at least 1) failures in a row; `uniform` lies in [0, 1]."""
    doublings = min(failures - 1, _MAX_DOUBLINGS)
    factor = 1 + jitter * (2 * uniform - 1)
    return min(max_ms, round(initial_ms * (1 << doublings) * factor))
