"""Long work shares the loop's turns with everybody else's."""

import asyncio
from collections.abc import Awaitable, Generator
from itertools import pairwise

from service.base.slices import Slice, free_in_slices, in_slices

SLICE_US = 2000


def test_work_beyond_a_slice_goes_on_after_others_had_their_turn() -> None:
    done: list[str] = []

    async def long_work() -> None:
        piece = Slice()
        for step in range(6):
            if piece.charge(800):
                await piece.next_turn()
            done.append(f"long {step}")

    async def both() -> None:
        work = asyncio.ensure_future(long_work())
        await asyncio.sleep(0)
        done.append("other")
        await work

    asyncio.run(both())
    assert done == ["long 0", "long 1", "other", "long 2", "long 3", "long 4", "long 5"]


def counted(steps: int, work_us: int, done: list[int]) -> Generator[int, None, str]:
    for step in range(steps):
        yield work_us
        done.append(step)
    return "all"


def test_steps_that_fit_into_a_slice_are_done_at_once() -> None:
    done: list[int] = []
    assert in_slices(counted(10, SLICE_US // 10, done)) == "all"
    assert len(done) == 10


def test_steps_that_do_not_fit_are_done_a_slice_at_a_time() -> None:
    done: list[int] = []
    seen: list[int] = []

    async def watched() -> str:
        answer = in_slices(counted(100, SLICE_US // 10, done))
        assert isinstance(answer, Awaitable)
        work = asyncio.ensure_future(answer)
        while not work.done():
            seen.append(len(done))
            await asyncio.sleep(0)
        return await work

    assert asyncio.run(watched()) == "all"
    assert done == list(range(100))
    turns = [after - before for before, after in pairwise(seen)]
    assert max(turns) <= 11  # the step that did not fit begins the next slice
    assert len(turns) >= 8


def test_reading_in_steps_is_cut_as_well() -> None:
    turns = 0

    def steps() -> Generator[None, None, int]:
        for _ in range(50):
            yield
        return 7

    async def watched() -> int:
        nonlocal turns
        work = asyncio.ensure_future(Slice().go_through(steps(), SLICE_US // 5))
        while not work.done():
            turns += 1
            await asyncio.sleep(0)
        return await work

    assert asyncio.run(watched()) == 7
    assert turns >= 8


def test_large_structures_are_freed_over_many_turns() -> None:
    turn, freed = 0, list[int]()

    class Thing:
        def __del__(self) -> None:
            freed.append(turn)

    async def scenario() -> None:
        nonlocal turn
        free_in_slices([[Thing() for _ in range(20_000)], [], [Thing() for _ in range(20_000)]])
        while len(freed) < 40_000 and turn < 1000:
            await asyncio.sleep(0)
            turn += 1

    asyncio.run(scenario())
    assert len(freed) == 40_000
    assert max(map(freed.count, set(freed))) <= 5_500
