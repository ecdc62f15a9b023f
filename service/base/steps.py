"""Work in steps, each of which tells how long it takes (µs) before it is done. [P]

So whoever does the work can stop between two steps: `base/slices.py` does on the loop. A generator of steps
returns what comes of the work.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[int, None, T]


def at_once(steps: Steps[T]) -> T:
    """What `steps` return, for who need not let anybody else go first."""
    try:
        while True:
            next(steps)
    except StopIteration as e:
        result: T = e.value
        return result
