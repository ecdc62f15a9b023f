"""Long work on the loop, cut into slices: work beyond one slice continues in a later turn.

The code that does the work *estimates* it in microseconds beforehand; no clock is read. So a request is cut
at the same places in every run, also under the simulator's time. All tasks of a node share the slice of a
turn (`base/turn_queues.py`): many tasks with long work take more turns, not longer ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, Final, TypeVar

from service.base.steps import Steps
from service.base.turn_queues import SLICE_US, turn_queues

S = TypeVar("S")
T = TypeVar("T")

FREED_AT_A_TIME: Final = 500
FREED_US: Final = 200


class Slice:
    """The work of one task, in this turn of the loop and in later ones.

    ``if piece.charge(30): await piece.next_turn()`` precedes each step.
    """

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue = turn_queues(asyncio.get_running_loop()).slices

    def charge(self, work_us: int) -> bool:
        """Count a step that is about to be done; return True if it belongs to a later turn."""
        return self._queue.charge(work_us)

    async def next_turn(self) -> None:
        """Wait for a later turn and begin a new slice. The task can be cancelled here, and only here."""
        await self._queue.next_turn()

    async def go_through(self, steps: Generator[None, None, T], step_us: int) -> T:
        """Run `steps`, each of at most `step_us` µs, over as many turns of the loop as they take.

        Returns their result, and raises what they raise. It can be cancelled between two steps only.
        """
        while True:
            if self.charge(step_us):
                await self.next_turn()
            try:
                next(steps)
            except StopIteration as e:
                result: T = e.value
                return result

    async def go_on(self, steps: Steps[T]) -> T:
        """Run `steps`, each of which yields its work (µs) before it is done, and return their result."""
        while True:
            try:
                work_us = next(steps)
            except StopIteration as e:
                result: T = e.value
                return result
            if self.charge(work_us):
                await self.next_turn()


async def next_turn() -> None:
    """Wait for a later turn, behind other tasks with long work."""
    await turn_queues(asyncio.get_running_loop()).slices.next_turn()


def in_slices(steps: Steps[T]) -> T | Awaitable[T]:
    """Run `steps` and return their result: at once if all fits into a slice, else the rest in later turns.

    Each step yields its work (µs) before it is done. A caller that does this for many peers in one turn has
    to stop when the turn is old: work done at once is not counted against the turn's slice.
    """
    left_us = SLICE_US
    try:
        while left_us >= 0:
            left_us -= next(steps)
    except StopIteration as e:
        result: T = e.value
        return result
    return _rest_in_slices(steps)


async def _rest_in_slices(steps: Steps[T]) -> T:
    piece = Slice()
    await piece.next_turn()
    return await piece.go_on(steps)


def free_in_slices(lists: Iterable[list[Any]]) -> None:
    """Empty `lists`, which must have no other readers, in later turns. Otherwise the last reference to a long
    decoded request or its response would free it in one go."""
    asyncio.get_running_loop().create_task(_freed(list(lists)), name="freeing")


async def _freed(lists: list[list[Any]]) -> None:
    piece = Slice()
    for one in lists:
        while one:
            if piece.charge(FREED_US):
                await piece.next_turn()
            del one[-FREED_AT_A_TIME:]


async def each_in_slices(
    call: Callable[[S], T], items: Iterable[S], work_us: int, more_us: Callable[[S], int] = lambda item: 0
) -> list[T]:
    """Apply `call`, which takes `work_us`, to each item, in later turns if they are many; return the results.
    `more_us` returns the time that an item takes beyond `work_us`."""
    piece = Slice()
    made = []
    for item in items:
        if piece.charge(work_us + more_us(item)):
            await piece.next_turn()
        made.append(call(item))
    return made
