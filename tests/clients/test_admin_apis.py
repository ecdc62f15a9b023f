"""The rest of what admin clients ask: settings, producers, directories, offsets, epochs; by name and id."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import aiokafka.admin
import confluent_kafka
import kafka
import kafka.admin
import kafka.errors
import pytest
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioResourceType
from confluent_kafka import admin as confluent_admin

from tests.clients.conftest import REPLICAS, Broker, NewTopic
from tests.clients.test_configs_and_dirs import node_id
from tests.support.clients import CLIENTS, EPOCH_MS, make_rows
from tests.support.kafka_tools import run_tool, tool
from tests.support.processes import wait_until
from tests.support.wire import RawConnection, leader_of, schema

ROWS = 120
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6


@pytest.fixture
def filled(broker: Broker, new_topic: NewTopic) -> str:
    """One partition with `ROWS` records."""
    topic = new_topic(1)
    idempotent: dict[str, Any] = {"enable.idempotence": True}
    CLIENTS[0].produce(broker.bootstrap, topic, make_rows(ROWS, 1), **idempotent)
    return topic


@pytest.fixture
def admin(broker: Broker) -> Iterator[Any]:
    client = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


# -- settings


def test_kafka_python_alters_describes_and_resets_settings(admin: Any, filled: str) -> None:
    def resource(**configs: Any) -> Any:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        return kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, filled, named or None)

    def described() -> dict[str, Any]:
        found = admin.describe_configs([resource()], config_filter="all")
        (topics,) = found.values()
        return {name: entry["value"] for name, entry in topics[filled].items() if isinstance(entry, dict)}

    assert described()["retention.ms"] == "-1"
    admin.alter_configs([resource(retention_ms="86400000", cleanup_policy=("APPEND", "compact"))])
    assert described()["retention.ms"] == "86400000"
    assert described()["cleanup.policy"] == "delete,compact"
    admin.alter_configs([resource(cleanup_policy=("SUBTRACT", "compact"))])
    assert described()["cleanup.policy"] == "delete"
    admin.reset_configs([resource(retention_ms=None)])
    assert described()["retention.ms"] == "604800000"


def test_aiokafka_alters_and_describes_settings(broker: Broker, filled: str) -> None:
    async def all_of_it() -> list[Any]:
        client = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await client.start()
        try:
            changed = AioResource(AioResourceType.TOPIC, filled, {"retention.bytes": "7654321"})
            (answer,) = await client.alter_configs([changed])
            assert "error_code': 0" in str(answer.to_object())
            return list(await client.describe_configs([AioResource(AioResourceType.TOPIC, filled)]))
        finally:
            await client.close()

    (answer,) = asyncio.run(all_of_it())
    ((error, _, _, name, entries),) = answer.resources
    assert (error, name) == (0, filled)
    values = {entry[0]: entry[1] for entry in entries}
    assert values["retention.bytes"] == "7654321"
    # All settings are replaced by those given, the retention that the topic was made with among them.
    assert values["retention.ms"] == "604800000"


def test_confluent_describes_a_broker(broker: Broker) -> None:
    kind = confluent_admin.ConfigResource.Type.BROKER
    one = confluent_admin.ConfigResource(kind, node_id(broker))
    found = broker.admin.client.describe_configs([one])[one].result(20)
    assert found["log.retention.ms"].is_read_only is False
    assert found["node.id"].is_read_only is True


def test_kafka_python_lists_what_has_settings(admin: Any, broker: Broker, filled: str) -> None:
    found = {
        str(kind).lower(): names for kind, names in admin.list_config_resources(["TOPIC", "BROKER"]).items()
    }
    assert filled in found["topic"]
    assert node_id(broker) in found["broker"]


# -- records, producers, directories


@pytest.mark.parametrize(("policy", "refused"), [("compact", True), ("compact,delete", False)])
def test_records_of_topics_that_are_only_compacted_are_not_deleted(
    policy: str, refused: bool, broker: Broker, new_topic: NewTopic
) -> None:
    topic = new_topic(1, cleanup_policy=policy)
    rows = [row for row in make_rows(20, 1) if row.key is not None]
    CLIENTS[0].produce(broker.bootstrap, topic, rows)
    where = confluent_kafka.TopicPartition(topic, 0, 5)
    deleting = broker.admin.client.delete_records([where])[where]
    if not refused:
        assert deleting.result(20).low_watermark == 5
        return
    with pytest.raises(confluent_kafka.KafkaException) as found:
        deleting.result(20)
    assert found.value.args[0].code() == confluent_kafka.KafkaError.POLICY_VIOLATION
    assert broker.offset(topic, 0, EARLIEST) == 0


def test_kafka_python_describes_producers(admin: Any, filled: str) -> None:
    where = kafka.TopicPartition(filled, 0)
    (producer,) = admin.describe_producers([where])[where].active_producers
    assert producer.producer_epoch == 0
    assert producer.last_sequence == ROWS - 1


def test_kafka_python_describes_log_dirs(admin: Any, broker: Broker, filled: str) -> None:
    answers = {
        str(told.get("broker", told.get("node_id"))): told.get("log_dirs") or told["results"]
        for told in admin.describe_log_dirs([filled])
    }
    assert node_id(broker) in answers
    dirs = [one for told in answers.values() for one in told]
    held = [one for found in dirs for topic in found["topics"] for one in topic["partitions"]]
    assert [(one["partition_index"], one["offset_lag"], one["is_future_key"]) for one in held] == [
        (0, 0, False)
    ] * REPLICAS
    assert held[0]["partition_size"] > ROWS * 500
    for found in dirs:
        assert 0 < found["usable_bytes"] <= found["total_bytes"]


def test_replicas_are_not_moved_between_directories(admin: Any, broker: Broker, filled: str) -> None:
    if not broker.is_ours:
        pytest.skip("other brokers move replicas")
    with pytest.raises(kafka.errors.KafkaError, match=r"(?i)AlterReplicaLogDirs|support"):
        admin.alter_replica_log_dirs({(filled, 0, 1): str(broker.need_data()[0])})


# -- offsets and epochs


@pytest.mark.java
@pytest.mark.parametrize(
    ("time", "offset"),
    [(LATEST, ROWS), (EARLIEST, 0), (MAX_TIMESTAMP, ROWS - 1), (EARLIEST_LOCAL, 0), (LATEST_TIERED, None)],
)
def test_get_offsets_of_a_topic_in_one_tier(
    time: int, offset: int | None, broker: Broker, filled: str
) -> None:
    at = ("--bootstrap-server", broker.bootstrap, "--topic", filled, "--time", str(time))
    # A place that there is not is no line.
    assert tool("get-offsets", *at).split() == ([] if offset is None else [f"{filled}:0:{offset}"])


def test_offsets_by_every_name_in_every_version(broker: Broker, filled: str) -> None:
    with RawConnection(leader_of(broker.bootstrap, filled)) as raw:
        every_name_in_every_version(raw, filled)


def every_name_in_every_version(raw: RawConnection, filled: str) -> None:
    known = {LATEST: ROWS, EARLIEST: 0, MAX_TIMESTAMP: ROWS - 1, EARLIEST_LOCAL: 0, LATEST_TIERED: -1}
    first = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, PENDING_UPLOAD: 11, -7: 12}
    for version in range(1, 12):
        for time in range(-7, 0):
            code, offset = list_offsets(raw, version, filled, time)
            if version < first.get(time, 1):
                assert (code, offset) == (35, -1), (version, time)
            else:
                assert (code, offset) == (0, known.get(time, -1)), (version, time)
        assert list_offsets(raw, version, filled, EPOCH_MS + 17) == (0, 17)
        assert list_offsets(raw, version, filled, EPOCH_MS + ROWS) == (0, -1)
        assert list_offsets(raw, version, "no-such-topic", LATEST) == (3, -1)


def list_offsets(raw: RawConnection, version: int, topic: str, time: int) -> tuple[int, int]:
    """Error code and offset."""
    module = schema(2, version)
    asked = module.ListOffsetsPartition(partition_index=0, timestamp=time)
    fields: dict[str, Any] = {"isolation_level": 0} if version >= 2 else {}
    if version >= 10:
        fields["timeout"] = timedelta(seconds=20)
    topics = (module.ListOffsetsTopic(name=topic, partitions=(asked,)),)
    answer = raw.call(module.ListOffsetsRequest(replica_id=-1, topics=topics, **fields))
    found = answer.topics[0].partitions[0]
    return int(found.error_code), found.offset


def test_epochs_end_where_records_of_both_tiers_do(broker: Broker, new_topic: NewTopic) -> None:
    broker.need_tiers()
    topic = new_topic(1, remote_storage_enable="true", segment_bytes="1048576")
    CLIENTS[0].produce(broker.bootstrap, topic, make_rows(3000, 1))
    broker.settle(topic, 0)
    with RawConnection(leader_of(broker.bootstrap, topic)) as raw:
        for version in (2, 3, 4):
            assert epoch_end(raw, version, topic, 0) == (0, 0, 3000)
            assert epoch_end(raw, version, topic, 5) == (0, -1, -1)
            assert epoch_end(raw, version, topic, 0, current=7) == (75, -1, -1)  # UNKNOWN_LEADER_EPOCH
            assert epoch_end(raw, version, "no-such-topic", 0) == (3, -1, -1)


def epoch_end(
    raw: RawConnection, version: int, topic: str, epoch: int, current: int = -1
) -> tuple[int, int, int]:
    """Error code, epoch and the offset where it ends."""
    module = schema(23, version)
    asked = module.OffsetForLeaderPartition(partition=0, current_leader_epoch=current, leader_epoch=epoch)
    topics = (module.OffsetForLeaderTopic(topic=topic, partitions=(asked,)),)
    found = raw.call(module.OffsetForLeaderEpochRequest(topics=topics)).topics[0].partitions[0]
    return int(found.error_code), found.leader_epoch, found.end_offset


# -- topics


@pytest.mark.java
def test_kafka_topics_describes_page_by_page(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(7)
    at = ("--bootstrap-server", broker.bootstrap, "--describe", "--topic", topic)
    for most in ("1", "3", "2000"):
        found = tool("topics", *at, "--partition-size-limit-per-response", most)
        assert re.findall(r"Partition: (\d+)", found) == [str(index) for index in range(7)]


def test_kafka_python_follows_cursors(admin: Any, new_topic: NewTopic) -> None:
    topics = sorted((new_topic(3), new_topic(2)))
    seen: list[tuple[str, int]] = []
    cursor = None
    while True:
        page = admin.describe_topic_partitions(topics, response_partition_limit=2, cursor=cursor)
        found = [(t["name"], p["partition_index"]) for t in page["topics"] for p in t["partitions"]]
        assert len(found) <= 2
        seen += found
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 5
    assert seen == sorted(seen)


def test_kafka_python_deletes_topics_by_id(admin: Any, broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    (described,) = admin.describe_topics([topic])
    admin.delete_topics([uuid.UUID(str(described["topic_id"]))])
    wait_until("the topic to be gone", lambda: topic not in broker.admin.topics())
    with pytest.raises(kafka.errors.KafkaError):
        admin.delete_topics([uuid.UUID(int=12345)])


@pytest.mark.java
def test_partitions_come_where_they_are_told_to(broker: Broker, new_topic: NewTopic) -> None:
    topic, node = new_topic(1), node_id(broker)
    node = ":".join(map(str, range(int(node), int(node) + REPLICAS)))
    at = ("--bootstrap-server", broker.bootstrap, "--topic", topic)
    tool("topics", *at, "--alter", "--partitions", "3", "--replica-assignment", f"{node},{node},{node}")
    assert "PartitionCount: 3" in tool("topics", *at, "--describe")
    for arguments in (
        ("--partitions", "5", "--replica-assignment", f"{node},{node},{node},{node}"),
        ("--partitions", "4", "--replica-assignment", f"{node},{node},{node},{node}:{node}"),
    ):
        assert run_tool("topics", *at, "--alter", *arguments).returncode != 0
    assert "PartitionCount: 3" in tool("topics", *at, "--describe")


# -- tiering switched off


def test_tiering_is_switched_off_with_its_data_or_not_at_all(broker: Broker, new_topic: NewTopic) -> None:
    broker.need_tiers()
    topic = new_topic(1, remote_storage_enable="true", segment_bytes="1048576")
    rows = make_rows(4000, 1)
    CLIENTS[0].produce(broker.bootstrap, topic, rows)
    border = broker.settle(topic, 0)
    with pytest.raises(confluent_kafka.KafkaException, match="without deleting remote data"):
        broker.admin.alter(topic, remote_storage_enable="false")
    assert broker.offset(topic, 0, EARLIEST) == 0
    off = {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}
    broker.admin.alter(topic, **off)
    wait_until("the log to begin with what is local", lambda: broker.offset(topic, 0, EARLIEST) == border)
    wait_until("nothing to be tiered", lambda: broker.offset(topic, 0, LATEST_TIERED) == -1)
    assert broker.offset(topic, 0, LATEST) == 4000
    for client in CLIENTS:
        found = client.read(broker.bootstrap, topic, 0, border, 4000)
        assert [row.timestamp for row in found] == [row.timestamp for row in rows[border:]]
