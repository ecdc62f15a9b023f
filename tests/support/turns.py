"""A running loop whose clock a test moves, and what is done in each of its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Clock:
    """The time of a loop, in seconds. It stands still unless the test advances it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def advance_us(self, microseconds: float) -> None:
        self.now += microseconds / 1e6


def with_clock(scenario: Callable[[Clock], Coroutine[Any, Any, T]]) -> T:
    """Run `scenario` on a loop whose time is that of the clock it is given."""
    clock = Clock()

    def new_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop()
        loop.time = lambda: clock.now  # type: ignore[method-assign]
        return loop

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(scenario(clock))


async def count_turns(work: Awaitable[object]) -> int:
    """Run `work` to its end and return the number of turns that it took."""
    turns = 0
    task = asyncio.ensure_future(work)
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    await task
    return turns
