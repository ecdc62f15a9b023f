"""Queues of a turn: a bounded amount of work in each, in the order of arrival."""

from __future__ import annotations

import asyncio
import contextvars

from service.base.slices import Slice, each_in_slices, next_turn
from service.base.turn_queues import NODES, turn_queues
from tests.support.turns import Clock, with_clock

SLICE_US = 2000


class Turns:
    """Counts the turns of the running loop, and notes in which one something was done."""

    def __init__(self) -> None:
        self.number = 0
        self.work_us: dict[int, int] = {}
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self.number += 1
        if not self._stopped:
            self._loop.call_soon(self._next)

    def stop(self) -> None:
        self._stopped = True

    def worked(self, work_us: int) -> None:
        self.work_us[self.number] = self.work_us.get(self.number, 0) + work_us


def test_a_turn_takes_calls_for_two_milliseconds_in_the_order_in_which_they_came() -> None:
    async def scenario(clock: Clock) -> tuple[list[int], dict[int, int]]:
        turns, done = Turns(), list[int]()
        calls = turn_queues(asyncio.get_running_loop()).calls

        def call(number: int) -> None:
            done.append(number)
            clock.advance_us(500)
            turns.worked(500)

        for number in range(100):
            calls.add(call, number)
        while len(done) < 100:
            await asyncio.sleep(0)
        turns.stop()
        return done, turns.work_us

    done, work_us = with_clock(scenario)
    assert done == list(range(100))
    assert set(work_us.values()) == {2000}
    assert len(work_us) == 25


def test_a_call_added_by_a_call_runs_in_a_later_turn() -> None:
    async def scenario(clock: Clock) -> list[str]:
        calls, done = turn_queues(asyncio.get_running_loop()).calls, list[str]()

        def again(left: int) -> None:
            done.append(f"again {left}")
            if left:
                calls.add(again, left - 1)

        calls.add(again, 2)
        calls.add(done.append, "other")
        while len(calls) or len(done) < 4:
            await asyncio.sleep(0)
        return done

    assert with_clock(scenario) == ["again 2", "other", "again 1", "again 0"]


def test_a_call_that_fails_is_told_of_and_keeps_no_other_from_its_turn() -> None:
    async def scenario(clock: Clock) -> tuple[list[str], list[str]]:
        loop, done, told = asyncio.get_running_loop(), list[str](), list[str]()
        loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))

        def fails() -> None:
            raise ValueError("broken")

        calls = turn_queues(loop).calls
        calls.add(fails)
        calls.add(done.append, "other")
        while not done:
            await asyncio.sleep(0)
        return done, told

    assert with_clock(scenario) == (["other"], ["broken"])


def test_all_long_tasks_together_do_a_slice_in_a_turn_and_each_has_its_own_in_its_order() -> None:
    tasks, slices_each = 50, 8
    step_us = SLICE_US // 5

    async def scenario(clock: Clock) -> tuple[dict[int, int], list[int], int]:
        turns, ended = Turns(), list[int]()

        async def long_work(number: int) -> None:
            piece = Slice()
            for _ in range(5 * slices_each):
                if piece.is_over():
                    await piece.next_turn()
                turns.worked(step_us)
                clock.advance_us(step_us)
            ended.append(number)

        working = [asyncio.ensure_future(long_work(number)) for number in range(tasks)]
        await asyncio.gather(*working)
        turns.stop()
        return turns.work_us, ended, turns.number

    work_us, ended, turns = with_clock(scenario)
    # A task that begins may do the rest of a slice, and one step, before it finds that others had it.
    assert max(list(work_us.values())[2:]) <= SLICE_US + step_us
    assert ended == sorted(ended)
    assert turns <= tasks * slices_each * 1.3, "a turn in which nothing is done, though much is to be done"


def test_beside_a_hundred_long_tasks_what_is_short_waits_for_one_slice() -> None:
    async def scenario(clock: Clock) -> int:
        turns = Turns()

        async def long_work() -> None:
            piece = Slice()
            while not ended:
                if piece.is_over():
                    await piece.next_turn()
                turns.worked(SLICE_US // 4)
                clock.advance_us(SLICE_US // 4)

        ended: list[bool] = []
        working = [asyncio.ensure_future(long_work()) for _ in range(100)]
        for _ in range(20):
            await asyncio.sleep(0)
        asked, before = turns.number, sum(turns.work_us.values())
        answered = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(answered.set_result, None)
        await answered
        waited_us = sum(turns.work_us.values()) - before
        assert turns.number - asked <= 2
        ended.append(True)
        await asyncio.gather(*working)
        turns.stop()
        return waited_us

    assert with_clock(scenario) <= 2 * (SLICE_US + SLICE_US // 4)


def test_a_cancelled_task_leaves_the_queue_of_turns() -> None:
    async def scenario() -> list[str]:
        done: list[str] = []

        async def waits(name: str) -> None:
            await next_turn()
            done.append(name)

        first, left, last = (asyncio.ensure_future(waits(name)) for name in ("first", "left", "last"))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(first, last)
        assert left.cancelled()
        return done

    assert asyncio.run(scenario()) == ["first", "last"]


def test_many_short_works_of_new_tasks_are_no_more_than_a_slice_either() -> None:
    async def scenario(clock: Clock) -> dict[int, int]:
        turns = Turns()

        def work(_: int) -> None:
            turns.worked(100)
            clock.advance_us(100)

        await asyncio.gather(*(each_in_slices(work, range(10)) for _ in range(200)))
        turns.stop()
        return turns.work_us

    work_us = with_clock(scenario)
    assert sum(work_us.values()) == 200 * 10 * 100
    assert max(list(work_us.values())[2:]) <= SLICE_US + 200


def test_nodes_that_share_a_loop_share_no_turns() -> None:
    async def scenario() -> bool:
        loop, own = asyncio.get_running_loop(), contextvars.copy_context()
        own.run(NODES.set, {})
        mine = own.run(turn_queues, loop)
        return mine is own.run(turn_queues, loop) and mine is not turn_queues(loop)

    assert asyncio.run(scenario())
