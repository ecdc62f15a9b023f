"""Replicas of a cluster: as its brokers report them, and as they are on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from service.client.blocking_client import BlockingClient
from service.records.batch import complete_headers
from service.wire.api import ApiKey, request_module
from tests.support.processes import wait_until
from tests.support.quorums import Member


class Nodes(Protocol):
    """A cluster; `quorums.Cluster` and `mixed.Mixed` are some."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def members(self) -> Mapping[int, Member]: ...


class State(NamedTuple):
    """One partition as a broker tells it; -1: nobody leads."""

    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


def states(member: Member, topic: str, seconds: float = 30.0) -> dict[int, State]:
    """Return all partitions as this broker knows them; none if it does not know the topic."""
    host, _, port = member.bootstrap.rpartition(":")
    module = request_module(ApiKey.METADATA)
    asked = module.MetadataRequestTopic(topic_id=None, name=topic)
    with BlockingClient(host, int(port), "test", timeout_s=seconds) as client:
        request = module.MetadataRequest(
            topics=(asked,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        (found,) = client.request(ApiKey.METADATA, request).topics
    return {
        one.partition_index: State(
            one.leader_id, one.leader_epoch, tuple(one.replica_nodes), tuple(one.isr_nodes)
        )
        for one in found.partitions
    }


def wait_in_sync(cluster: Nodes, topic: str, seconds: float = 60) -> dict[int, State]:
    """Wait until every running broker reports all replicas of the topic as in sync and led."""
    found: dict[int, State] = {}

    def all_in_sync() -> bool:
        nonlocal found
        for member in cluster.members.values():
            if member.is_running and "broker" in member.settings["process.roles"]:
                found = states(member, topic)
                if not found or not all(
                    one.leader >= 0 and set(one.isr) == set(one.replicas) for one in found.values()
                ):
                    return False
        return True

    try:
        wait_until(f"all replicas of {topic} to be in sync", all_in_sync, seconds)
    except AssertionError as e:
        logs = "\n".join(f"{one.node_id}: {one.log()}" for one in cluster.members.values())
        raise AssertionError(f"{e}: {found}; {logs}") from e
    return found


def log_bytes(directory: Path) -> dict[int, bytes]:
    """Each batch of a replica's segments, by base offset."""
    batches: dict[int, bytes] = {}
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        for header in complete_headers(memoryview(data)):
            batches[header.base_offset] = data[header.position : header.end]
    return batches


def check_equal(cluster: Nodes, topic: str, partitions: Iterable[int]) -> Mapping[int, int]:
    """Batches are equal on all replicas that have them, and no replica has fewer at its end; how many there
    are, by partition. The nodes should be stopped, or quiet."""
    counts: dict[int, int] = {}
    for index in partitions:
        found = {
            one.node_id: log_bytes(at)
            for one in cluster.members.values()
            if (at := one.replica(topic, index)) is not None
        }
        ends = {node_id: max(batches, default=-1) for node_id, batches in found.items()}
        assert len(set(ends.values())) <= 1, f"{topic}-{index} ends at {ends}"
        merged: dict[int, bytes] = {}
        for node_id, batches in found.items():
            for offset, data in batches.items():
                assert merged.setdefault(offset, data) == data, f"{topic}-{index} at {offset} on {node_id}"
        counts[index] = len(merged)
    return counts
