"""Act that kills all nodes of a healthy cluster at once and keeps one down: the others must have everything.

A killed process loses nothing that it has written, so the restarted nodes lead all partitions of theirs.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import Final

from simulator.cluster.examining import examine_all
from simulator.cluster.room_acts import is_healthy
from simulator.cluster.world import ClusterWorld
from simulator.model import Violation
from simulator.waiting import is_met

BACK_S: Final = 40.0
"""Time for starts, a quorum, and the session of the node that stays down"""
_IN_SYNC_S: Final = 10.0
_LOOK_S: Final = 0.2
_until: Final = partial(is_met, every_s=_LOOK_S)


async def kill_all(world: ClusterWorld, random: Random) -> None:
    await world.settle()
    if not await is_healthy(world):
        return
    if not await _until(_IN_SYNC_S, lambda: not _without(world, all_in_sync=True)):
        return
    away = random.choice(world.machines)
    for machine in world.machines:
        world.kill(machine)
    world.tell(f"all are back, but {away.name}")
    for machine in random.sample(world.machines, len(world.machines)):
        if machine is not away:
            world.start(machine)
            await asyncio.sleep(random.choice((0.0, 0.3)))
    number = int(away.name[1:])
    if not await _until(BACK_S, lambda: not _without(world, away=number)):
        left = _without(world, away=number)
        raise Violation(f"P16: all were killed, all but {number} are back, and nobody leads {left}")
    await examine_all(world, Random(random.getrandbits(48)))
    if random.random() < 0.8:
        world.tell(f"start {away.name}")
        world.start(away)


def _without(world: ClusterWorld, *, all_in_sync: bool = False, away: int = -1) -> list[str]:
    """List replicated partitions without a leader among the running nodes, or with replicas out of sync."""
    found = []
    for topic in world.image().topics_by_id.values():
        for index, state in topic.partitions.items():
            is_led = state.leader not in (-1, away)
            is_whole = not all_in_sync or set(state.isr) == set(state.replicas)
            if len(state.replicas) > 1 and not (is_led and is_whole):
                found.append(f"{topic.name}-{index}")
    return found
