"""Work in steps: generators that yield the estimated time (µs) of each step before they do it. [P]

The caller can stop between two steps, as `base/slices.py` does on the loop. The generator returns the result.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[int, None, T]


def at_once(steps: Steps[T]) -> T:
    """Run `steps` to the end without a pause and return their result."""
    try:
        while True:
            next(steps)
    except StopIteration as e:
        result: T = e.value
        return result
