"""Elections of a leader that lacks records, in a topic that allows it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Final

from simulator.cluster.acts import UNCLEAN, create
from simulator.cluster.client import produce, values_of
from simulator.cluster.process_acts import is_down, start_again
from simulator.cluster.replicas import NOBODY as NOBODY_LEADS
from simulator.cluster.world import ClusterWorld
from simulator.model import TopicModel
from simulator.topics import NOBODY, configs_of
from simulator.waiting import is_met

_LOOK_S: Final = 0.2
_until: Final = partial(is_met, every_s=_LOOK_S)
_IN_SYNC_S: Final = 5.0
_ELECTED_S: Final = 15.0


async def elect_uncleanly(world: ClusterWorld, random: Random) -> None:
    """Stop the follower of a partition, produce, and kill the leader: the follower comes back and leads."""
    topic = TopicModel(f"t{len(world.topics)}", NOBODY, [], False, False, -1, deleted=True)
    world.topics.append(topic)  # the name may be taken from now on
    configs = {**configs_of(random, "plain"), "min.insync.replicas": "1", UNCLEAN: "true"}
    await create(world, random.choice(world.machines), topic, 1, 2, configs)
    if topic.deleted:
        return
    key, placed = (topic.topic_id, 0), world.oracle.replicas.placed
    [partition] = topic.partitions
    await produce(world, random, topic, partition, [values_of(world, 2, 40)], idempotent=False)
    if not await _until(_IN_SYNC_S, lambda: len(placed[key].isr) == 2 and placed[key].leader != NOBODY_LEADS):
        return
    state = placed[key]
    leader = world.of_broker(state.leader)
    follower = world.of_broker(next(one for one in state.replicas if one != state.leader))
    if leader is None or follower is None or is_down(leader) or is_down(follower):
        return
    await world.stop(follower)
    world.ended_for_reasons()
    batches = [values_of(world, 1, 40) for _ in range(random.choice((1, 4)))]
    await produce(world, random, topic, partition, batches, idempotent=False)
    if not is_down(leader):
        world.kill(leader)
    await start_again(world, random, follower)
    number = int(follower.name[1:])
    await _until(_ELECTED_S, lambda: placed[key].leader == number)
    await start_again(world, random, leader)


UNCLEAN_ACTS: Final[dict[str, Callable[[ClusterWorld, Random], Awaitable[None]]]] = {
    elect_uncleanly.__name__: elect_uncleanly
}
