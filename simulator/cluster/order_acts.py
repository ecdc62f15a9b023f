"""Acts in which one replica lacks an order to erase keys, and others do not: what brings its records back.

A deposed leader hears of an order while its log still differs from what is committed. A leader that lacks
records is elected after another replica has carried an order out. Or a disk of before an order leads, while
its log is ahead of the archive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Final
from uuid import UUID

from service.remote.catalog import IN_BUCKET
from service.remote.format.erase_codec import NO_TIME, encode_erasure
from service.remote.format.keys import SegmentKey, parse_key
from service.wire.erasures import ErasureOp, ErasuresRequest
from simulator.cluster.acts import UNCLEAN, create
from simulator.cluster.client import produce, values_of
from simulator.cluster.erasures import records_at
from simulator.cluster.process_acts import is_down, start_again
from simulator.cluster.replicas import NOBODY as NOBODY_LEADS
from simulator.cluster.replicas import Key, Placed, batches_of
from simulator.cluster.rewrite_acts import (
    KEYS,
    RewritingWorld,
    ask_keeper,
    copy_disk_of,
    lead_at,
    may_restore_disk,
    new_order,
    put_old_disk,
)
from simulator.faults import READS, WRITES, KeyFault
from simulator.machine import Machine
from simulator.model import TopicModel, Violation, brief
from simulator.network import Link
from simulator.store import Verdict
from simulator.topics import NOBODY, configs_of
from simulator.waiting import is_met

_LOOK_S: Final = 0.1
_until: Final = partial(is_met, every_s=_LOOK_S)
_IN_SYNC_S: Final = 8.0
_ELECTED_S: Final = 25.0
"""more than a session lasts, and an election"""
_TOLD_S: Final = 3.0
_OVER_S: Final = 60.0
_COPIES_S: Final = 4.0
_APART: Final = 8
"""batches that the deposed leader has alone"""
_UNREAD: Final = KeyFault("no order can be read", Verdict.REFUSED, READS, ("erase/",))


class NoCopies(KeyFault):
    """Refuses segments of a partition from an offset on: rewritten ones begin before it."""

    place: Key
    first: int

    def strikes(self, call: str, key: str) -> bool:
        parsed = parse_key(key) if super().strikes(call, key) else None
        if not isinstance(parsed, SegmentKey):
            return False
        return (parsed.topic_id, parsed.partition) == self.place and parsed.base_offset >= self.first


async def order_for_deposed_leader(world: RewritingWorld, random: Random) -> None:
    """Give an order while a deposed leader has other records below its end than were committed, and hears of
    the metadata alone; who leads cannot read the order until that one has fetched what was committed."""
    topic = await _new_topic(world, random, "plain", 3, {"min.insync.replicas": "1"})
    if topic is None:
        return
    state = world.oracle.replicas.placed[topic.topic_id, 0]
    await _fill(world, random, topic, 1)
    if not await _until(_IN_SYNC_S, lambda: len(state.isr) == 3):
        return
    old = state.leader
    deposed = world.of_broker(old)
    if deposed is None or is_down(deposed):
        return
    links = {link for link in world.links_of(deposed.name) if "client" not in link}
    world.tell(f"{deposed.name}, which leads {topic.name}, reaches nobody")
    world.disturbed()
    world.network.links.cut |= links
    await _fill(world, random, topic, _APART, acks=1)
    if await _until(_ELECTED_S, lambda: state.leader not in (old, NOBODY_LEADS)):
        await _order_for(world, random, topic, deposed, links)
    world.network.heal(links)
    world.disturbed()
    await _until(_IN_SYNC_S, lambda: old in state.isr)


async def _order_for(
    world: RewritingWorld, random: Random, topic: TopicModel, deposed: Machine, links: set[Link]
) -> None:
    key, replicas = (topic.topic_id, 0), world.oracle.replicas
    state, number = replicas.placed[key], int(deposed.name[1:])
    leader, before = world.of_broker(state.leader), replicas.most.get(key, 0)
    for _ in range(_APART):
        if replicas.most.get(key, 0) > before:
            break
        await _fill(world, random, topic, 1, acks=1)  # it may be the deposed one that says who leads
        await asyncio.sleep(_LOOK_S)
    end, seen = replicas.most.get(key, 0), replicas.seen[number, key]
    if leader is None or leader.name == world.active_controller or not before < end <= seen.end:
        return
    between = {link for link in links if leader.name in link}
    faults = world.store_faults[leader.name].on
    faults.add(_UNREAD)
    world.network.heal(links - between)
    if await _until(_IN_SYNC_S, lambda: not seen.partition.is_leader):
        order_id = await _order(world, random, topic, end)
        await _until(_TOLD_S, lambda: number in _told(world, order_id, key))
        world.network.heal(between)
        await _until(_IN_SYNC_S, lambda: number in state.isr)
    faults.discard(_UNREAD)


async def order_amid_unclean_election(world: RewritingWorld, random: Random) -> None:
    """Elect a leader that lacks records of an order, once another replica has carried it out. That one is cut
    below the order's end then, and gets records of the same keys there: they go only if the order is one
    without leader epochs."""
    configs = {"min.insync.replicas": "1", UNCLEAN: "true"}
    topic = await _new_topic(world, random, "plain", 2, configs)
    if topic is None:
        return
    key, state = (topic.topic_id, 0), world.oracle.replicas.placed[topic.topic_id, 0]
    await _fill(world, random, topic, 1)
    if not await _until(_IN_SYNC_S, lambda: len(state.isr) == 2 and state.leader != NOBODY_LEADS):
        return
    number = state.leader
    leader, follower = world.of_broker(number), _other(world, state)
    if leader is None or follower is None or is_down(leader) or is_down(follower):
        return
    await world.stop(follower)
    world.ended_for_reasons()
    await _fill(world, random, topic, 3)
    end, has_epochs = world.oracle.replicas.most.get(key, 0), random.random() < 0.5
    order_id = await _order(world, random, topic, end, has_epochs=has_epochs)
    await _until(_IN_SYNC_S, lambda: number in _told(world, order_id, key))
    if not is_down(leader):
        world.kill(leader)
    await start_again(world, random, follower)
    await _until(_ELECTED_S, lambda: state.leader not in (number, NOBODY_LEADS))
    await start_again(world, random, leader)
    await _until(_IN_SYNC_S, lambda: number in state.isr)
    values = await _fill(world, random, topic, 5)
    if has_epochs and await _until(_OVER_S, lambda: world.erasures.orders[order_id].is_done):
        _all_are_there(world, topic, values)


def _all_are_there(world: RewritingWorld, topic: TopicModel, values: list[bytes]) -> None:
    """T24: the leader has what it has acknowledged after an order was given. Raises `Violation`."""
    (partition,), key = topic.partitions, (topic.topic_id, 0)
    number = world.oracle.replicas.placed[key].leader
    seen = world.oracle.replicas.seen.get((number, key))
    machine = world.of_broker(number)
    if seen is None or machine is None or is_down(machine):
        return
    found = {
        record.value for _, _, data in batches_of(machine, seen.partition, 0)
        for record in records_at(data).values()
    }  # fmt: skip
    for value in values:
        if value not in partition.unknown | partition.refused.keys() | found:
            raise Violation(f"T24: {partition}: {brief(value)} is gone by an order that was given before it")


async def lead_with_old_disk(world: RewritingWorld, random: Random) -> None:
    """Have a machine lead with a disk from before an order, while its log is ahead of the archive, and before
    it can read the order again."""
    topic = await _new_topic(world, random, "tiered", 2, {"min.insync.replicas": "1"})
    if topic is None:
        return
    key, state = (topic.topic_id, 0), world.oracle.replicas.placed[topic.topic_id, 0]
    there = [one for one in map(world.of_broker, state.replicas) if one is not None and not is_down(one)]
    there = [one for one in there if world.can_lose_disk(one)]
    if not there:
        return
    machine = random.choice(there)
    refusal = NoCopies(f"no copies of {topic.name}", Verdict.REFUSED, WRITES, (f"data/{topic.topic_id}/",))
    refusal.place, refusal.first = key, 0
    everywhere = [one.on for one in world.store_faults.values()]
    for faults in everywhere:
        faults.add(refusal)
    world.disturbed()
    await _fill(world, random, topic, _APART, size=300)
    await copy_disk_of(world, random, machine)
    number = int(machine.name[1:])
    if await _until(_IN_SYNC_S, lambda: number in state.isr):
        await _lead_after(world, random, topic, machine, everywhere, refusal)
    for faults in everywhere:
        faults.discard(refusal)
        faults.discard(_UNREAD)
    world.disturbed()


async def _lead_after(
    world: RewritingWorld,
    random: Random,
    topic: TopicModel,
    machine: Machine,
    everywhere: list[set[str | KeyFault]],
    refusal: KeyFault,
) -> None:
    """Give the order, and put the disk of before back once the order's part in the bucket is over."""
    key, state = (topic.topic_id, 0), world.oracle.replicas.placed[topic.topic_id, 0]
    number = int(machine.name[1:])
    order_id = await _order(world, random, topic, world.oracle.replicas.most.get(key, 0))
    is_over = await _until(_OVER_S, lambda: IN_BUCKET in _told(world, order_id, key))
    if not is_over or not may_restore_disk(world, machine):
        return
    put_old_disk(world, machine)
    world.store_faults[machine.name].on.add(_UNREAD)
    await start_again(world, random, machine)
    if await _until(_ELECTED_S, lambda: number in state.isr):
        await lead_at(world, random, topic, topic.partitions[0], number)
        await _until(_IN_SYNC_S, lambda: state.leader == number)
    for faults in everywhere:
        faults.discard(refusal)
    await asyncio.sleep(_COPIES_S)


