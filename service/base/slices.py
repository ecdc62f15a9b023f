"""Long work on the loop, cut into slices: work beyond one slice continues in a later turn.

A slice ends by the clock, which is read before each step. All tasks of a node share the slice of a turn
(`base/turn_queues.py`): many tasks with long work take more turns, not longer ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

from service.base.steps import Steps
from service.base.turn_queues import SliceClock, turn_queues

S = TypeVar("S")
T = TypeVar("T")

FREED_AT_A_TIME: Final = 500


class Slice:
    """The work of one task, in this turn of the loop and in later ones.

    ``if piece.is_over(): await piece.next_turn()`` precedes each step.
    """

    __slots__ = ("_queue", "is_over")

    def __init__(self) -> None:
        self._queue = turn_queues(asyncio.get_running_loop()).slices
        self.is_over: Final = self._queue.is_over
        """Return whether the next step belongs to a later turn."""

    async def next_turn(self) -> None:
        """Wait for a later turn and begin a new slice. The task can be cancelled here, and only here."""
        await self._queue.next_turn()

    async def go_on(self, steps: Steps[T]) -> T:
        """Run `steps` over as many turns of the loop as they take.

        Returns their result, and raises what they raise. It can be cancelled between two steps only.
        """
        while True:
            if self.is_over():
                await self.next_turn()
            try:
                next(steps)
            except StopIteration as e:
                result: T = e.value
                return result


async def next_turn() -> None:
    """Wait for a later turn, behind other tasks with long work."""
    await turn_queues(asyncio.get_running_loop()).slices.next_turn()


def in_slices(steps: Steps[T]) -> T | Awaitable[T]:
    """Run `steps` and return their result: at once if all fits into a slice, else the rest in later turns.

    A caller that does this for many peers in one turn has to stop when the turn is old: work done at once is
    not counted against the turn's slice.
    """
    clock = SliceClock()
    try:
        while not clock.is_over():
            next(steps)
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
            if piece.is_over():
                await piece.next_turn()
            del one[-FREED_AT_A_TIME:]


def in_later_turns(steps: Steps[None]) -> None:
    """Run `steps` to their end, in later turns: nobody waits for them, and they free memory."""
    asyncio.get_running_loop().create_task(_in_later_turns(steps), name="freeing")


async def _in_later_turns(steps: Steps[None]) -> None:
    piece = Slice()
    await piece.next_turn()
    await piece.go_on(steps)


async def each_in_slices(call: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """Apply `call` to each item, in later turns if they take long; return the results."""
    piece = Slice()
    made = []
    for item in items:
        if piece.is_over():
            await piece.next_turn()
        made.append(call(item))
    return made
