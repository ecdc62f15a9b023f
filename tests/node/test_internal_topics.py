"""`__consumer_offsets` and others: created when they are needed, with their own settings, write-protected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.client.blocking_client import BlockingClient
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.support.wire import RawConnection, schema

OFFSETS = "__consumer_offsets"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeThread]:
    node = NodeThread(tmp_path / "data", offsets_topic_num_partitions="3", auto_create_topics_enable="false")
    node.start()
    yield node
    node.stop()
    assert node.failure is None


@pytest.fixture
def talk(node: NodeThread) -> Iterator[Talk]:
    with node.client() as client:
        yield Talk(client)


def find(talk: Talk, *keys: str, key_type: int = 0) -> Any:
    return talk(
        ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", key_type=key_type, coordinator_keys=keys
    ).coordinators


def metadata(talk: Talk, name: str, *, create: bool) -> Any:
    module = request_module(ApiKey.METADATA)
    return talk(
        ApiKey.METADATA,
        "MetadataRequest",
        topics=(module.MetadataRequestTopic(topic_id=None, name=name),),
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=False,
    ).topics[0]


def configs(talk: Talk, topic: str) -> dict[str, str]:
    module = request_module(ApiKey.DESCRIBE_CONFIGS)
    answer = talk(
        ApiKey.DESCRIBE_CONFIGS,
        "DescribeConfigsRequest",
        resources=(
            module.DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=None),
        ),
        include_synonyms=False,
        include_documentation=False,
    ).results[0]
    return {one.name: one.value for one in answer.configs}


def test_finding_a_coordinator_makes_the_topic_whatever_clients_may_create(
    node: NodeThread, talk: Talk
) -> None:
    assert metadata(talk, OFFSETS, create=False).error_code is ErrorCode.unknown_topic_or_partition
    found = find(talk, "a", "b", "")
    assert [(one.key, one.error_code, one.node_id, one.host, one.port) for one in found] == [
        (key, ErrorCode.none, 1, node.host, node.port) for key in ("a", "b", "")
    ]
    topic = metadata(talk, OFFSETS, create=False)
    assert (topic.error_code, len(topic.partitions), topic.is_internal) == (ErrorCode.none, 3, True)
    settings = configs(talk, OFFSETS)
    assert settings["cleanup.policy"] == "compact"
    assert settings["compression.type"] == "producer"
    assert settings["segment.bytes"] == "104857600"


def test_finding_a_transactions_coordinator_makes_its_topic(node: NodeThread, talk: Talk) -> None:
    found = find(talk, "a", "b", key_type=1)
    assert [(one.key, one.error_code, one.node_id, one.host, one.port) for one in found] == [
        (key, ErrorCode.none, 1, node.host, node.port) for key in ("a", "b")
    ]
    topic = metadata(talk, "__transaction_state", create=False)
    assert (topic.error_code, len(topic.partitions), topic.is_internal) == (ErrorCode.none, 50, True)
    settings = configs(talk, "__transaction_state")
    assert settings["cleanup.policy"] == "compact"
    assert settings["compression.type"] == "uncompressed"
    assert settings["min.insync.replicas"] == "1"
    assert settings["segment.bytes"] == "104857600"
    assert settings["unclean.leader.election.enable"] == "false"
    module = request_module(ApiKey.CREATE_PARTITIONS)
    more = module.CreatePartitionsTopic(name="__transaction_state", count=60, assignments=None)
    refused = talk(
        ApiKey.CREATE_PARTITIONS, "CreatePartitionsRequest", topics=(more,), timeout=1000, validate_only=False
    )
    assert [one.error_code for one in refused.results] == [ErrorCode.invalid_partitions]


@pytest.mark.parametrize(
    ("key_type", "error"),
    [(2, "unsupported_version"), (3, "invalid_request")],
)
def test_other_coordinators_are_not_there(talk: Talk, key_type: int, error: str) -> None:
    [found] = find(talk, "a", key_type=key_type)
    assert (found.error_code.name, found.node_id, found.host, found.port) == (error, -1, "", -1)
    assert metadata(talk, OFFSETS, create=False).error_code is ErrorCode.unknown_topic_or_partition


def test_metadata_makes_it_with_its_own_settings_where_clients_may_create(tmp_path: Path) -> None:
    node = NodeThread(tmp_path / "data", offsets_topic_num_partitions="4", num_partitions="2").start()
    try:
        with node.client() as client:
            talk = Talk(client)
            assert metadata(talk, OFFSETS, create=False).error_code is ErrorCode.unknown_topic_or_partition
            assert len(metadata(talk, OFFSETS, create=True).partitions) == 4
            assert len(metadata(talk, "ordinary", create=True).partitions) == 2
            assert metadata(talk, "a/b", create=True).error_code is ErrorCode.invalid_topic_exception
            other = metadata(talk, "__transaction_state", create=True)
            assert other.error_code is ErrorCode.unknown_topic_or_partition
    finally:
        node.stop()


def test_more_replicas_than_brokers_are_not_made_where_they_are_asked_for(tmp_path: Path) -> None:
    node = NodeThread(tmp_path / "data", offsets_topic_replication_factor="3").start()
    try:
        with node.client() as client:
            [found] = find(Talk(client), "a")
            assert found.error_code is ErrorCode.coordinator_not_available
            assert "replicate the partition 3 time(s)" in found.error_message
    finally:
        node.stop()


def test_the_offsets_topic_keeps_its_settings_and_size(talk: Talk) -> None:
    find(talk, "a")
    module = request_module(ApiKey.CREATE_PARTITIONS)
    grown = talk(
        ApiKey.CREATE_PARTITIONS,
        "CreatePartitionsRequest",
        topics=(module.CreatePartitionsTopic(name=OFFSETS, count=5, assignments=None),),
        timeout=5000,
        validate_only=False,
    ).results[0]
    assert grown.error_code is ErrorCode.invalid_partitions
    module = request_module(ApiKey.DELETE_RECORDS)
    deleted = talk(
        ApiKey.DELETE_RECORDS,
        "DeleteRecordsRequest",
        topics=(
            module.DeleteRecordsTopic(
                name=OFFSETS, partitions=(module.DeleteRecordsPartition(partition_index=0, offset=0),)
            ),
        ),
        timeout=5000,
    )
    assert deleted.topics[0].partitions[0].error_code is ErrorCode.invalid_topic_exception


def test_clients_do_not_write_to_it_but_for_the_administrators(node: NodeThread, talk: Talk) -> None:
    find(talk, "a")
    topic_id = talk.topic_id(OFFSETS)
    assert talk.produce(topic_id, [b"x"], 1).error_code is ErrorCode.invalid_topic_exception
    with BlockingClient(node.host, node.port, "__admin_client", timeout_s=20) as client:
        answer = Talk(client).produce(topic_id, [b"x"], 1)
        assert answer.error_code is ErrorCode.invalid_record, "only because the topic wants keys"


def test_the_oldest_clients_ask_for_one_coordinator(node: NodeThread) -> None:
    for version in (0, 3):
        with RawConnection(f"{node.host}:{node.port}") as connection:
            answer = connection.call(schema(ApiKey.FIND_COORDINATOR, version).FindCoordinatorRequest(key="a"))
            assert (answer.error_code, answer.node_id, answer.port) == (ErrorCode.none, 1, node.port)