# What they have in common


async def _new_topic(
    world: RewritingWorld, random: Random, kind: str, factor: int, configs: dict[str, str]
) -> TopicModel | None:
    """Create a topic of one partition, of small segments; None where that fails."""
    topic = TopicModel(f"t{len(world.topics)}", NOBODY, [], kind == "tiered", False, -1, deleted=True)
    world.topics.append(topic)  # the name may be taken from now on
    own = {**configs_of(random, kind), "internal.segment.bytes": "700", **configs}
    await create(world, random.choice(world.machines), topic, 1, factor, own)
    is_there = not topic.deleted and (topic.topic_id, 0) in world.oracle.replicas.placed
    return topic if is_there else None


async def _fill(
    world: RewritingWorld,
    random: Random,
    topic: TopicModel,
    count: int,
    *,
    size: int = 40,
    acks: int = -1,
) -> list[bytes]:
    """Produce so many batches, most records of which have keys; return their values."""
    batches = [values_of(world, 2, size) for _ in range(count)]
    await produce(world, random, topic, topic.partitions[0], batches, idempotent=False, acks=acks)
    return [value for batch in batches for value in batch]


async def _order(
    world: RewritingWorld, random: Random, topic: TopicModel, end: int, *, has_epochs: bool = True
) -> UUID:
    """Give an order for all keys below an offset; return its id, whether it was taken or not."""
    order, known = new_order(
        world, random, [topic], list(KEYS), NO_TIME, lambda *_: end, has_epochs=has_epochs
    )
    world.erasures.ask(known)
    request = ErasuresRequest(op=int(ErasureOp.START), id=order.id, order=encode_erasure(order))
    await ask_keeper(world, random, request, f"erase all keys of {topic.name} below {end}, order {order.id}")
    return order.id


def _told(world: RewritingWorld, order_id: UUID, place: Key) -> frozenset[int]:
    """Return who is noted as clean of an order in one partition."""
    notes = world.image().erased.get(order_id)
    return frozenset() if notes is None else frozenset(notes.get(place, ()))


def _other(world: RewritingWorld, state: Placed) -> Machine | None:
    return world.of_broker(next(one for one in state.replicas if one != state.leader))


ORDER_ACTS: Final[dict[str, Callable[[RewritingWorld, Random], Awaitable[None]]]] = {
    one.__name__: one for one in (order_for_deposed_leader, order_amid_unclean_election, lead_with_old_disk)
}
