"""Long work shares the loop's turns with everybody else's."""

import asyncio

from service.base.slices import Slice


def test_work_beyond_a_slice_goes_on_after_others_had_their_turn() -> None:
    done: list[str] = []

    async def long_work() -> None:
        piece = Slice(slice_us=100)
        for step in range(6):
            if piece.charge(40):
                await piece.next_turn()
            done.append(f"long {step}")

    async def both() -> None:
        work = asyncio.ensure_future(long_work())
        await asyncio.sleep(0)
        done.append("other")
        await work

    asyncio.run(both())
    assert done == ["long 0", "long 1", "other", "long 2", "long 3", "long 4", "long 5"]
