"""Cuts of three whole nodes under load: each exact one is a moment, whatever clients did meanwhile."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.world import system_world
from service.cli.dev_nodes import agree_on_ports, format_nodes, plan_nodes
from service.inspect.fsck import fsck
from service.remote.format.cut_codec import METADATA_TOPIC_ID, CutRef
from service.remote.reading.tails import index_tails, open_cuts, open_named_cut
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.obstore_store import StoreOptions, open_store
from service.remote.stores.store import ObjectStore
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.support.processes import wait_until

NONE = ErrorCode.none
PARTITIONS = 6
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "broker.heartbeat.interval.ms": "200",
    "broker.session.timeout.ms": "6000",
    "firn.cut.interval.ms": "1000",
    "firn.cut.hold.max.ms": "500",
}
CUTS = 3
CLIENTS = 4


class Three:
    """Three brokers on one bucket, of which the first is the controller and takes the cuts."""

    def __init__(self, folder: Path) -> None:
        ports = agree_on_ports(0, 3, 1)
        (folder / "bucket").mkdir()
        self.url = f"file://{folder}/bucket"
        plan = plan_nodes(3, 1, ports, folder, system_world(), {**SETTINGS, "firn.remote.url": self.url})
        format_nodes(plan, system_world())
        self.nodes = {
            node.node_id: NodeThread(folder / str(node.node_id), None, None, **node.settings)
            for node in plan.nodes
        }
        for node in self.nodes.values():
            node._thread.start()  # the brokers need the controller, and it them to be of use
        for node in self.nodes.values():
            node._ready.wait()
            assert node.failure is None, node.failure
        self.client = self.nodes[1].client()
        self.talk = Talk(self.client)
        self.create()
        self.store: ObjectStore = open_store(self.url, world=system_world(), options=StoreOptions())

    def create(self) -> None:
        module = request_module(ApiKey.CREATE_TOPICS)
        replicas = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
        topic = module.CreatableTopic(
            name="t",
            num_partitions=-1,
            replication_factor=-1,
            assignments=tuple(
                module.CreatableReplicaAssignment(partition_index=n, broker_ids=replicas[n % 3])
                for n in range(PARTITIONS)
            ),
            configs=(),
        )

        def created() -> bool:
            [answer] = self.talk(ApiKey.CREATE_TOPICS, "CreateTopicsRequest", topics=(topic,)).topics
            return bool(answer.error_code in (NONE, ErrorCode.topic_already_exists))

        wait_until("a topic on three brokers", created)

    def kept(self) -> list[CutRef]:
        try:
            return list(open_cuts(self.store).kept)
        except ObjectNotFound:
            return []

    def close(self) -> None:
        self.client.close()
        for node_id in (2, 3, 1):
            self.nodes[node_id].stop()


class Chain(threading.Thread):
    """A client that produces each record after the answer to the one before, anywhere."""

    def __init__(self, three: Three, topic_id: UUID, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.clients = {node_id: node.client() for node_id, node in three.nodes.items()}
        self.topic_id = topic_id
        self.done: list[tuple[int, int]] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.is_set():
            partition = self.random.randrange(PARTITIONS)
            answer: Any = Talk(self.clients[partition % 3 + 1]).produce(
                self.topic_id, [b"%d" % len(self.done)], int(time.time() * 1000), partition
            )
            if answer.error_code == NONE:
                self.done.append((partition, answer.base_offset))
        for client in self.clients.values():
            client.close()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Three]:
    one = Three(tmp_path)
    yield one
    one.close()


def test_each_exact_cut_has_a_prefix_of_what_every_client_did(
    three: Three, capsys: pytest.CaptureFixture[str]
) -> None:
    topic_id = three.talk.topic_id("t")
    chains = [Chain(three, topic_id, seed) for seed in range(CLIENTS)]
    for chain in chains:
        chain.start()
    before = {ref.cut for ref in three.kept()}  # some may be older than the topic

    def new() -> list[CutRef]:
        return [ref for ref in three.kept() if ref.is_exact and ref.cut not in before]

    try:
        wait_until("cuts", lambda: sum(ref.is_complete for ref in new()) >= CUTS, 60)
    finally:
        for chain in chains:
            chain.stopped.set()
        for chain in chains:
            chain.join()
    exact = [ref for ref in new() if topic_id in open_named_cut(three.store, ref).topics]
    assert len(exact) >= CUTS - 1
    for ref in exact:
        cut = open_named_cut(three.store, ref)
        rows = cut.topics[topic_id]
        ends = [row.end for row in rows]
        for chain in chains:
            inside = [offset < ends[partition] for partition, offset in chain.done]
            assert inside == sorted(inside, reverse=True), f"cut {ref.cut} tears what a client did"
        tails = index_tails(three.store, cut.tails)
        found = tails.pieces((METADATA_TOPIC_ID, 0), cut.metadata.end_offset, cut.metadata_end)
        assert found.reaches == cut.metadata_end
        for partition, row in enumerate(rows):
            if ref.is_complete:
                assert tails.pieces((topic_id, partition), row.start, row.end).reaches == row.end
    assert any(sum(row.end for row in open_named_cut(three.store, ref).topics[topic_id]) > 0 for ref in exact)
    report = fsck(three.store)
    assert report.errors == []
    assert report.cuts is not None
    assert report.cuts.tails > 0
    cold = three.nodes[1].node.parts.cold
    assert cold is not None
    assert cold.tiering is not None
    keeper, holds = cold.tiering.cut_keeper, cold.tiering.cuts.hold.snapshot()
    with capsys.disabled():
        print(
            f"\ncuts: {dict(keeper.made)} exact/loose, {keeper.void} void; node 1 held {holds.observed} "
            f"times, {1000 * holds.total / max(holds.observed, 1):.1f} ms on average"
        )
