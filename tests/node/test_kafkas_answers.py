"""Answers that Apache Kafka 4.3.1 gave, from a whole node, byte by byte of the old versions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.metadata.controller.requests import ResourceType
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.test_topics_and_configs import alter
from tests.support.batches import batch
from tests.support.wire import RawConnection, end_offset, schema

BROKER = int(ResourceType.BROKER)
SET, APPEND = 0, 2


@pytest.fixture
def node(start: Callable[..., NodeThread]) -> str:
    """host:port of a node with a topic "t"."""
    node = start()
    with node.client() as client:
        Talk(client).create("t")
    return f"{node.host}:{node.port}"


@pytest.mark.parametrize("version", [8, 9, 10])
def test_metadata_tells_what_may_be_done_on_the_cluster_where_it_is_asked(node: str, version: int) -> None:
    with RawConnection(node) as connection:
        for asked, told in ((True, 8096), (False, -(2**31))):
            request = schema(3, version).MetadataRequest(
                topics=(),
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=False,
                include_cluster_authorized_operations=asked,
            )
            assert connection.call(request).cluster_authorized_operations == told


GOOD, OTHER = batch([b"a"]), batch([b"b", b"c"])
CORRUPT = OTHER[:-1] + b"x"


@pytest.mark.parametrize("in_one_topic", [True, False])
@pytest.mark.parametrize(
    ("records", "error", "end"),
    [
        ((GOOD, OTHER), ErrorCode.none, 2),
        ((None, OTHER), ErrorCode.none, 2),
        ((CORRUPT, OTHER), ErrorCode.none, 2),
        ((GOOD, CORRUPT), ErrorCode.corrupt_message, 0),
    ],
)
def test_a_partition_named_twice_counts_once_with_what_came_last(
    node: str, records: tuple[bytes | None, ...], error: ErrorCode, end: int, in_one_topic: bool
) -> None:
    module = schema(0, 9)
    parts = [module.PartitionProduceData(index=0, records=one) for one in records]
    together = [tuple(parts)] if in_one_topic else [(part,) for part in parts]
    request = module.ProduceRequest(
        acks=1,
        timeout=timedelta(seconds=10),
        topic_data=tuple(module.TopicProduceData(name="t", partition_data=one) for one in together),
    )
    with RawConnection(node) as connection:
        (topic,) = connection.call(request).responses
        (answer,) = topic.partition_responses
    assert (answer.index, answer.error_code, answer.base_offset) == (0, error, 0 if end else -1)
    assert end_offset(node, "t", 0) == end


def test_partitions_that_are_named_once_keep_their_order(start: Callable[..., NodeThread]) -> None:
    node = start()
    with node.client() as client:
        Talk(client).create("a", 2)
        Talk(client).create("b", 2)
    module = schema(0, 9)
    named = [("b", (1, 0)), ("a", (0, 1))]
    request = module.ProduceRequest(
        acks=1,
        timeout=timedelta(seconds=10),
        topic_data=tuple(
            module.TopicProduceData(
                name=name,
                partition_data=tuple(module.PartitionProduceData(index=n, records=GOOD) for n in indexes),
            )
            for name, indexes in named
        ),
    )
    with RawConnection(f"{node.host}:{node.port}") as connection:
        answers = connection.call(request).responses
    assert [(t.name, tuple(p.index for p in t.partition_responses)) for t in answers] == named


def test_a_topic_that_asks_for_more_replicas_than_it_has_is_content_with_those(talk: Talk) -> None:
    topic_id = talk.create("strict", min_insync_replicas="3").topic_id
    assert talk.produce(topic_id, [b"a"], 1_700_000_000_000).error_code == 0


@pytest.mark.parametrize("broker", ["1", ""])
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            ("log.segment.bytes", SET, "x"),
            ErrorCode.invalid_request,
            "Invalid value x for configuration log.segment.bytes: Not a number of type INT",
        ),
        (
            ("log.segment.bytes", SET, "1"),
            ErrorCode.invalid_request,
            "Invalid value 1 for configuration log.segment.bytes: Value must be at least 1048576",
        ),
        (
            ("log.dirs", SET, "/x"),
            ErrorCode.invalid_request,
            "Cannot update these configs dynamically: [log.dirs]",
        ),
        (
            ("log.retention.ms", APPEND, "5"),
            ErrorCode.invalid_config,
            "Config value append is not allowed for config key: log.retention.ms",
        ),
    ],
)
def test_a_brokers_setting_that_cannot_be_is_an_invalid_request(
    talk: Talk, broker: str, change: tuple[str, int, str], error: ErrorCode, message: str
) -> None:
    answer: Any = alter(talk, broker, change, kind=BROKER)
    assert (answer.error_code, answer.error_message) == (error, message)


def test_an_unknown_setting_of_a_broker_is_refused_where_kafka_keeps_it(talk: Talk) -> None:
    """Kafka takes any name for a custom one; here a key that has no effect is never accepted."""
    answer = alter(talk, "1", ("no.such.key", SET, "1"), kind=BROKER)
    assert answer.error_code == ErrorCode.invalid_request
    assert "no.such.key" in answer.error_message


@pytest.mark.parametrize("kind", [BROKER, int(ResourceType.BROKER_LOGGER)])
@pytest.mark.parametrize("name", [" 1", "1 ", "1_0", "x", "\u0661", "0x1", "1" * 11])
def test_a_broker_s_name_is_a_number_as_java_reads_one(talk: Talk, name: str, kind: int) -> None:
    """What Python alone takes for a number would be kept under a name that nobody reads."""
    change = ("log.cleaner.backoff.ms", SET, "1") if kind == BROKER else ("root", SET, "INFO")
    answer = alter(talk, name, change, kind=kind)
    assert answer.error_code == ErrorCode.invalid_request
    assert answer.error_message == f"Node id must be an integer, but it is: {name}"
    found = describe(talk, kind, name)
    assert (found.error_code, found.error_message) == (
        ErrorCode.invalid_request,
        f"Broker id must be an integer, but it is: {name}",
    )


@pytest.mark.parametrize("name", ["01", "+1"])
def test_another_way_to_write_a_broker_s_id_is_described_and_never_altered(talk: Talk, name: str) -> None:
    """Kafka keeps such a setting, where no broker ever looks."""
    answer = alter(talk, name, ("log.cleaner.backoff.ms", SET, "1"), kind=BROKER)
    assert answer.error_code == ErrorCode.invalid_request
    assert describe(talk, BROKER, name, "node.id").configs[0].value == "1"


def describe(talk: Talk, kind: int, name: str, *keys: str) -> Any:
    module = request_module(ApiKey.DESCRIBE_CONFIGS)
    asked = module.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys or None
    )
    (result,) = talk(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigsRequest", resources=(asked,)).results
    return result


@pytest.mark.parametrize(("name", "error"), [("t", 0), ("nobody", ErrorCode.unknown_topic_or_partition)])
def test_settings_that_need_no_words_come_with_an_empty_message(talk: Talk, name: str, error: int) -> None:
    talk.create("t")
    found = describe(talk, 2, name)
    assert (found.error_code, found.error_message) == (error, "")


def test_a_list_that_has_no_effect_here_is_refused_with_the_reason(talk: Talk) -> None:
    talk.create("t")
    answer = alter(talk, "1", ("metric.reporters", APPEND, "some.Reporter"), kind=BROKER)
    assert answer.error_code == ErrorCode.invalid_config
    assert "/metrics" in answer.error_message
    unknown = alter(talk, "t", ("no.such", APPEND, "1"))
    assert unknown.error_message == "Can't APPEND to key no.such because its type is not LIST."


def test_producers_of_a_partition_that_is_missing(talk: Talk) -> None:
    talk.create("t")
    module = request_module(ApiKey.DESCRIBE_PRODUCERS)
    topics = tuple(module.TopicRequest(name=name, partition_indexes=(7,)) for name in ("t", "nobody"))
    answer = talk(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducersRequest", topics=topics)
    assert [(p.error_code, p.error_message) for t in answer.topics for p in t.partitions] == [
        (ErrorCode.unknown_topic_or_partition, None),
        (ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition."),
    ]


def test_a_cursor_that_is_none_of_ours_tells_nothing_of_what_may_be_done(talk: Talk) -> None:
    talk.create("a")
    module = request_module(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    answer = talk(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        "DescribeTopicPartitionsRequest",
        topics=(module.TopicRequest(name="a"),),
        response_partition_limit=10,
        cursor=module.Cursor(topic_name="a", partition_index=-1),
    )
    assert [(t.error_code, t.topic_authorized_operations) for t in answer.topics] == [
        (ErrorCode.invalid_request, -(2**31))
    ]
