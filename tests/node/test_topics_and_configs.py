"""Topics, their metadata and their settings, as a client of a whole node sees them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk


def metadata(talk: Talk, *names: str, create: bool = False, ids: tuple[uuid.UUID, ...] = ()) -> Any:
    module = request_module(ApiKey.METADATA)
    topics = [module.MetadataRequestTopic(topic_id=None, name=name) for name in names]
    topics += [module.MetadataRequestTopic(topic_id=one, name=None) for one in ids]
    return talk(
        ApiKey.METADATA,
        "MetadataRequest",
        topics=tuple(topics) if topics else None,
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=True,
    ).topics


def test_a_created_topic_is_there_when_the_answer_is(talk: Talk) -> None:
    created = talk.create("flights", 3, retention_ms="-1")
    assert (created.error_code, created.num_partitions, created.replication_factor) == (0, 3, 1)
    assert {c.name: c.value for c in created.configs}["retention.ms"] == "-1"
    (topic,) = metadata(talk, "flights")
    assert topic.topic_id == created.topic_id
    assert [(p.partition_index, p.leader_id, p.isr_nodes) for p in topic.partitions] == [
        (n, 1, (1,)) for n in range(3)
    ]
    assert topic.topic_authorized_operations == 3576


def test_metadata_says_why_a_topic_is_missing(talk: Talk) -> None:
    unknown, invalid = metadata(talk, "nobody", "not a name")
    assert unknown.error_code == ErrorCode.unknown_topic_or_partition
    assert invalid.error_code == ErrorCode.invalid_topic_exception
    (by_id,) = metadata(talk, ids=(uuid.UUID(int=99),))
    assert by_id.error_code == ErrorCode.unknown_topic_id


def test_metadata_creates_a_topic_only_when_it_is_allowed_to(
    start: Callable[..., NodeThread],
) -> None:
    with start(num_partitions="4").client() as client:
        talk = Talk(client)
        assert metadata(talk, "new")[0].error_code == ErrorCode.unknown_topic_or_partition
        (topic,) = metadata(talk, "new", create=True)
        assert (topic.error_code, len(topic.partitions)) == (0, 4)
        assert metadata(talk, "not a name", create=True)[0].error_code == ErrorCode.invalid_topic_exception
        assert [t.name for t in metadata(talk)] == ["new"]


def test_describe_topic_partitions_goes_page_by_page(talk: Talk) -> None:
    for name, partitions in (("a", 2), ("b", 3), ("c", 1)):
        talk.create(name, partitions)
    module = request_module(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    pages, cursor = [], None
    while True:
        answer = talk(
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            "DescribeTopicPartitionsRequest",
            topics=(),
            response_partition_limit=2,
            cursor=cursor,
        )
        pages.append([(t.name, [p.partition_index for p in t.partitions]) for t in answer.topics])
        if answer.next_cursor is None:
            break
        at = answer.next_cursor
        cursor = module.Cursor(topic_name=at.topic_name, partition_index=at.partition_index)
    assert pages == [[("a", [0, 1])], [("b", [0, 1])], [("b", [2]), ("c", [0])]]


def test_a_cursor_outside_the_topics_asked_for_is_invalid(talk: Talk) -> None:
    talk.create("a")
    module = request_module(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    answer = talk(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        "DescribeTopicPartitionsRequest",
        topics=(module.TopicRequest(name="a"),),
        response_partition_limit=10,
        cursor=module.Cursor(topic_name="b", partition_index=0),
    )
    assert [t.error_code for t in answer.topics] == [ErrorCode.invalid_request]


def alter(talk: Talk, name: str, *changes: tuple[str, int, str | None], kind: int = 2) -> Any:
    module = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    configs = tuple(
        module.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    )
    resource = module.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return talk(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        "IncrementalAlterConfigsRequest",
        resources=(resource,),
        validate_only=False,
    ).responses[0]


def described(talk: Talk, name: str, *keys: str, kind: int = 2) -> dict[str, str]:
    module = request_module(ApiKey.DESCRIBE_CONFIGS)
    resource = module.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys or None
    )
    (result,) = talk(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigsRequest", resources=(resource,)).results
    assert result.error_code == 0, result.error_message
    return {entry.name: entry.value for entry in result.configs}


def test_an_altered_setting_holds_at_once(talk: Talk) -> None:
    talk.create("t")
    topic_id = talk.topic_id("t")
    assert talk.produce(topic_id, [b"x" * 2000], 1_700_000_000_000).error_code == 0
    assert alter(talk, "t", ("max.message.bytes", 0, "1000")).error_code == 0
    assert described(talk, "t", "max.message.bytes") == {"max.message.bytes": "1000"}
    refused = talk.produce(topic_id, [b"x" * 2000], 1_700_000_000_000)
    assert refused.error_code == ErrorCode.message_too_large
    assert alter(talk, "t", ("max.message.bytes", 1, None)).error_code == 0
    assert described(talk, "t", "max.message.bytes") == {"max.message.bytes": "1048588"}
    assert talk.produce(topic_id, [b"x" * 2000], 1_700_000_000_000).error_code == 0


def test_a_setting_that_cannot_be_changes_nothing(talk: Talk) -> None:
    talk.create("t")
    before = described(talk, "t")
    for change in (
        ("cleanup.policy", 0, "compacted"),
        ("retention.ms", 0, "soon"),
        ("no.such.key", 0, "1"),
        ("remote.storage.enable", 0, "true"),
    ):
        answer = alter(talk, "t", ("segment.ms", 0, "1234"), change)
        assert answer.error_code == ErrorCode.invalid_config, change
        assert answer.error_message
    assert described(talk, "t") == before


def test_a_broker_describes_only_its_own_settings(talk: Talk) -> None:
    assert described(talk, "1", "node.id", kind=4) == {"node.id": "1"}
    module = request_module(ApiKey.DESCRIBE_CONFIGS)
    for kind, name in ((4, "2"), (8, "2"), (16, "1"), (2, "nobody")):
        resource = module.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None
        )
        (result,) = talk(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigsRequest", resources=(resource,)).results
        assert result.error_code in (ErrorCode.invalid_request, ErrorCode.unknown_topic_or_partition)


def delete(talk: Talk, *names: str) -> list[int]:
    module = request_module(ApiKey.DELETE_TOPICS)
    topics = tuple(module.DeleteTopicState(name=name, topic_id=None) for name in names)
    answer = talk(ApiKey.DELETE_TOPICS, "DeleteTopicsRequest", topics=topics, timeout=1000)
    return [one.error_code for one in answer.responses]


def test_a_recreated_topic_has_nothing_of_its_predecessor(talk: Talk) -> None:
    talk.create("t")
    old = talk.topic_id("t")
    talk.produce(old, [b"old"], 1_700_000_000_000)
    assert delete(talk, "t") == [0]
    assert delete(talk, "t") == [ErrorCode.unknown_topic_or_partition]
    talk.create("t")
    new = talk.topic_id("t")
    assert new != old
    assert talk.fetch(old, 0).error_code == ErrorCode.unknown_topic_id
    answer = talk.fetch(new, 0)
    assert (answer.error_code, answer.high_watermark, answer.records or b"") == (0, 0, b"")


def test_metadata_survives_a_restart(start: Callable[..., NodeThread]) -> None:
    node = start()
    with node.client() as client:
        talk = Talk(client)
        topic_id = talk.create("t", 2, retention_ms="-1").topic_id
        assert talk.produce(topic_id, [b"a", b"b"], 1_700_000_000_000).base_offset == 0
    node.stop()
    assert node.failure is None
    with start().client() as client:
        talk = Talk(client)
        assert talk.topic_id("t") == topic_id
        assert described(talk, "t", "retention.ms") == {"retention.ms": "-1"}
        assert talk.produce(topic_id, [b"c"], 1_700_000_000_000).base_offset == 2
