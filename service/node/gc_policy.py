"""Policy of Python's cyclic garbage collector in a node's process: collections are short, whatever the heap.

Objects without references are freed at once; the collector frees cycles only. By default it collects the
whole heap when that has grown by a quarter: some hundred milliseconds of the loop with ten thousand
partitions, and repeatedly while a request of a hundred thousand elements is decoded. Here the young
generations are collected as usual, and a background task handles the oldest: it is collected if it has grown
a little, and frozen without a collection (`gc.freeze`) if it has grown much. All objects are collected once
twice as many memory blocks are in use as after the last full collection.

Objects that coordinators make while they load their logs are frozen without a collection, even a million
committed positions: nearly all of them live until the node stops, without cycles. So are the objects of long
requests, which are decoded and answered in slices (`base/turn_queues.py`): they double the heap, are freed
when the request ends, and a collection of all of them would take as long as peers make it.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from service.base.turns import NOTICED_S, TurnTimes

CHECK_S: Final = 1.0
YOUNG: Final = 5000
"""Growth, in objects, that triggers a collection of the youngest generation.

A burst of requests allocates and frees more than Python's default of 700: beside thousands of waiting fetches
an idle node would spend a third of its time on collections.
"""
MIDDLE: Final = 5
"""Collections of the youngest generation per collection of the middle one; survivors of that are old."""
NEVER: Final = 1 << 30
SURELY_MANY: Final = 4
"""Collections of the middle generation after which the old objects are too many to be counted."""
MOST_COLLECTED: Final = 50_000
"""Objects that one collection may traverse: 5 to 10 ms."""
MANY: Final = 1_000_000
FEW_SLICES: Final = 10
"""Slices between two checks that are not yet a long request."""


class GcPolicy:
    """Runs the collector of this process once the node is up. Owned by the loop; one per process."""

    def __init__(
        self,
        turns: TurnTimes,
        now: Callable[[], float],
        many: int = MANY,
        is_loading: Callable[[], bool] = lambda: False,
        slices_taken: Callable[[], int] = lambda: 0,
    ) -> None:
        """`now`: a clock, in seconds. `many`: the least growth in memory blocks before a full collection.
        `is_loading`: whether a coordinator loads state. `slices_taken`: number of slices of long work so far.
        """
        self._turns = turns
        self._is_loading = is_loading
        self._was_loading = False
        self._slices_taken = slices_taken
        self._slices = 0
        self._now = now
        self._many = many
        self._began = 0.0
        self._full_at_blocks = 0
        """memory blocks in use above which a full collection runs"""

    def begin(self) -> None:
        """Collect, then freeze all objects of the start: they live until the node stops."""
        self._collect_all()
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        gc.callbacks.append(self._on_gc)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            self.check()

    def check(self) -> None:
        """Collect the oldest generation, or freeze it."""
        was_loading, self._was_loading = self._was_loading, self._is_loading()
        if was_loading or self._was_loading:  # a load that ended since the last check has left objects too
            gc.freeze()
            self._schedule_full()
            return
        slices, self._slices = self._slices, self._slices_taken()
        if self._slices - slices > FEW_SLICES:
            gc.freeze()
            return
        if not (grown := gc.get_count()[2]):
            return
        if sys.getallocatedblocks() > self._full_at_blocks:
            self._collect_all()
        elif grown <= SURELY_MANY and _count() <= MOST_COLLECTED:
            gc.collect()
        else:
            gc.freeze()

    def _collect_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._schedule_full()

    def _schedule_full(self) -> None:
        """Set the number of blocks at which the next full collection runs, from those in use now."""
        alive = sys.getallocatedblocks()
        self._full_at_blocks = alive + max(alive, self._many)

    def _on_gc(self, phase: str, info: Mapping[str, Any]) -> None:
        """Time a collection. The collector calls this on its thread, while all other threads wait."""
        if phase == "start":
            self._began = self._now()
        elif (took_s := self._now() - self._began) > NOTICED_S:
            generation, freed = info["generation"], info["collected"]
            self._turns.note_holder(
                took_s, f"a collection of garbage, generation {generation}: {freed} objects"
            )


def _count() -> int:
    """Count the objects that are not frozen. `gc.get_count` cannot: objects that were freed reduce it."""
    return sum(len(gc.get_objects(generation)) for generation in range(3))
