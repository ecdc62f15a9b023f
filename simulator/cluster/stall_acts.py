"""Acts in which a partition's followers stand still while everybody is alive and heard by the controller.

What its leader appends is not committed meanwhile, for longer than transactions last and coordinators wait.
Afterwards it is, by the same leader, which has told those who asked that it does not know.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from simulator.cluster.group_acts import commit_offsets
from simulator.cluster.groups import OFFSETS
from simulator.cluster.process_acts import is_down
from simulator.cluster.room_acts import is_healthy
from simulator.cluster.transaction_acts import free_producer, step
from simulator.cluster.transaction_client import TransactionalProducer
from simulator.cluster.transaction_examining import ENDED_S
from simulator.cluster.transaction_log import STATE
from simulator.cluster.transactional import TransactionalWorld
from simulator.model import Violation
from simulator.network import Address

_CLIENTS: Final = 3
_COMMITTED: Final = 0.6
_STALLS_S: Final = (2.0, 8.0, 14.0, 20.0)
"""One is shorter than ``replica.lag.time.max.ms``; the others leave the leader alone in the ISR, and the last
two are longer than any transaction's timeout."""
_LOOK_S: Final = 0.5


async def stall_followers(world: TransactionalWorld, random: Random) -> None:
    """Let no follower of one partition of an internal topic reach its leader's listener for a while, in which
    transactions end and offsets are committed; then see whether all that was decided is carried out."""
    await commit_offsets(world, Random(random.getrandbits(48)))
    opened = [one for _ in range(_CLIENTS) if (one := await _open(world, random)) is not None]
    ways, seconds = _ways(world, random), random.choice(_STALLS_S)
    said = ", ".join(f"{one} hears nothing of {address[0]}" for one, address in ways)
    world.tell(f"for {seconds} s {said}")
    world.disturbed()
    world.network.links.stalled.update(ways)
    for producer in opened:
        world.spawn(_end(producer, commit=random.random() < _COMMITTED))
    await asyncio.sleep(seconds)
    world.network.links.stalled.difference_update(ways)
    world.network.heal(())
    world.disturbed()
    world.tell("all is heard again")
    if random.random() < 0.8:
        await _all_is_carried_out(world)


async def _open(world: TransactionalWorld, random: Random) -> TransactionalProducer | None:
    """Return a producer with a transaction that has something in it; None where that does not come about."""
    producer = await free_producer(world, random) if world.has_transactions else None
    if producer is None or producer.is_busy:
        return None
    producer.is_busy = True
    if await producer.begin():
        await step(world, random, producer)
        return producer
    producer.is_busy = False
    return None


async def _end(producer: TransactionalProducer, *, commit: bool) -> None:
    try:
        await producer.end(commit=commit)
    finally:
        producer.is_busy = False


def _ways(world: TransactionalWorld, random: Random) -> list[tuple[str, Address]]:
    """Return the ways of all followers of one partition to its leader; none where it has no leader."""
    name, placed = random.choice((STATE, STATE, STATE, OFFSETS)), world.oracle.replicas.placed
    topic_id = world.oracle.names.get(name)
    there = [key for key, one in placed.items() if key[0] == topic_id and len(one.isr) > 1]
    if not there:
        return []
    key = random.choice(sorted(there, key=lambda one: one[1]))
    leader = world.of_broker(placed[key].leader)
    if leader is None or is_down(leader):
        return []
    return [(f"n{one}", leader.address) for one in sorted(placed[key].replicas) if one != placed[key].leader]


async def _all_is_carried_out(world: TransactionalWorld) -> None:
    """X11: while nothing is wrong and nobody begins another, all transactions end. Raises `Violation`."""
    await world.settle()
    deadline = world.loop.time() + ENDED_S
    while await is_healthy(world):
        why = world.transactions.left_open()
        if not why:
            return
        if world.loop.time() > deadline:
            raise Violation(f"X11: {ENDED_S:.0f} s after all was well again: {why}")
        await asyncio.sleep(_LOOK_S)
