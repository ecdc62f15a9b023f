"""The cold tier of one broker of several: it tiers what it leads by the image, under its registration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from service.base.threads import SystemThreads
from service.config.settings import BrokerConfig
from service.controller_client.keeper_candidate import ClusterPrefixOwner
from service.node.cold_tier import ColdTier
from service.partition.gate import CutGate
from service.remote.format.keys import CLUSTER_KEY
from service.remote.format.manifest_codec import ClusterFile, encode_cluster
from service.remote.reading.object_reader import open_cluster_file
from service.remote.stores.memory_store import MemoryStore
from tests.support.world import make_world
from tests.unit.tiering.clusters import Here, Member, Quorum

TOPIC = UUID(int=7)
OURS, THEIRS = UUID(int=101), UUID(int=102)


class Store(MemoryStore):
    def verifies_uploads(self) -> bool:
        return True


class Node:
    """A cold tier's view of its node."""

    def __init__(self, quorum: Quorum, replicas: list[Any], config: BrokerConfig) -> None:
        self.quorum, self.image, self.config = quorum, quorum.image, config
        self.read = len(quorum.log)
        self._replicas = replicas
        self._listeners: list[Callable[..., None]] = []
        self.metadata = SimpleNamespace(subscribe=self._listeners.append)
        self.replicas = self
        self.number, self.broker_epoch, self.is_cut_off = 1, quorum.image.brokers[1].epoch, False
        self.plane = SimpleNamespace()
        self.heir_changed = lambda heir: None
        self.gate = CutGate()
        self.disks = SimpleNamespace(
            hurries=lambda tip: False, watch=lambda wake: None, free_caches_first=lambda give_back: None
        )

    def __iter__(self) -> Any:
        return iter(self._replicas)

    def get(self, topic_id: UUID, partition: int) -> Any:
        return self._replicas[partition]

    def watch(self, changed: Any) -> None:
        """Nothing comes or goes."""

    def catch_up(self) -> None:
        for before, image, delta in self.quorum.log[self.read :]:
            self.image = image
            for listener in self._listeners:
                listener(before, image, delta)
        self.read = len(self.quorum.log)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_broker_offloads_only_partitions_that_it_leads(tmp_path: Path) -> None:
    quorum = Quorum({"events": TOPIC}, 2)
    bucket = Store(SystemThreads())
    logs = Member(tmp_path, 9, quorum, bucket, partitions=2)  # for its replicas alone
    logs.fill(3)
    quorum.register(1, OURS)
    quorum.unfence(1)
    quorum.register(2, THEIRS)
    quorum.unfence(2)
    quorum.elect(TOPIC, 1, 2)
    for replica in logs.replicas:
        replica.leader_epoch = quorum.leader_epochs[TOPIC, replica.tip.partition]
    bucket.put(CLUSTER_KEY, encode_cluster(ClusterFile("cluster-of-the-tests-1", present=(THEIRS,))))
    config = BrokerConfig.from_properties({"node.id": "1", "firn.remote.url": "s3://any/prefix"})

    async def scenario() -> None:
        node = Node(quorum, logs.replicas, config)
        tier = ColdTier(config, make_world(), "cluster-of-the-tests-1", lambda *_: bucket, OURS)

        here = Here(node)  # type: ignore[arg-type]
        house = ClusterPrefixOwner(1, OURS, lambda: node.image, here.barrier)
        await tier.claim()
        node.plane = SimpleNamespace(catalog=here, prefix_owner=house)
        running = asyncio.create_task(tier.run(node, None))  # type: ignore[arg-type]
        try:
            await until(lambda: logs.lag(logs.replicas[0]) == 0 and _named() is not None)
            assert _named() == OURS
            stored = open_cluster_file(bucket)
            assert stored is not None
            assert {OURS, THEIRS} <= set(stored.members)
            assert logs.entry(logs.replicas[1]) is None
            assert tier.tiering is not None
            assert tier.tiering.displaced is None
            before = logs.entry(logs.replicas[0])
            quorum.elect(TOPIC, 0, 2)
            node.catch_up()
            logs.fill(2, logs.replicas[0])
            quorum.elect(TOPIC, 1, 1)
            logs.replicas[1].leader_epoch = quorum.leader_epochs[TOPIC, 1]
            node.catch_up()
            await until(lambda: logs.entry(logs.replicas[1]) is not None)
            assert logs.entry(logs.replicas[0]) == before
        finally:
            running.cancel()
            await asyncio.wait({running})
            await tier.close()

    def _named() -> UUID | None:
        stored = open_cluster_file(bucket)
        return stored.stamp.writer.incarnation if stored is not None and stored.stamp is not None else None

    asyncio.run(scenario())
