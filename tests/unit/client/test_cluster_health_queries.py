"""Requests for the health of a cluster: partitions page by page, settings of few topics, each once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.admin import Cluster
from service.client.cluster_health import MetadataReplica, PartitionProblem, ReassignmentInfo
from service.client.cluster_health_queries import ask_moving, ask_partitions, ask_quorum
from service.wire.api import ApiKey, response_module
from service.wire.errors import MalformedMessage

TOPICS = response_module(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
QUORUM = response_module(ApiKey.DESCRIBE_QUORUM)
MOVING = response_module(ApiKey.LIST_PARTITION_REASSIGNMENTS)
NONE = ErrorCode.none
ALL, SHORT = (1, 2, 3), (1, 2)
Told = tuple[str, int, tuple[int, ...]]
"""Topic, partition, ISR of `ALL`."""


class First:
    """The node that is asked. `settings` are `min.insync.replicas` of the topics that are still there."""

    def __init__(self, settings: Mapping[str, str], answers: Mapping[int, Any]) -> None:
        self.settings = settings
        self.answers = answers
        self.asked: list[list[str]] = []

    def serves(self, key: int) -> bool:
        return key in self.answers

    def request(self, key: int, message: Any, *, timeout_s: float = 0) -> Any:
        assert (timeout_s == 5) == (key in self.answers), "what controllers answer may never come"
        if key in self.answers:
            return self.answers[key]
        assert key == ApiKey.DESCRIBE_CONFIGS
        assert {one.configuration_keys for one in message.resources} == {("min.insync.replicas",)}
        names = [one.resource_name for one in message.resources]
        self.asked.append(names)
        return SimpleNamespace(results=[self._result(name) for name in names])

    def _result(self, name: str) -> Any:
        if name not in self.settings:
            code = ErrorCode.unknown_topic_or_partition
            return SimpleNamespace(resource_name=name, error_code=code, configs=())
        config = SimpleNamespace(name="min.insync.replicas", value=self.settings[name])
        return SimpleNamespace(resource_name=name, error_code=NONE, configs=(config,))


class Paged:
    """A cluster whose partitions come in these pages."""

    def __init__(
        self, *pages: Sequence[Told], settings: Mapping[str, str] = {}, answers: Mapping[int, Any] = {}
    ) -> None:
        self.first = First(settings, answers)
        self._pages = pages

    def described(self, names: Sequence[str], at_once: int) -> Iterator[Sequence[Any]]:
        for page in self._pages:
            yield [_topic(*one) for one in page]


def _topic(name: str, number: int, isr: tuple[int, ...]) -> Any:
    one = TOPICS.DescribeTopicPartitionsResponsePartition(
        error_code=NONE, partition_index=number, leader_id=isr[0] if isr else -1, leader_epoch=1,
        replica_nodes=ALL, isr_nodes=isr,
    )  # fmt: skip
    return TOPICS.DescribeTopicPartitionsResponseTopic(
        error_code=NONE, name=name, topic_id=UUID(int=1), is_internal=False, partitions=(one,),
        topic_authorized_operations=0,
    )  # fmt: skip


def as_cluster(found: Paged) -> Cluster:
    return cast("Cluster", found)


def test_settings_are_asked_of_topics_that_lack_replicas_and_once() -> None:
    found = Paged(
        [("a", 0, ALL), ("b", 0, SHORT), ("c", 0, SHORT)],
        [("c", 1, SHORT), ("c", 2, ALL)],
        [],
        [("d", 0, SHORT), ("e", 0, ())],
        settings={"b": "2", "c": "3", "e": "1"},
    )
    told = ask_partitions(as_cluster(found), (), 10)
    assert found.first.asked == [["b", "c"], ["d", "e"]]
    assert (told.topics, told.partitions) == (5, 7)
    assert [(one.what, one.topic, one.state.partition, one.min_isr) for one in told.ill] == [
        (PartitionProblem.OFFLINE, "e", 0, 1),
        (PartitionProblem.UNDER_MIN_ISR, "c", 0, 3),
        (PartitionProblem.UNDER_MIN_ISR, "c", 1, 3),
        (PartitionProblem.UNDER_REPLICATED, "b", 0, 2),
        (PartitionProblem.UNDER_REPLICATED, "d", 0, 1),
    ]


def test_a_whole_cluster_is_asked_for_no_settings() -> None:
    found = Paged([("a", 0, ALL)], [("a", 1, ALL)])
    assert ask_partitions(as_cluster(found), (), 10).ill_in_all == 0
    assert found.first.asked == []


def a_replica(node: int, directory: UUID | None, end: int, at: int) -> Any:
    return QUORUM.ReplicaState(
        replica_id=node, replica_directory_id=directory, log_end_offset=end, last_fetch_timestamp=at,
        last_caught_up_timestamp=at,
    )  # fmt: skip


def an_answer(code: ErrorCode, *topics: Any, of_partition: ErrorCode = NONE) -> Any:
    partition = QUORUM.PartitionData(
        partition_index=0, error_code=of_partition, error_message=None, leader_id=1, leader_epoch=3,
        high_watermark=9, current_voters=(a_replica(2, UUID(int=0), -1, -1), a_replica(1, UUID(int=5), 9, 7)),
        observers=(a_replica(3, None, 8, 6),),
    )  # fmt: skip
    topic = QUORUM.TopicData(topic_name="__cluster_metadata", partitions=(partition,))
    listener = QUORUM.Listener(name="CONTROLLER", host="a", port=9093)
    return QUORUM.DescribeQuorumResponse(
        error_code=code, error_message=None, topics=topics or (topic,),
        nodes=(QUORUM.Node(node_id=1, listeners=(listener,)),),
    )  # fmt: skip


def test_the_quorum_is_told_in_order_and_what_is_not_known_is_none() -> None:
    found = Paged(answers={ApiKey.DESCRIBE_QUORUM: an_answer(NONE)})
    told = ask_quorum(as_cluster(found))
    assert told is not None
    assert (told.leader, told.epoch, told.high_watermark) == (1, 3, 9)
    assert told.voters == (
        MetadataReplica(1, str(UUID(int=5)), 9, 7, 7),
        MetadataReplica(2, None, None, None, None),
    )
    assert told.observers == (MetadataReplica(3, None, 8, 6, 6),)
    assert told.listeners == {1: (("CONTROLLER", "a", 9093),)}


def test_a_quorum_that_refuses_is_an_error_and_a_node_alone_has_none() -> None:
    refused = ErrorCode.not_leader_or_follower
    for answer in (an_answer(refused), an_answer(NONE, of_partition=refused)):
        found = Paged(answers={ApiKey.DESCRIBE_QUORUM: answer})
        with pytest.raises(RequestError, match="the quorum: NOT_LEADER_OR_FOLLOWER"):
            ask_quorum(as_cluster(found))
    empty = an_answer(NONE, QUORUM.TopicData(topic_name="__cluster_metadata", partitions=()))
    with pytest.raises(MalformedMessage):
        ask_quorum(as_cluster(Paged(answers={ApiKey.DESCRIBE_QUORUM: empty})))
    assert ask_quorum(as_cluster(Paged())) is None
    assert ask_moving(as_cluster(Paged())) == ()


def test_reassignments_are_listed_in_order() -> None:
    def moving(name: str, *numbers: int) -> Any:
        return MOVING.OngoingTopicReassignment(
            name=name,
            partitions=tuple(
                MOVING.OngoingPartitionReassignment(
                    partition_index=n, replicas=(1, 2), adding_replicas=(2,), removing_replicas=(1,)
                )
                for n in numbers
            ),
        )

    answer = MOVING.ListPartitionReassignmentsResponse(
        throttle_time=timedelta(0), error_code=NONE, error_message=None,
        topics=(moving("b", 1, 0), moving("a", 5)),
    )  # fmt: skip
    found = ask_moving(as_cluster(Paged(answers={ApiKey.LIST_PARTITION_REASSIGNMENTS: answer})))
    assert found == tuple(
        ReassignmentInfo(topic, n, (1, 2), (2,), (1,)) for topic, n in (("a", 5), ("b", 0), ("b", 1))
    )
