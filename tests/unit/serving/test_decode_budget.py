"""Long requests are decoded within a memory budget; others wait as bytes, each for a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from service.network.request import RequestContext
from service.security.session import anonymous
from service.serving.decode_budget import DecodeBudget

MIB = 1 << 20
ROOM = 64 * MIB


def asker(number: int) -> RequestContext:
    return RequestContext(number, "client", number, "PLAINTEXT", anonymous("client", "PLAINTEXT"))


async def _soon() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Inside:
    """Requests that are let in, and the end of each when the test says so."""

    def __init__(self, memory: DecodeBudget) -> None:
        self.memory = memory
        self.now: dict[int, asyncio.Event] = {}
        self.order: list[int] = []
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def ask(self, number: int, frame_bytes: int, context: RequestContext | None = None) -> None:
        async def answered() -> None:
            own = context or asker(number)
            await self.memory.acquire(own, frame_bytes, 32)
            try:
                self.order.append(number)
                self.now[number] = asyncio.Event()
                await self.now[number].wait()
            finally:
                self.memory.release(own)

        self.tasks[number] = asyncio.ensure_future(answered())

    async def end(self, number: int) -> None:
        self.now.pop(number).set()
        await self.tasks[number]
        await _soon()


def play(scenario: Callable[[Inside], Coroutine[Any, Any, None]]) -> None:
    async def played() -> None:
        inside = Inside(DecodeBudget())
        await scenario(inside)
        while inside.now:
            await inside.end(next(iter(inside.now)))
        await asyncio.gather(*inside.tasks.values(), return_exceptions=True)
        assert inside.memory.in_use == 0

    asyncio.run(played())


def test_concurrent_decoding_stays_within_its_budget() -> None:
    async def scenario(inside: Inside) -> None:
        for number in range(100):
            inside.ask(number, MIB)  # 32 MiB each
        await _soon()
        for _ in range(20):
            assert inside.memory.in_use <= ROOM
            assert len(inside.now) == 2
            await inside.end(next(iter(inside.now)))
        assert inside.order == sorted(inside.order)

    play(scenario)


def test_a_request_larger_than_the_decode_budget_runs_alone() -> None:
    async def scenario(inside: Inside) -> None:
        inside.ask(1, 90 * MIB)
        inside.ask(2, 90 * MIB)
        await _soon()
        assert inside.order == [1]
        await inside.end(1)
        assert inside.order == [1, 2]

    play(scenario)


def test_small_requests_do_not_wait_behind_large_ones() -> None:
    async def scenario(inside: Inside) -> None:
        inside.ask(1, 2 * MIB)
        inside.ask(2, 2 * MIB)
        inside.ask(3, 28_000)  # a fetch of a thousand partitions
        await _soon()
        assert inside.order == [1, 3]

    play(scenario)


def test_a_cancelled_request_frees_its_decode_budget() -> None:
    async def scenario(inside: Inside) -> None:
        for number in range(4):
            inside.ask(number, 2 * MIB)
        await _soon()
        assert inside.order == [0]
        inside.tasks[1].cancel()
        inside.tasks[0].cancel()
        inside.now.pop(0)
        await _soon()
        assert inside.order == [0, 2]

    play(scenario)


def test_a_long_poll_is_hurried_when_its_room_is_needed() -> None:
    async def scenario(inside: Inside) -> None:
        polls, hurried = asker(1), asyncio.Event()
        inside.ask(1, 2 * MIB, polls)
        await _soon()
        polls.hurry = hurried.set
        inside.ask(2, 2 * MIB)
        async with asyncio.timeout(30):
            await hurried.wait()
        await inside.end(1)
        assert inside.order == [1, 2]

    play(scenario)


def test_requests_that_wait_for_each_other_go_on_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.serving.decode_budget.PATIENCE_S", 0.2)

    async def scenario(inside: Inside) -> None:
        inside.ask(1, 2 * MIB)
        inside.ask(2, 2 * MIB)
        async with asyncio.timeout(30):
            while 2 not in inside.now:  # the first is never answered
                await asyncio.sleep(0.01)

    play(scenario)
