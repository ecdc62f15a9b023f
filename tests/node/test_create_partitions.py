"""CreatePartitions against a whole node: topics grow, and never shrink."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import SystemClock
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.test_topics_and_configs import metadata

OK = ErrorCode.none
NOW_MS = SystemClock().now_ms()
BAD_COUNT = ErrorCode.invalid_partitions
BAD_REPLICAS = ErrorCode.invalid_replica_assignment

Asked = tuple[str, int, tuple[tuple[int, ...], ...] | None]


def grow(talk: Talk, *asked: Asked, validate_only: bool = False) -> list[tuple[str, ErrorCode, str | None]]:
    module = request_module(ApiKey.CREATE_PARTITIONS)
    topics = []
    for name, count, assignments in asked:
        chosen = None
        if assignments is not None:
            chosen = tuple(module.CreatePartitionsAssignment(broker_ids=one) for one in assignments)
        topics.append(module.CreatePartitionsTopic(name=name, count=count, assignments=chosen))
    answer = talk(
        ApiKey.CREATE_PARTITIONS,
        "CreatePartitionsRequest",
        topics=tuple(topics),
        timeout=20_000,
        validate_only=validate_only,
    )
    return [(one.name, one.error_code, one.error_message) for one in answer.results]


def partitions(talk: Talk, name: str) -> list[int]:
    (topic,) = metadata(talk, name)
    return sorted(one.partition_index for one in topic.partitions)


def test_a_topic_grows_and_what_is_new_can_be_used_at_once(talk: Talk) -> None:
    topic_id = talk.create("t", partitions=2).topic_id
    assert talk.produce(topic_id, [b"old"], NOW_MS, partition=1).base_offset == 0
    assert grow(talk, ("t", 5, None)) == [("t", OK, None)]
    assert partitions(talk, "t") == [0, 1, 2, 3, 4]
    for index, offset in ((1, 1), (2, 0), (4, 0)):
        answer = talk.produce(topic_id, [b"new"], NOW_MS, partition=index)
        assert (answer.error_code, answer.base_offset) == (OK, offset)
    assert talk.topic_id("t") == topic_id


def test_validated_partitions_are_not_created(talk: Talk) -> None:
    talk.create("t", partitions=2)
    assert grow(talk, ("t", 5, None), ("t2", 1, None), validate_only=True) == [
        ("t", OK, None),
        ("t2", ErrorCode.unknown_topic_or_partition, None),
    ]
    assert partitions(talk, "t") == [0, 1]


@pytest.mark.parametrize(
    ("count", "assignments", "error", "words"),
    [
        (2, None, BAD_COUNT, "Topic already has 2 partition(s)."),
        (1, None, BAD_COUNT, "The topic t currently has 2 partition(s); 1 would not be an increase."),
        (0, None, BAD_COUNT, "The topic t currently has 2 partition(s); 0 would not be an increase."),
        (-1, None, BAD_COUNT, "The topic t currently has 2 partition(s); -1 would not be an increase."),
        (2, ((7,),), BAD_COUNT, "Topic already has 2 partition(s)."),
        (
            4,
            ((1,),),
            BAD_REPLICAS,
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (3, ((),), BAD_REPLICAS, "The manual partition assignment includes an empty replica list."),
        (
            3,
            ((7,),),
            BAD_REPLICAS,
            "The manual partition assignment includes broker 7, but no such broker is registered.",
        ),
        (3, ((1, 1),), BAD_REPLICAS, "The manual partition assignment includes the broker 1 more than once."),
        (3, ((1,),), OK, None),
    ],
)
def test_impossible_requests_are_refused_as_by_kafka(
    talk: Talk, count: int, assignments: Any, error: ErrorCode, words: str | None
) -> None:
    talk.create("t", partitions=2)
    assert grow(talk, ("t", count, assignments)) == [("t", error, words)]
    assert partitions(talk, "t") == list(range(count if error is OK else 2))


def test_a_topic_that_is_named_twice_is_refused_once_and_others_grow(talk: Talk) -> None:
    for name in ("a", "b"):
        talk.create(name)
    assert grow(talk, ("a", 2, None), ("b", 2, None), ("a", 3, None)) == [
        ("a", ErrorCode.invalid_request, "Duplicate topic name."),
        ("b", OK, None),
    ]
    assert (partitions(talk, "a"), partitions(talk, "b")) == ([0], [0, 1])


@pytest.mark.parametrize("count", [10_002, (1 << 31) - 1])
def test_more_than_an_operation_may_write_is_refused_before_anything_is_made(talk: Talk, count: int) -> None:
    for name in ("a", "b"):
        talk.create(name)
    assert [code for _, code, _ in grow(talk, ("a", 2, None), ("b", count, None))] == [
        ErrorCode.policy_violation
    ] * 2
    assert partitions(talk, "a") == [0]


def test_hundreds_of_partitions_are_there_when_the_answer_is(talk: Talk) -> None:
    talk.create("t")
    assert grow(talk, ("t", 501, None))[0][1] is OK
    assert partitions(talk, "t") == list(range(501))
    topic_id = talk.topic_id("t")
    assert talk.produce(topic_id, [b"x"], NOW_MS, partition=500).error_code == OK


def test_more_than_descriptors_carry_is_refused(start: Callable[..., NodeThread]) -> None:
    with start(open_files=1000).client() as client:
        talk = Talk(client)
        talk.create("t")
        ((_, error, words),) = grow(talk, ("t", 5000, None))
    assert error is ErrorCode.policy_violation
    assert words is not None
    assert "RLIMIT_NOFILE" in words


def test_grown_topics_survive_a_restart_and_go_as_a_whole(
    start: Callable[..., NodeThread], tmp_path: Path
) -> None:
    (tmp_path / "bucket").mkdir()
    settings = {"firn_remote_url": f"file://{tmp_path}/bucket"}
    node = start(**settings)
    with node.client() as client:
        talk = Talk(client)
        talk.create("t", remote_storage_enable="true")
        assert grow(talk, ("t", 3, None)) == [("t", OK, None)]
    node.stop()
    node = start(**settings)
    with node.client() as client:
        talk = Talk(client)
        assert partitions(talk, "t") == [0, 1, 2]
        module = request_module(ApiKey.DELETE_TOPICS)
        state = module.DeleteTopicState(name=None, topic_id=talk.topic_id("t"))
        answer = talk(ApiKey.DELETE_TOPICS, "DeleteTopicsRequest", topics=(state,), timeout=20_000)
        assert answer.responses[0].error_code == OK
        assert not [path for path in node.data.glob("t-*") if not path.name.endswith("-delete")]
