"""Hostile requests at the quorum: the protocol's error, nothing changed, and no end of the node.

`FIRN_TEST_FRAMES` says how many, `FIRN_TEST_SEED` which.
"""

from __future__ import annotations

import io
import os
import time
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from service.metadata.raft import messages
from service.metadata.raft.events import (
    AppendControl,
    AppendFetched,
    Cancelled,
    InboundRequest,
    OutboundResponse,
    Persist,
    RestartAt,
    TruncateTo,
)
from service.metadata.raft.keys import ReplicaKey, SnapshotId
from service.metadata.raft.leading import MAX_REPLICAS
from service.metadata.raft.message_parts import TOPIC, TOPIC_ID
from service.metadata.raft.requests import (
    FetchSnapshotRequest,
    RaftFetchRequest,
    ReadLog,
    ReadSnapshot,
    Refusal,
)
from service.metadata.raft.roles import Leader
from service.metadata.raft.state import MAX_EPOCH, QuorumState
from service.wire.apis import APIS
from tests.unit.metadata.raft_nodes import Node

FRAMES = int(os.environ.get("FIRN_TEST_FRAMES", "6000"))
SEED = int(os.environ.get("FIRN_TEST_SEED") or time.time_ns() % 2**32)

VERSIONS = {
    1: (4, 18),
    52: (0, 2),
    53: (0, 1),
    54: (0, 1),
    55: (0, 2),
    59: (0, 1),
    80: (0, 1),
    81: (0, 0),
    82: (0, 0),
}
I32 = (-(2**31), -2, -1, 0, 1, 2, 3, 4, 5, 17, 2**20, 2**31 - 3, 2**31 - 2, 2**31 - 1)
I64 = (-(2**63), -1, 0, 1, 2, 3, 5, 2**31, 2**40, 2**62, 2**63 - 1)
HOSTS = ("", "n2", "x" * 300, "a..b", "nul\0", "\u2603", "::1", "." * 40, "\ud7ff" * 20)
DIRECTORIES = (None, UUID(int=1), UUID(int=2), UUID(int=9))


