"""The active controller is killed, again and again, while topics come and go through every node."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.network.client import Client
from service.records.batch import iter_headers
from service.wire.api import ApiKey, request_module
from tests.support.changes import Changes
from tests.support.processes import wait_until
from tests.support.quorums import Cluster

SEED = int(os.environ.get("SEED", "20261123"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        yield made.start()


def changes_of(cluster: Cluster, per_second: float) -> Changes:
    places = [(one.node_id, one.bootstrap) for one in cluster.members.values()]
    return Changes(places, per_second, SEED)


def quorum(cluster: Cluster, node_id: int) -> tuple[int, int]:
    """Leader and epoch, as a living node tells them."""
    return described(cluster, node_id)[:2]


def described(cluster: Cluster, node_id: int) -> tuple[int, int, int]:
    """Leader, epoch and high watermark."""
    host, _, port = cluster.members[node_id].bootstrap.rpartition(":")
    module = request_module(ApiKey.DESCRIBE_QUORUM)
    partition = module.PartitionData(partition_index=0)
    topic = module.TopicData(topic_name="__cluster_metadata", partitions=(partition,))
    with Client(host, int(port), "test") as client:
        answer = client.request(ApiKey.DESCRIBE_QUORUM, module.DescribeQuorumRequest(topics=(topic,)))
    found = answer.topics[0].partitions[0]
    return found.leader_id, found.leader_epoch, found.high_watermark


def leader_of(cluster: Cluster) -> int:
    found: list[int] = []

    def look() -> bool:
        for node_id, one in cluster.members.items():
            if one.process is not None and one.process.poll() is None:
                leader, _ = quorum(cluster, node_id)
                if leader >= 0:
                    found.append(leader)
                    return True
        return False

    wait_until("somebody to lead", look, 30)
    return found[-1]


def topics_of(cluster: Cluster, node_id: int) -> set[str]:
    host, _, port = cluster.members[node_id].bootstrap.rpartition(":")
    module = request_module(ApiKey.METADATA)
    with Client(host, int(port), "test") as client:
        request = module.MetadataRequest(
            topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        return {one.name for one in client.request(ApiKey.METADATA, request).topics}


def committed(cluster: Cluster, node_id: int, end: int) -> bytes:
    """The batches of a node's metadata log that lie below `end`."""
    folder = cluster.members[node_id].data / "__cluster_metadata-0"
    log = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
    found = bytearray()
    for header in iter_headers(log):
        if header.base_offset < end:
            found += log[len(found) : len(found) + header.size]
    return bytes(found)


def kills(cluster: Cluster, count: int, per_second: float) -> list[float]:
    """Kill whoever leads, so often; how long each time until a change was answered (s)."""
    print(f"SEED={SEED}")
    waits = []
    with changes_of(cluster, per_second) as changes:
        for n in range(count):
            time.sleep(0.5)  # a little load between two kills; nothing depends on it
            leader = leader_of(cluster)
            cluster.members[leader].kill()
            waits.append(changes.wait_for_next(time.monotonic()))
            print(f"kill {n + 1}: node {leader}, {waits[-1] * 1000:.0f} ms to the next answer", flush=True)
            cluster.members[leader].start()
        changes.stop()
        assert changes.refusals == []
        there, gone = changes.expected()
        assert len(there) + len(gone) > 10
        for node_id in cluster.members:
            wait_until(
                f"node {node_id} to know all that was answered",
                lambda node_id=node_id: there <= topics_of(cluster, node_id),  # type: ignore[misc]
                30,
            )
            assert not gone & topics_of(cluster, node_id)
    end = described(cluster, leader_of(cluster))[2]
    cluster.stop()
    logs = {committed(cluster, node_id, end) for node_id in cluster.members}
    assert len(logs) == 1, "the metadata logs differ below the high watermark"
    return waits


def test_every_answered_change_outlives_who_answered_it(cluster: Cluster) -> None:
    kills(cluster, 4, 20)


@pytest.mark.soak
def test_two_hundred_times(cluster: Cluster) -> None:
    waits = sorted(kills(cluster, 200, 50))
    print(f"to the next answered change: median {waits[100] * 1000:.0f} ms, worst {waits[-1] * 1000:.0f} ms")


def test_a_leader_that_sleeps_answers_nothing_after_its_successor(cluster: Cluster) -> None:
    with changes_of(cluster, 20) as changes:
        changes.wait_for_next(time.monotonic())
        leader = leader_of(cluster)
        process = cluster.members[leader].process
        assert process is not None
        others = [node_id for node_id in cluster.members if node_id != leader]
        os.kill(process.pid, signal.SIGSTOP)
        try:
            wait_until("a successor", lambda: quorum(cluster, others[0])[0] not in (-1, leader), 30)
            changes.wait_for_next(time.monotonic())
        finally:
            os.kill(process.pid, signal.SIGCONT)
        wait_until(
            "the old leader to follow",
            lambda: quorum(cluster, leader) == quorum(cluster, others[0]),
            30,
        )
        changes.wait_for_next(time.monotonic())
        changes.stop()
        assert changes.refusals == []
        there, gone = changes.expected()
        for node_id in cluster.members:
            found = topics_of(cluster, node_id)
            assert there <= found
            assert not gone & found
