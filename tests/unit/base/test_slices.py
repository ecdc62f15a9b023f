"""Long work shares the loop's turns with other work."""

import asyncio
from collections.abc import Awaitable
from itertools import pairwise

from service.base.slices import Slice, free_in_slices, in_slices
from service.base.steps import Steps
from tests.support.turns import Clock, count_turns, with_clock


def test_work_beyond_a_slice_goes_on_after_others_had_their_turn() -> None:
    done: list[str] = []

    async def long_work(clock: Clock) -> None:
        piece = Slice()
        for step in range(6):
            if piece.is_over():
                await piece.next_turn()
            done.append(f"long {step}")
            clock.advance_us(800)

    async def both(clock: Clock) -> None:
        work = asyncio.ensure_future(long_work(clock))
        await asyncio.sleep(0)
        done.append("other")
        await work

    with_clock(both)
    assert done == ["long 0", "long 1", "long 2", "other", "long 3", "long 4", "long 5"]


def counted(steps: int, clock: Clock, step_us: float, done: list[int]) -> Steps[str]:
    for step in range(steps):
        yield
        clock.advance_us(step_us)
        done.append(step)
    return "all"


def test_steps_that_fit_into_a_slice_are_done_at_once() -> None:
    done: list[int] = []

    async def scenario(clock: Clock) -> None:
        assert in_slices(counted(9, clock, 210, done)) == "all"

    with_clock(scenario)
    assert len(done) == 9


def test_steps_that_do_not_fit_are_done_a_slice_at_a_time() -> None:
    done: list[int] = []
    seen: list[int] = []

    async def watched(clock: Clock) -> str:
        answer = in_slices(counted(100, clock, 210, done))
        assert isinstance(answer, Awaitable)
        work = asyncio.ensure_future(answer)
        while not work.done():
            seen.append(len(done))
            await asyncio.sleep(0)
        return await work

    assert with_clock(watched) == "all"
    assert done == list(range(100))
    turns = [after - before for before, after in pairwise(seen)]
    assert max(turns) <= 10
    assert len(turns) >= 9


def test_a_step_of_unlike_length_ends_the_slice_when_its_time_is_over() -> None:
    async def scenario(clock: Clock) -> list[float]:
        took: list[float] = []
        piece = Slice()
        began = clock.now
        for step_us in (100, 1500, 700, 1900, 50, 60, 5000, 10):
            if piece.is_over():
                took.append(round((clock.now - began) * 1e6))
                await piece.next_turn()
                began = clock.now
            clock.advance_us(step_us)
        return took

    assert with_clock(scenario) == [2300, 2010, 5000]


def test_a_clock_that_stands_still_ends_a_slice_after_200_steps() -> None:
    async def scenario(clock: Clock) -> int:
        return await count_turns(Slice().go_on(counted(2000, clock, 0, [])))

    assert 10 <= with_clock(scenario) <= 12


def test_a_slice_ends_too_where_the_clock_moved_once_and_then_stands_still() -> None:
    async def scenario(clock: Clock) -> int:
        piece, steps = Slice(), 0
        assert not piece.is_over()
        clock.advance_us(1)
        while not piece.is_over():
            steps += 1
        return steps

    assert with_clock(scenario) <= 201


def test_much_that_nobody_reads_any_more_is_freed_in_many_turns() -> None:
    clock, turn, freed = Clock(), 0, list[int]()

    class Thing:
        def __del__(self) -> None:
            freed.append(turn)
            clock.advance_us(0.4)

    async def scenario(its: Clock) -> None:
        nonlocal clock, turn
        clock = its
        free_in_slices([[Thing() for _ in range(20_000)], [], [Thing() for _ in range(20_000)]])
        while len(freed) < 40_000 and turn < 1000:
            await asyncio.sleep(0)
            turn += 1

    with_clock(scenario)
    assert len(freed) == 40_000
    assert max(map(freed.count, set(freed))) <= 5_500