class Forge:
    """Requests of every kind, any field of which may be nonsense."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def near(self, value: int, others: tuple[int, ...]) -> int:
        """Mostly what would be right, so that the checks behind the first are reached, too."""
        return value if self.random.random() < 0.6 else self.random.choice(others)

    def request(self, epoch: int) -> tuple[int, int, Any]:
        api_key = self.random.choice(tuple(VERSIONS))
        version = self.random.randint(*VERSIONS[api_key])
        module = messages.module_of(api_key, version, "request")
        top = {"cluster_id": self.random.choice((None, "cluster", "cluster", "cluster", "other", ""))}
        if api_key in (80, 81, 82):
            return api_key, version, self._change(module, api_key, epoch, top)
        names = {1: ("FetchTopic", "FetchPartition"), 59: ("TopicSnapshot", "PartitionSnapshot")}
        topic_name, partition_name = names.get(api_key, ("TopicData", "PartitionData"))
        partitions = tuple(
            messages.make(module, partition_name, **self._partition(module, epoch)) for _ in self._count()
        )
        topic = {
            key: self.random.choice((TOPIC,) * 5 + ("other", "")) for key in ("topic_name", "topic", "name")
        }
        topic_id = self.random.choice((TOPIC_ID,) * 5 + (UUID(int=7), None))
        topics = tuple(
            messages.make(module, topic_name, partitions=partitions, topic_id=topic_id, **topic)
            for _ in self._count()
        )
        name = f"{APIS[api_key].name}Request"
        top |= self._top(module)
        return api_key, version, messages.make(module, name, topics=topics, **top)

    def _count(self) -> range:
        return range(self.random.choice((1,) * 12 + (0, 2, 40)))

    def _top(self, module: Any) -> dict[str, Any]:
        i32, values = self.random.choice(I32), {}
        if hasattr(module, "ReplicaState"):
            values["replica_state"] = messages.make(
                module, "ReplicaState", replica_id=self.near(2, I32), replica_epoch=i32
            )
        if hasattr(module, "LeaderEndpoint"):
            values["leader_endpoints"] = self._listeners(module, "LeaderEndpoint")
        return values | {
            "replica_id": self.near(2, I32),
            "voter_id": self.near(1, I32),
            "max_bytes": self.near(1024, I32),
            "min_bytes": i32,
            "max_wait": timedelta(milliseconds=self.near(0, I32)),
            "forgotten_topics_data": (),
        }

    def _partition(self, module: Any, epoch: int) -> dict[str, Any]:
        random = self.random
        index, last = self.near(0, I32), self.near(max(epoch - 1, 0), I32)
        values: dict[str, Any] = dict.fromkeys(
            ("partition_index", "partition", "index"), 0 if random.random() < 0.9 else index
        )
        values |= dict.fromkeys(("current_leader_epoch", "leader_epoch"), self.near(epoch, I32))
        values |= dict.fromkeys(("last_offset_epoch", "last_fetched_epoch"), last)
        values |= dict.fromkeys(
            ("fetch_offset", "last_offset", "position", "log_start_offset", "high_watermark"), 0
        )
        for key in ("fetch_offset", "last_offset", "position", "log_start_offset", "high_watermark"):
            values[key] = self.near(3, I64)
        for key in ("replica_directory_id", "voter_directory_id"):
            values[key] = random.choice(DIRECTORIES)
        values |= {
            "replica_epoch": self.near(epoch + random.randint(0, 1), I32),
            "replica_id": self.near(2, I32),
            "leader_id": self.near(2, I32),
            "partition_max_bytes": random.choice(I32),
            "pre_vote": random.random() < 0.5,
            "preferred_successors": tuple(random.choice(I32) for _ in self._count()),
        }
        if hasattr(module, "ReplicaInfo"):
            values["preferred_candidates"] = tuple(
                messages.make(
                    module,
                    "ReplicaInfo",
                    candidate_id=random.choice(I32),
                    candidate_directory_id=random.choice(DIRECTORIES),
                )
                for _ in self._count()
            )
        if hasattr(module, "SnapshotId"):
            values["snapshot_id"] = messages.make(
                module, "SnapshotId", end_offset=self.near(3, I64), epoch=self.near(1, I32)
            )
        return values

    def _listeners(self, module: Any, name: str) -> tuple[Any, ...]:
        random = self.random
        return tuple(
            messages.make(
                module,
                name,
                name=random.choice(("CONTROLLER", "", "x" * 99)),
                host=random.choice(HOSTS if random.random() < 0.5 else ("n2",)),
                port=random.choice((0, 1, 9093, 65535)),
            )
            for _ in self._count()
        )

    def _change(self, module: Any, api_key: int, epoch: int, top: dict[str, Any]) -> Any:
        random = self.random
        top |= {
            "voter_id": self.near(2, I32),
            "voter_directory_id": random.choice(DIRECTORIES),
            "timeout": timedelta(milliseconds=random.choice(I32)),
            "ack_when_committed": random.random() < 0.5,
            "current_leader_epoch": self.near(epoch, I32),
        }
        if hasattr(module, "Listener"):
            top["listeners"] = self._listeners(module, "Listener")
        if hasattr(module, "KRaftVersionFeature"):
            low, high = self.near(0, (-1, 1, -32768, 32767)), self.near(1, (-1, 0, -32768, 32767))
            top["k_raft_version_feature"] = messages.make(
                module, "KRaftVersionFeature", min_supported_version=low, max_supported_version=high
            )
        name = {80: "AddRaftVoterRequest", 81: "RemoveRaftVoterRequest", 82: "UpdateRaftVoterRequest"}
        return messages.make(module, name[api_key], **top)


def leader() -> Node:
    node = Node(1, end=3, state=QuorumState(1))
    node.lead()
    return node


def follower() -> Node:
    return Node(1, end=3, state=QuorumState(4, leader_id=2))


def unattached() -> Node:
    return Node(1, end=3, state=QuorumState(4))


def alone() -> Node:
    return Node(1, voters=1, end=3, state=QuorumState(4))


def observer() -> Node:
    return Node(9, end=3, state=QuorumState(4, leader_id=2))


def prospective() -> Node:
    node = unattached()
    node.pass_ms(2100)
    return node


MAKERS = (leader, follower, unattached, alone, observer, prospective)


def state_of(node: Node) -> tuple[Any, ...]:
    core = node.machine.core
    state = core.state
    change = (state.change, dict(state.updates)) if isinstance(state, Leader) else ()
    log = (node.log.end_offset, core.high_watermark, core.flushed, core.voters)
    return (core.epoch, core.voted, core.leader_id, core.leader_endpoint, core.role, *log, change)


def is_a_second_leader(api_key: int, message: Any, node: Node) -> bool:
    """A voter that is said to lead beside another: the end of the node, as the issue has it."""
    if api_key not in (53, 54) or message.cluster_id not in (None, "cluster"):
        return False
    asked: Any = messages.of_request(api_key, 0, message)
    core = node.machine.core
    if isinstance(asked, Refusal) or asked.epoch != core.epoch or core.leader_id < 0:
        return False
    return asked.leader_id != core.leader_id and core.voters.get(asked.leader_id) is not None


def error_of(answer: Any) -> ErrorCode:
    error: ErrorCode = answer.error_code
    for topic in getattr(answer, "topics", getattr(answer, "responses", ())):
        for partition in topic.partitions:
            error = partition.error_code if error is ErrorCode.none else error
    return error


@pytest.mark.parametrize("make", MAKERS)
def test_hostile_requests_change_no_state_and_stop_no_node(make: Any) -> None:
    random = Random(f"{SEED} {make.__name__}")
    forge, node = Forge(random), make()
    first, size, told = state_of(node), len(vars(node.machine.core)), set()
    for number in range(max(FRAMES // len(MAKERS), 1)):
        api_key, version, message = forge.request(node.machine.epoch)
        if is_a_second_leader(api_key, message, node):
            continue
        where = f"FIRN_TEST_SEED={SEED}, frame {number}: {message}"
        before = state_of(node)
        asked = messages.of_request(api_key, version, message)
        if isinstance(asked, Refusal):
            answer = messages.to_refusal(api_key, version, message, asked)
        else:
            effects = node.tell(InboundRequest(number + 1, asked))
            replies = [
                one.answer for one in effects if isinstance(one, OutboundResponse) and one.id == number + 1
            ]
            if not replies:  # it waits for records, or for the new voter's versions
                node.tell(Cancelled(number + 1))
                continue
            reply: Any = replies[0]
            if isinstance(getattr(reply, "records", b""), ReadLog):
                assert reply.records.max_bytes <= 8 * 2**20, where
                reply = reply._replace(records=b"")
            if isinstance(getattr(reply, "data", b""), ReadSnapshot):
                reply = reply._replace(data=b"")
            answer = messages.to_response(api_key, version, reply)
            error = error_of(answer)
            told.add((api_key, error))
            if error not in (ErrorCode.none, ErrorCode.invalid_voter_key):
                touched = [
                    one
                    for one in effects
                    if isinstance(one, Persist | AppendControl | AppendFetched | TruncateTo | RestartAt)
                ]
                assert not touched, where
                assert state_of(node) == before, where
        if number % 50 == 0:
            writer: Any = entity_writer(type(answer))
            writer(io.BytesIO(), answer)
        core = node.machine.core
        assert core.epoch <= MAX_EPOCH, where
        if isinstance(core.state, Leader):
            assert len(core.state.replicas) <= MAX_REPLICAS + len(core.voters), where
        if state_of(node) != first or number % 1000 == 999:
            node = make()
            first = state_of(node)
    assert len(vars(node.machine.core)) == size
    assert len(told) > 8 or FRAMES < 5000, told


def test_strangers_without_number_are_not_all_remembered() -> None:
    node = leader()
    for node_id in range(10, 10 + 3 * MAX_REPLICAS):
        node.now_ms += node_id % 8 == 0
        node.ask(RaftFetchRequest(ReplicaKey(node_id), node.machine.epoch, 3, 1, max_wait_ms=0))
    state = node.machine.core.state
    assert isinstance(state, Leader)
    assert len(state.replicas) <= MAX_REPLICAS + 3
    assert ReplicaKey(9 + 3 * MAX_REPLICAS) in state.replicas


def test_a_leader_ignores_its_own_snapshot_fetch() -> None:
    node = leader()
    state: Any = node.machine.core.state
    node.ask(FetchSnapshotRequest(ReplicaKey(1, UUID(int=1)), node.machine.epoch, SnapshotId(3, 1), 0))
    assert not state.fetched_voters


@pytest.mark.parametrize(
    ("api_key", "cluster", "topic", "error"),
    [
        (52, "other", "other", ErrorCode.inconsistent_cluster_id),
        (52, "cluster", "other", ErrorCode.invalid_request),
        (55, None, "other", ErrorCode.unknown_topic_or_partition),
        (59, "cluster", "other", ErrorCode.unknown_topic_or_partition),
    ],
)
def test_requests_for_other_partitions_get_kafkas_error_codes(
    api_key: int, cluster: str | None, topic: str, error: ErrorCode
) -> None:
    """Kafka 4.3 looks at the cluster first, and names the partition where the answer has a place for it."""
    version = VERSIONS[api_key][1]
    forge = Forge(Random(1))
    module = messages.module_of(api_key, version, "request")
    names = {59: ("TopicSnapshot", "PartitionSnapshot")}.get(api_key, ("TopicData", "PartitionData"))
    partition = messages.make(module, names[1], **forge._partition(module, 4))
    topics = (messages.make(module, names[0], topic_name=topic, name=topic, partitions=(partition,)),)
    name = f"{APIS[api_key].name}Request"
    values = {"replica_id": 2, "max_bytes": 100, "voter_id": 1, "cluster_id": cluster}
    message = messages.make(module, name, topics=topics, **values)
    refusal = messages.of_request(api_key, version, message)
    assert isinstance(refusal, Refusal)
    if cluster == "other":
        refusal = Refusal(ErrorCode.inconsistent_cluster_id)
    answer = messages.to_refusal(api_key, version, message, refusal)
    assert error_of(answer) is error
