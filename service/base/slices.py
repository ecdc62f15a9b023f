"""Long work on the loop, cut into slices: what exceeds one goes on in the next turn, after everybody else's.

Work is counted in microseconds that are *estimated* by whoever does it, before it is done, not read off a
clock: so the same request is cut at the same places in every run, also under the simulator's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Final, TypeVar

from service.base.steps import Steps

S = TypeVar("S")
T = TypeVar("T")

SLICE_US: Final = 2000
"""How much one piece of work may take of one turn of the loop."""


class Slice:
    """The work of one request, or of one chore, in this turn of the loop.

    ``if piece.charge(30): await piece.next_turn()`` stands before each step.
    """

    __slots__ = ("_left_us", "_slice_us")

    def __init__(self, slice_us: int = SLICE_US) -> None:
        self._slice_us = slice_us
        self._left_us = slice_us

    def charge(self, work_us: int) -> bool:
        """Counts a step that is about to be done; True when it belongs to the next turn."""
        self._left_us -= work_us
        return self._left_us < 0

    async def next_turn(self) -> None:
        """Lets everybody else go first, then begins a new slice. May be cancelled here, and only here."""
        await asyncio.sleep(0)
        self._left_us = self._slice_us

    async def go_through(self, steps: Generator[None, None, T], step_us: int) -> T:
        """What `steps` return; each takes `step_us` at most."""
        while True:
            if self.charge(step_us):
                await self.next_turn()
            try:
                next(steps)
            except StopIteration as e:
                result: T = e.value
                return result

    async def go_on(self, steps: Steps[T]) -> T:
        """What `steps` return; each tells its work (µs) before it is done."""
        while True:
            try:
                work_us = next(steps)
            except StopIteration as e:
                result: T = e.value
                return result
            if self.charge(work_us):
                await self.next_turn()


def in_slices(steps: Steps[T]) -> T | Awaitable[T]:
    """What `steps` return: at once where all of it fits into a slice, else the rest of it in later turns.

    Each step tells its work (µs) before it is done.
    """
    piece = Slice()
    try:
        while not piece.charge(next(steps)):
            pass
    except StopIteration as e:
        result: T = e.value
        return result
    return Slice().go_on(steps)


async def each_in_slices(call: Callable[[S], T], items: Iterable[S], work_us: int) -> list[T]:
    """What `call` makes of each item, which takes it so long, in later turns where they are many."""
    piece = Slice()
    made = []
    for item in items:
        if piece.charge(work_us):
            await piece.next_turn()
        made.append(call(item))
    return made
