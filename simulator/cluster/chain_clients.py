"""A client that produces one record after the other, once it knows of what it has read or was told before.

What such a client knows of is a cause of all that it produces afterwards: a cut that has the one and not the
other is torn (T18).
"""

from __future__ import annotations

from random import Random
from typing import Final

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

_ANSWER_S: Final = 8.0


class ChainClient:
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
        """Ask any broker for metadata."""
        return await self.ask_at(self._random.randint(1, len(self._world.machines)), topic, partition)

    async def ask_at(self, broker: int, topic: TopicModel, partition: PartitionModel) -> bool:
        """Ask a broker for metadata; know of the last that it knew before. No fenced one: nobody asks it for
        its part of a cut."""
        world = self._world
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
        builder.add(made_ms, world.key_of(values[0]), values[0])
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
        replicas, key = self._world.oracle.replicas, (topic.topic_id, partition.index)
        at = max(replicas.most.get(key, 0) - 1, 0)
        return await self._read(self._random.choice(replicas.placed[key].replicas), topic, partition, at)

    async def read_on(self, broker: int, topic: TopicModel, partition: PartitionModel) -> bool:
        """Wait at a replica for the record that comes next, and know of it."""
        at = self._world.oracle.replicas.most.get((topic.topic_id, partition.index), 0)
        return await self._read(broker, topic, partition, at)

    async def _read(self, broker: int, topic: TopicModel, partition: PartitionModel, at: int) -> bool:
        world, key = self._world, (topic.topic_id, partition.index)
        client, losses = self._client(broker), partition.losses
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
        return bool(found.records)

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
