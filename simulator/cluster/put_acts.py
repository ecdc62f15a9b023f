"""Processes that die in the midst of a call of the store that writes or deletes.

What the dead has sent may still arrive: the bucket does not know who waits for the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from service.remote.format.keys import CUT_NAME
from simulator.cluster.chain_acts import CuttingWorld, seal_segments, spawn_chains
from simulator.cluster.process_acts import is_down, start_again
from simulator.store import Sent, arrive_late

MOMENTS: Final = (
    *[("/HEAD", "put")] * 4,
    (CUT_NAME, "put"),
    ("cut/", "put"),
    ("tail/", "put"),
    ("manifest/", "put"),
    (".seg", "put"),
    ("cluster.json", "put"),
    ("", "delete"),
)
"""Calls in the midst of which something happens: what their keys have in them, how they begin."""
_WAITS_S: Final = 4.0
_BUSY_S: Final = 2.0
_FEW: Final = 2
"""clients that write meanwhile"""
_LASTS_S: Final = 0.05
"""about as long as a call takes"""
_LATE_S: Final = 3.0


async def kill_within_put(world: CuttingWorld, random: Random) -> None:
    """Kill who writes to the bucket, or deletes there, in the midst of the call."""
    if list(world.partitions()):
        spawn_chains(world, random, _BUSY_S, _FEW)
        seal_segments(world, random)
    sent = await next_call(world, *random.choice(MOMENTS), _WAITS_S)
    machine = None if sent is None else world.machine(sent.by.partition(".")[0])
    if sent is None or machine is None:
        return
    await asyncio.sleep(random.random() * _LASTS_S)
    if is_down(machine) or machine.run is None or machine.run.name != sent.by:
        return
    is_late = sent.is_under_way and random.random() < 0.5
    world.tell(f"{sent.by} dies in the midst of {sent.call} {sent.key}{', which is late' if is_late else ''}")
    world.kill(machine)
    if is_late:
        what = f"late {sent.call} {sent.key} of {sent.by}"
        world.loop.call_later(random.random() * _LATE_S, arrive_late, world.trace, what, sent.arrive)
    await asyncio.sleep(random.choice((0.0, 0.5, 3.0)))
    await start_again(world, random, machine)


async def next_call(world: CuttingWorld, part: str, call: str, within_s: float) -> Sent | None:
    """Wait for the next such call that writes or deletes; None where there is none for so long."""
    found: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()

    def note(one: Sent) -> None:
        if part in one.key and one.call.startswith(call) and one.by.startswith("n") and not found.done():
            found.set_result(one)

    world.bucket.on_sent = note
    try:
        async with asyncio.timeout(within_s):
            return await found
    except TimeoutError:
        return None
    finally:
        world.bucket.on_sent = lambda _: None


PUT_ACTS: Final[dict[str, Callable[[CuttingWorld, Random], Awaitable[None]]]] = {
    kill_within_put.__name__: kill_within_put
}
