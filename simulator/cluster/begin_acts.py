"""Followers that begin at the archive's end, in the midst of transactions, and are read at once."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

from simulator.cluster.cut_acts import read_at
from simulator.cluster.direct_acts import appends, end_all
from simulator.cluster.process_acts import is_down, start_again
from simulator.cluster.tier_acts import settle_down
from simulator.cluster.transactional import TransactionalWorld


async def begin_anew(world: TransactionalWorld, random: Random) -> None:
    """Have overlapping transactions archived and deleted locally, while a follower is away or before it
    loses its disk; then it is read while it begins, over slow links."""
    placed = world.oracle.replicas.placed
    there = [(*one, (one[0].topic_id, one[1].index)) for one in world.partitions() if one[0].tiered]
    there = [one for one in there if len(placed[one[2]].replicas) > 1]
    if not there:
        return
    topic, partition, key = random.choice(there)
    leader = placed[key].leader
    follower = world.of_broker(random.choice([one for one in placed[key].replicas if one != leader]))
    if follower is None or is_down(follower):
        return
    is_away = random.random() < 0.5 or not world.can_lose_disk(follower)
    if is_away:
        world.kill(follower)
    for _ in range(2):
        world.spawn(appends(world, Random(random.getrandbits(48)), topic, partition, 30))
    await settle_down(world, random)  # until nobody appends
    if random.random() < 0.5:
        end_all(world)
    world.end_direct = partial(end_all, world)
    if topic.deleted or f"n{placed[key].leader}" == follower.name:
        return
    link = f"n{placed[key].leader}", follower.name
    world.network.links.slow_s[link] = random.choice((0.3, 1.0))
    if not is_away:
        world.wipe(follower, Random(random.getrandbits(48)))
    await start_again(world, random, follower)
    world.spawn(read_at(world, Random(random.getrandbits(48)), follower, topic, key, 10.0))
    await asyncio.sleep(random.choice((2.0, 8.0)))
    world.network.links.slow_s.pop(link, None)
