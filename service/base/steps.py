"""Work in steps: generators that pause before each step. [P]

The caller can stop between two steps, as `base/slices.py` does on the loop. A step is short (about 100 µs,
1 ms at most), since nothing interrupts it. The generator returns the result.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]


def at_once(steps: Steps[T]) -> T:
    """Run `steps` to the end without a pause and return their result."""
    try:
        while True:
            next(steps)
    except StopIteration as e:
        result: T = e.value
        return result
