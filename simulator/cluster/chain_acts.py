"""Clients that produce one record after the other, each to any partition, once they know of the one before.

What such a client knows of is a cause of all that it produces afterwards: a cut that has the one and not the
other is torn (T18). Links between nodes are a little slow meanwhile, so that nodes hear of a cut one after
the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.records.batch import CompressionType
from service.records.builder import BatchBuilder
from service.wire.api import ApiKey, request_module
from simulator.client import Client, NoAnswer
from simulator.cluster import client as clients
from simulator.cluster.cuts import METADATA, Commit, Place
from simulator.cluster.world import ClusterWorld
from simulator.machine import Machine
from simulator.model import PartitionModel, TopicModel
from simulator.network import Link

_CLIENTS: Final = 8
_STEPS: Final = (100, 300, 600)
_PAUSE_S: Final = 0.05
_THINKS_S: Final = 0.006
_SLOW_S: Final = (0.0, 0.006, 0.015)
_LASTS_S: Final = (2.0, 5.0, 9.0)
_ANSWER_S: Final = 8.0
_FIRST_CUT_S: Final = 40.0


class CuttingWorld(ClusterWorld):
    """`ClusterWorld` that takes cuts often. Made and used on its own loop."""

    disasters = heirs = 0
    """times that everything was lost, and clusters that came back"""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        self.bucket.late_calls_outlive = True

    @property
    def counted(self) -> dict[str, int]:
        """Counts for the summary."""
        cuts = self.oracle.cuts
        return {
            "cuts_taken": cuts.taken,
            "cuts_exact": cuts.exact,
            "disasters": self.disasters,
            "heirs": self.heirs,
        }

    @property
    def cluster_id(self) -> str:
        """Id that its machines are formatted with."""
        return next(iter(self._plans.values())).cluster_id

    def _drawn_settings(self, random: Random) -> dict[str, str]:
        return {
            **super()._drawn_settings(random),
            "firn.cut.interval.ms": random.choice(("1000", "1000", "3000")),
            "firn.tail.wait.ms": random.choice(("0", "4000")),
            "offsets.topic.replication.factor": "3",
        }


async def chain(world: ClusterWorld, random: Random) -> None:
    """Let some clients produce, read and ask for metadata, one step after the other, while cuts are taken."""
    if not list(world.partitions()):
        return
    between, lasts_s = _slowed(world, random), random.choice(_LASTS_S)
    spawn_chains(world, random, lasts_s)
    await asyncio.sleep(lasts_s)
    for link in between:
        world.network.links.slow_s.pop(link, None)
    world.disturbed()


async def first_cut(world: ClusterWorld, random: Random) -> None:
    """Wait until a cut is complete, but not for ever: a history in which none is shows nothing of cuts."""
    until_s = world.loop.now_s + _FIRST_CUT_S
    while not world.oracle.cuts.complete and world.loop.now_s < until_s:
        await asyncio.sleep(_PAUSE_S)


def spawn_chains(world: ClusterWorld, random: Random, lasts_s: float) -> None:
    """Let some clients begin, each for so many seconds."""
    for _ in range(_CLIENTS):
        group = f"c{next(world.oracle.cuts.group_numbers)}"
        world.spawn(_chain(world, Random(random.getrandbits(48)), group, random.choice(_STEPS), lasts_s))


def _slowed(world: ClusterWorld, random: Random) -> list[Link]:
    """Make links between nodes a little slow, all or one, most often from the broker that takes the cuts."""
    names = [one.name for one in world.machines]
    slow_s, links = random.choice(_SLOW_S), [(one, other) for one in names for other in names if one != other]
    if random.random() < 0.8:
        unfenced = [one.id for one in world.image().brokers.values() if not one.fenced]
        one = f"n{min(unfenced, default=1)}" if random.random() < 0.7 else random.choice(names)
        links = [(one, random.choice([other for other in names if other != one]))]
    if slow_s:
        said = (
            "all links between nodes" if len(links) > 1 else f"the link from {links[0][0]} to {links[0][1]}"
        )
        world.tell(f"slow, up to {slow_s} s: {said}")
        world.disturbed()
        world.network.links.slow_s.update(dict.fromkeys(links, slow_s))
    return links


async def _chain(world: ClusterWorld, random: Random, group: str, steps: int, lasts_s: float) -> None:
    knows = _Knows(world, random, group)
    until_s = world.loop.time() + lasts_s
    try:
        for _ in range(steps):
            there = list(world.partitions())
            if not there or world.loop.time() > until_s:
                return
            topic, partition = random.choice(there)
            steps_of = knows.produce, knows.read, knows.ask, knows.commit
            step = random.choices(steps_of, weights=(12, 6, 2, 1))[0]
            is_done = await step(topic, partition)
            await asyncio.sleep(random.random() * _THINKS_S if is_done else _PAUSE_S)
    finally:
        knows.close()


class _Knows:
    """One client, and what it knows of. It asks the leaders that the committed metadata say, on connections
    that it keeps, so that a step takes hardly longer than a request."""

    def __init__(self, world: ClusterWorld, random: Random, group: str) -> None:
        self._world = world
        self._random = random
        self._group = group
        self._causes: list[Place] = []
        self._committed: list[Commit] = []
        """of its group, acknowledged since it produced the last record"""
        self._position: Place | None = None
        """up to where it has read some partition"""
        self._coordinator: Client | None = None
        self._clients: dict[int, Client] = {}

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        if self._coordinator is not None:
            self._coordinator.close()

    def _client(self, broker: int) -> Client | None:
        machine = self._world.of_broker(broker)
        if machine is None:
            return None
        return self._clients.setdefault(broker, Client(machine.address))

    async def ask(self, topic: TopicModel, partition: PartitionModel) -> bool:
        """Ask a broker for metadata; know of the last that it knew before. No fenced one: nobody asks it for
        its part of a cut."""
        world, broker = self._world, self._random.randint(1, len(self._world.machines))
        known, client = world.image().brokers.get(broker), self._client(broker)
        if known is None or known.fenced or client is None:
            return False
        offset = world.oracle.cuts.metadata.last_news(_known_to(world.machines[broker - 1]))
        try:
            await clients.leader_of(world, client, topic.topic_id, partition.index)
        except NoAnswer:
            return False
        if offset >= 0:
            self._causes.append((METADATA, offset))
        return True

    async def produce(self, topic: TopicModel, partition: PartitionModel) -> bool:
        """Produce one record, and know of it alone once it is acknowledged."""
        world, key = self._world, (topic.topic_id, partition.index)
        client, losses = self._client(world.oracle.replicas.placed[key].leader), partition.losses
        if client is None:
            return False
        values, made_ms = clients.values_of(world, 1, 40), world.real_ms()
        partition.unknown.update(values)
        partition.sent.update(values)
        builder = BatchBuilder(codec=CompressionType.NONE)
        builder.add(made_ms, None, values[0])
        try:
            answer = await client.produce(*key, bytes(builder.build()), clients.ALL)
        except NoAnswer:
            return False
        if answer.error is not ErrorCode.none or losses != partition.losses:
            return False
        partition.unknown.difference_update(values)
        world.acknowledged += 1
        partition.acknowledge(answer.base_offset, values, made_ms)
        place = key, answer.base_offset
        world.oracle.cuts.caused(place, self._causes, self._committed)
        self._causes, self._committed = [place], []
        return True

    async def read(self, topic: TopicModel, partition: PartitionModel) -> bool:
        """Read the end of a partition at any replica, and know of the last record that it shows."""
        world, key = self._world, (topic.topic_id, partition.index)
        client = self._client(self._random.choice(world.oracle.replicas.placed[key].replicas))
        at, losses = max(world.oracle.replicas.most.get(key, 0) - 1, 0), partition.losses
        if client is None:
            return False
        try:
            found = await client.fetch(*key, at, max_wait_ms=20)
        except NoAnswer:
            return False
        if found.error is not ErrorCode.none or losses != partition.losses or topic.deleted:
            return False
        world.saw(partition, key, client.address[0], at, found)
        self._causes += [(key, one.offset) for one in found.records[-1:]]
        if found.records:
            self._position = key, found.records[-1].offset + 1
        return True

    async def commit(self, topic: TopicModel, partition: PartitionModel) -> bool:
        """Commit up to where some partition was read, and know of that, too, once it is acknowledged."""
        if self._position is None:
            return False
        (topic_id, index), offset = self._position
        before = self._world.oracle.cuts.committing(self._group, (topic_id, index), offset)
        if before >= offset:
            return False  # so that committed offsets rise
        m = request_module(ApiKey.OFFSET_COMMIT)
        row = m.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=""
        )
        request = m.OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=(m.OffsetCommitRequestTopic(topic_id=topic_id, partitions=(row,)),),
        )
        try:
            if self._coordinator is None:
                self._coordinator = await coordinator_of(self._world, self._random, self._group)
            if self._coordinator is None:
                return False
            answer = await self._coordinator.ask(ApiKey.OFFSET_COMMIT, request, _ANSWER_S)
        except NoAnswer:
            self._coordinator = None
            return False
        if answer.topics[0].partitions[0].error_code is not ErrorCode.none:
            self._coordinator = None
            return False
        self._committed.append(Commit(self._group, (topic_id, index), offset))
        return True


async def coordinator_of(world: ClusterWorld, random: Random, group: str) -> Client | None:
    """Return a client of the group's coordinator, as some node says. Raises `NoAnswer`."""
    m = request_module(ApiKey.FIND_COORDINATOR)
    client = Client(random.choice(world.machines).address)
    try:
        request = m.FindCoordinatorRequest(key_type=0, coordinator_keys=(group,))
        found = (await client.ask(ApiKey.FIND_COORDINATOR, request, _ANSWER_S)).coordinators[0]
    finally:
        client.close()
    machine = world.of_broker(int(found.node_id)) if found.error_code is ErrorCode.none else None
    return None if machine is None else Client(machine.address)


def _known_to(machine: Machine) -> int:
    run = machine.run
    if run is None or run.ended or run.node is None or run.node.parts.metadata is None:
        return -1
    return run.node.parts.metadata.image.offset


CHAIN_ACTS: Final[dict[str, Callable[[ClusterWorld, Random], Awaitable[None]]]] = {
    one.__name__: one for one in (chain, first_cut)
}
