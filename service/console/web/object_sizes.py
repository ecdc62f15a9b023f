"""Sizes of the objects that chains name, and what merging the small ones would save. [P]

>>> sizes = ObjectSizes()
>>> sizes.add_chain([1 << 20] * 10 + [64 << 20] * 2)
>>> sizes.counts[1], sizes.counts[3], sizes.before, sizes.after
(10, 2, 10, 1)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

MIB: Final = 1 << 20
CLASSES: Final = (MIB, 16 * MIB, 64 * MIB, 128 * MIB)
"""Objects are counted by the first of these that they are smaller than; the last class is above all."""
SMALL_BYTES: Final = 16 * MIB
"""Default of firn.merge.small.bytes"""
OBJECT_BYTES: Final = 128 * MIB
"""Default of firn.rewrite.object.bytes"""
LEAST_RUN: Final = 8
MOST_RUN: Final = 256


@dataclass(slots=True)
class ObjectSizes:
    """Numbers and bytes of objects by class of size; those that may be merged, and how many they become."""

    counts: Counter[int] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    before: int = 0
    after: int = 0

    def add_chain(self, sizes: Iterable[int]) -> None:
        """Add the objects of one partition, in the order of their offsets."""
        run = size = 0
        for one in sizes:
            kind = next((at for at, most in enumerate(CLASSES) if one < most), len(CLASSES))
            self.counts[kind] += 1
            self.sizes[kind] += one
            is_small = one < SMALL_BYTES
            if not is_small or size + one > OBJECT_BYTES or run == MOST_RUN:
                self._end(run)
                run = size = 0
            if is_small:
                run, size = run + 1, size + one
        self._end(run)

    def _end(self, run: int) -> None:
        if run >= LEAST_RUN:
            self.before += run
            self.after += 1
