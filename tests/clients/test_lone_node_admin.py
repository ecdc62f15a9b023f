"""Requests of tools about quorum, replicas and leaders, to a node that is its whole cluster."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.support.batches import batch
from tests.support.clients import Admin
from tests.support.kafka_tools import tool
from tests.support.processes import Node
from tests.support.wire import RawConnection, produce, schema

WAIT = timedelta(seconds=10)
NONE = 0
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_REQUEST = 42
ELECTION_NOT_NEEDED = 84
BROKER_ID_NOT_REGISTERED = 102
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("alone")).start()
    try:
        Admin(node.bootstrap).create("t", 2)
        yield node
        node.stop()
    finally:
        node.close()


@pytest.fixture
def connection(node: Node) -> Iterator[RawConnection]:
    with RawConnection(node.bootstrap) as connection:
        yield connection


def served(connection: RawConnection) -> set[int]:
    request = schema(18, 3).ApiVersionsRequest(client_software_name="t", client_software_version="1")
    return {one.api_key for one in connection.call(request).api_keys}


def test_the_quorum_is_this_node(connection: RawConnection) -> None:
    assert {43, 45, 46, 55, 64, 80, 81} <= served(connection)
    module = schema(55, 2)
    part = module.PartitionData(partition_index=0)
    topic = module.TopicData(topic_name="__cluster_metadata", partitions=(part,))
    answer = connection.call(module.DescribeQuorumRequest(topics=(topic,)))
    [told] = answer.topics[0].partitions
    assert (int(answer.error_code), int(told.error_code), told.leader_id) == (NONE, NONE, 1)
    assert [one.replica_id for one in told.current_voters] == [1]
    assert told.high_watermark > 0


def reassign(connection: RawConnection, replicas: tuple[int, ...] | None) -> Any:
    module = schema(45, 1)
    part = module.ReassignablePartition(partition_index=0, replicas=replicas)
    topic = module.ReassignableTopic(name="t", partitions=(part,))
    answer = connection.call(
        module.AlterPartitionReassignmentsRequest(
            timeout=WAIT, allow_replication_factor_change=True, topics=(topic,)
        )
    )
    assert int(answer.error_code) == NONE
    return int(answer.responses[0].partitions[0].error_code)


def test_nothing_moves_and_nothing_can(connection: RawConnection) -> None:
    assert reassign(connection, (1,)) == NONE
    assert reassign(connection, (2,)) == INVALID_REPLICA_ASSIGNMENT
    request = schema(46, 0).ListPartitionReassignmentsRequest(timeout=WAIT, topics=None)
    answer = connection.call(request)
    assert (int(answer.error_code), answer.topics) == (NONE, ())


@pytest.mark.parametrize("election", [0, 1], ids=["preferred", "unclean"])
def test_no_election_is_needed(connection: RawConnection, election: int) -> None:
    module = schema(43, 2)
    asked = module.TopicPartitions(topic="t", partitions=(0, 1))
    request = module.ElectLeadersRequest(election_type=election, topic_partitions=(asked,), timeout=WAIT)
    answer = connection.call(request)
    told = [int(one.error_code) for one in answer.replica_election_results[0].partition_result]
    assert told == [ELECTION_NOT_NEEDED, ELECTION_NOT_NEEDED]


def test_the_only_broker_stays_registered(connection: RawConnection) -> None:
    module = schema(64, 0)
    answer = connection.call(module.UnregisterBrokerRequest(broker_id=7))
    assert int(answer.error_code) == BROKER_ID_NOT_REGISTERED
    answer = connection.call(module.UnregisterBrokerRequest(broker_id=1))
    assert int(answer.error_code) == INVALID_REQUEST
    assert answer.error_message == "The only node of its cluster is registered while it runs."
    assert int(produce(connection, "t", 0, batch([b"x"])).error_code) == NONE


@pytest.mark.java
def test_kafkas_tools_tell_the_same(node: Node) -> None:
    lines = tool(QUORUM, "--bootstrap-server", node.bootstrap, "describe", "--status").splitlines()
    status = dict(line.split(":", 1) for line in lines if ":" in line)
    assert (int(status["LeaderId"]), int(status["MaxFollowerLag"])) == (1, 0)
