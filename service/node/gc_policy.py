"""When Python looks for garbage in a node's process: in short looks, whatever there is to look at.

What nobody refers to any more is freed at once; the collector is for cycles alone. By itself it looks at all
that lives whenever that has grown by a quarter: some hundred milliseconds of the loop where there are ten
thousand partitions, and again and again while a request of a hundred thousand elements is read. Here the
young generations are looked at as ever. The oldest is looked at by this chore: what has grown a little is
collected, what has grown much is set aside unseen (`gc.freeze`). All is looked at once twice as much memory
is in use as was after the last look.

While coordinators read their logs, what they make of them is set aside unseen, be it a million positions:
nearly all of it lives until the node stops, and none of it refers to itself. So is what there is while long
requests are decoded and answered, which is when slices are taken (`base/turn_queues.py`): they double what is
in use, go as they came, and a look at all of them would be as long a turn as peers make it.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from service.base.turns import NOTICED_S, TurnTimes

LOOK_S: Final = 1.0
YOUNG: Final = 5000
"""Objects more than at the last collection that make Python look at the youngest.

Its own 700 are fewer than a burst of requests makes and drops again: a third of an idle node's time beside
thousands of waiting fetches.
"""
MIDDLE: Final = 5
"""Looks at the youngest per look at the middle generation; what survives that is old."""
NEVER: Final = 1 << 30
SURELY_MANY: Final = 4
"""Looks at the middle generation that have made so many objects old that they are not even counted."""
MOST_LOOKED_AT: Final = 50_000
"""Objects that are looked at in one go: 5 to 10 ms."""
MANY: Final = 1_000_000
FEW_SLICES: Final = 10
"""Slices between two looks that are no long request."""


class Garbage:
    """The collector of this process, once the node is up. Owned by the loop; there is one in a process."""

    def __init__(
        self,
        turns: TurnTimes,
        now: Callable[[], float],
        many: int = MANY,
        is_loading: Callable[[], bool] = lambda: False,
        slices_taken: Callable[[], int] = lambda: 0,
    ) -> None:
        """`now` is a clock, in seconds. So `many` blocks of memory may come into use before all is looked at,
        however few there were. `is_loading`: whether a state is read that will stay. `slices_taken`: how
        many slices of long work there were so far."""
        self._turns = turns
        self._is_loading = is_loading
        self._was_loading = False
        self._slices_taken = slices_taken
        self._slices = 0
        self._now = now
        self._many = many
        self._began = 0.0
        self._worth_a_look = 0
        """blocks of memory in use at which all is looked at"""

    def begin(self) -> None:
        """What lives now lives until the end, be it ten thousand partitions."""
        self._look_at_all()
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        gc.callbacks.append(self._told)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Collect the oldest generation, or set it aside."""
        was_loading, self._was_loading = self._was_loading, self._is_loading()
        if was_loading or self._was_loading:  # the last of it has come since the look before
            gc.freeze()
            self._expect_more()
            return
        slices, self._slices = self._slices, self._slices_taken()
        if self._slices - slices > FEW_SLICES:
            gc.freeze()
            return
        if not (grown := gc.get_count()[2]):
            return
        if sys.getallocatedblocks() > self._worth_a_look:
            self._look_at_all()
        elif grown <= SURELY_MANY and _count() <= MOST_LOOKED_AT:
            gc.collect()
        else:
            gc.freeze()

    def _look_at_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._expect_more()

    def _expect_more(self) -> None:
        """What is there now stays."""
        alive = sys.getallocatedblocks()
        self._worth_a_look = alive + max(alive, self._many)

    def _told(self, phase: str, info: Mapping[str, Any]) -> None:
        """By the collector, on the thread on which it runs: all others wait for it."""
        if phase == "start":
            self._began = self._now()
        elif (took_s := self._now() - self._began) > NOTICED_S:
            generation, freed = info["generation"], info["collected"]
            self._turns.note_holder(
                took_s, f"a collection of garbage, generation {generation}: {freed} objects"
            )


def _count() -> int:
    """Objects that are not set aside. Python's own counts do not tell: what was freed is taken off them."""
    return sum(len(gc.get_objects(generation)) for generation in range(3))
