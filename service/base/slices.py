"""Long work on the loop, cut into slices: what exceeds one goes on in a later turn, after everybody else's.

Work is counted in microseconds that are *estimated* by whoever does it, before it is done, not read off a
clock: so the same request is cut at the same places in every run, also under the simulator's time. All tasks
of a node share the slice of a turn (`base/turn_queues.py`): many that have much to do take more turns, not
longer ones.
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

    ``if piece.charge(30): await piece.next_turn()`` stands before each step.
    """

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue = turn_queues(asyncio.get_running_loop()).slices

    def charge(self, work_us: int) -> bool:
        """Count a step that is about to be done; True when it belongs to a later turn."""
        return self._queue.charge(work_us)

    async def next_turn(self) -> None:
        """Let everybody else go first, then begin a new slice. May be cancelled here, and only here."""
        await self._queue.next_turn()

    async def go_through(self, steps: Generator[None, None, T], step_us: int) -> T:
        """Return what `steps` return; each takes `step_us` at most."""
        while True:
            if self.charge(step_us):
                await self.next_turn()
            try:
                next(steps)
            except StopIteration as e:
                result: T = e.value
                return result

    async def go_on(self, steps: Steps[T]) -> T:
        """Return what `steps` return; each tells its work (µs) before it is done."""
        while True:
            try:
                work_us = next(steps)
            except StopIteration as e:
                result: T = e.value
                return result
            if self.charge(work_us):
                await self.next_turn()


async def next_turn() -> None:
    """Let everybody else go first; other tasks with much to do as well."""
    await turn_queues(asyncio.get_running_loop()).slices.next_turn()


def in_slices(steps: Steps[T]) -> T | Awaitable[T]:
    """Return what `steps` return: at once where all of it fits into a slice, else the rest in later turns.

    Each step tells its work (µs) before it is done. Whoever calls this for many peers in one turn has to stop
    when the turn is old: what is done at once is not counted among the work of tasks.
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
    """Empty `lists`, which nobody reads any more, in later turns: what a long request was decoded to, and
    what was found for it, would be freed in one go with the last who knows it."""
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
    """Return what `call` makes of each item, which takes it so long, in later turns where they are many.
    `more_us`: what an item takes beyond `work_us`, by its own size."""
    piece = Slice()
    made = []
    for item in items:
        if piece.charge(work_us + more_us(item)):
            await piece.next_turn()
        made.append(call(item))
    return made
