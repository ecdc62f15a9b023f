"""Old clients, and every version of every request: each gets an answer in its own version."""

from __future__ import annotations

import uuid
from dataclasses import MISSING
from datetime import timedelta
from typing import Any

import pytest

from tests.clients.conftest import Broker, NewTopic
from tests.support.batches import batch
from tests.support.clients import Confluent, KafkaPython, by_partition, digest, make_rows
from tests.support.processes import wait_until
from tests.support.wire import RawConnection, leader_of, schema

# What Apache Kafka 4.3 serves of the requests that Firn serves.
SERVED = {
    "Produce": (0, 3, 13),
    "Fetch": (1, 4, 18),
    "ListOffsets": (2, 1, 11),
    "Metadata": (3, 0, 13),
    "ApiVersions": (18, 0, 4),
    "CreateTopics": (19, 2, 7),
    "DeleteTopics": (20, 1, 6),
    "InitProducerId": (22, 0, 5),
    "OffsetForLeaderEpoch": (23, 2, 4),
    "DescribeConfigs": (32, 1, 4),
    "IncrementalAlterConfigs": (44, 0, 1),
    "DescribeCluster": (60, 0, 2),
    "DescribeTopicPartitions": (75, 0, 0),
}
ELSEWHERE = {
    "OffsetCommit": (8, 2, 10),
    "OffsetFetch": (9, 1, 10),
    "FindCoordinator": (10, 0, 6),
    "JoinGroup": (11, 0, 9),
    "Heartbeat": (12, 0, 4),
    "LeaveGroup": (13, 0, 5),
    "SyncGroup": (14, 0, 5),
    "DescribeGroups": (15, 0, 6),
    "ListGroups": (16, 0, 5),
    "SaslHandshake": (17, 0, 1),
    "DeleteRecords": (21, 0, 2),
    "AddPartitionsToTxn": (24, 0, 5),
    "AddOffsetsToTxn": (25, 0, 4),
    "EndTxn": (26, 0, 5),
    "WriteTxnMarkers": (27, 1, 2),
    "TxnOffsetCommit": (28, 0, 5),
    "DescribeAcls": (29, 1, 3),
    "CreateAcls": (30, 1, 3),
    "DeleteAcls": (31, 1, 3),
    "AlterConfigs": (33, 0, 2),
    "DescribeLogDirs": (35, 1, 5),
    "SaslAuthenticate": (36, 0, 2),
    "CreatePartitions": (37, 0, 3),
    "CreateDelegationToken": (38, 1, 3),
    "RenewDelegationToken": (39, 1, 2),
    "ExpireDelegationToken": (40, 1, 2),
    "DescribeDelegationToken": (41, 1, 3),
    "DeleteGroups": (42, 0, 2),
    "OffsetDelete": (47, 0, 0),
    "DescribeClientQuotas": (48, 0, 1),
    "AlterClientQuotas": (49, 0, 1),
    "DescribeUserScramCredentials": (50, 0, 0),
    "AlterUserScramCredentials": (51, 0, 0),
    "UpdateFeatures": (57, 0, 2),
    "DescribeProducers": (61, 0, 0),
    "DescribeTransactions": (65, 0, 0),
    "ListTransactions": (66, 0, 2),
    "ConsumerGroupHeartbeat": (68, 0, 1),
    "ConsumerGroupDescribe": (69, 0, 1),
    "ListConfigResources": (74, 0, 1),
}
"""Served, too; other tests speak their versions."""
OF_CONTROLLERS = {
    "ElectLeaders": (43, 0, 2),
    "AlterPartitionReassignments": (45, 0, 1),
    "ListPartitionReassignments": (46, 0, 0),
    "DescribeQuorum": (55, 0, 2),
    "UnregisterBroker": (64, 0, 0),
    "AddRaftVoter": (80, 0, 1),
    "RemoveRaftVoter": (81, 0, 0),
}
"""Requests that brokers forward to the controllers of a cluster."""
OURS = {20001, 20002, 20003, 20004, 20005, 20006}
"""ListSessions, EndSessions, DescribeHealth, TakeCut, RewriteRange and Erasures, which Kafka has not."""
WAIT = timedelta(seconds=10)
EVERY = [(name, version) for name, (_, low, high) in SERVED.items() for version in range(low, high + 1)]


@pytest.mark.parametrize("version", [(2, 1), (2, 4), (2, 8), (3, 3), (3, 9), (4, 0)], ids=str)
def test_kafka_python_of_an_older_broker_works(
    version: tuple[int, int], bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    rows = make_rows(500, 2)
    client = KafkaPython()
    client.produce(bootstrap, topic, rows, "gzip", api_version=version)
    for partition, expected in by_partition(rows).items():
        found = client.read(bootstrap, topic, partition, 0, len(expected), api_version=version)
        assert digest(found) == digest(expected)


def test_librdkafka_of_an_older_broker_works(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    rows = make_rows(500, 2)
    client = Confluent()
    older = {"broker.version.fallback": "2.1.0", "api.version.fallback.ms": 0}
    client.produce(bootstrap, topic, rows, "lz4", **older)
    for partition, expected in by_partition(rows).items():
        assert digest(client.read(bootstrap, topic, partition, 0, len(expected), **older)) == digest(expected)


def _of(module: Any, name: str, /, **values: Any) -> Any:
    """A message with the values its version knows, and a plain value for whatever else it wants."""
    kind = getattr(module, name)
    fields = kind.__dataclass_fields__
    plain = {"int8": 0, "int16": 0, "int32": -1, "int64": -1, "bool": False, "string": ""}
    chosen = {key: value for key, value in values.items() if key in fields}
    for key, field in fields.items():
        has_default = not (field.default is MISSING and field.default_factory is MISSING)
        if key not in chosen and not has_default:
            chosen[key] = plain[field.metadata["kafka_type"]] if field.metadata else ()
    return kind(**chosen)


def _request(api: str, version: int, topic: str, topic_id: uuid.UUID) -> Any:
    asked = _request_about_records(api, version, topic, topic_id) or _request_about_topics(
        api, version, topic
    )
    if asked is None:
        raise AssertionError(api)
    return asked


def _request_about_records(api: str, version: int, topic: str, topic_id: uuid.UUID) -> Any:
    module = schema(SERVED[api][0], version)
    match api:
        case "Produce":
            part = _of(module, "PartitionProduceData", index=0, records=batch([b"from v%d" % version]))
            data = _of(module, "TopicProduceData", name=topic, topic_id=topic_id, partition_data=(part,))
            return _of(
                module, "ProduceRequest", acks=1, timeout=WAIT, topic_data=(data,), transactional_id=None
            )
        case "Fetch":
            part = _of(module, "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
            data = _of(module, "FetchTopic", topic=topic, topic_id=topic_id, partitions=(part,))
            return _of(
                module, "FetchRequest", max_wait=timedelta(milliseconds=100), min_bytes=1, max_bytes=1 << 20,
                session_id=0, session_epoch=-1, topics=(data,),
            )  # fmt: skip
        case "ListOffsets":
            part = _of(
                module, "ListOffsetsPartition", partition_index=0, timestamp=-2, current_leader_epoch=-1
            )
            data = _of(module, "ListOffsetsTopic", name=topic, partitions=(part,))
            return _of(module, "ListOffsetsRequest", topics=(data,), timeout=WAIT)
        case "InitProducerId":
            return _of(module, "InitProducerIdRequest", transactional_id=None, transaction_timeout=WAIT)
        case "OffsetForLeaderEpoch":
            part = _of(
                module, "OffsetForLeaderPartition", partition=0, leader_epoch=0, current_leader_epoch=-1
            )
            data = _of(module, "OffsetForLeaderTopic", topic=topic, partitions=(part,))
            return _of(module, "OffsetForLeaderEpochRequest", replica_id=-1, topics=(data,))
    return None


def _request_about_topics(api: str, version: int, topic: str) -> Any:
    module = schema(SERVED[api][0], version)
    match api:
        case "Metadata":
            data = _of(module, "MetadataRequestTopic", name=topic, topic_id=uuid.UUID(int=0))
            return _of(module, "MetadataRequest", topics=(data,))
        case "ApiVersions":
            return _of(
                module, "ApiVersionsRequest", client_software_name="firn-test", client_software_version="1",
                cluster_id=None, node_id=-1,
            )  # fmt: skip
        case "CreateTopics":
            data = _of(
                module,
                "CreatableTopic",
                name=f"{topic}-{api}-{version}",
                num_partitions=1,
                replication_factor=1,
            )
            return _of(module, "CreateTopicsRequest", topics=(data,), timeout=WAIT)
        case "DeleteTopics":
            if version >= 6:
                data = _of(module, "DeleteTopicState", name="never-was", topic_id=uuid.UUID(int=0))
                return _of(module, "DeleteTopicsRequest", topics=(data,), timeout=WAIT)
            return _of(module, "DeleteTopicsRequest", topic_names=("never-was",), timeout=WAIT)
        case "DescribeConfigs":
            data = _of(
                module,
                "DescribeConfigsResource",
                resource_type=2,
                resource_name=topic,
                configuration_keys=None,
            )
            return _of(module, "DescribeConfigsRequest", resources=(data,))
        case "IncrementalAlterConfigs":
            entry = _of(module, "AlterableConfig", name="retention.bytes", config_operation=0, value="77777")
            data = _of(module, "AlterConfigsResource", resource_type=2, resource_name=topic, configs=(entry,))
            return _of(module, "IncrementalAlterConfigsRequest", resources=(data,))
        case "DescribeCluster":
            return _of(module, "DescribeClusterRequest", endpoint_type=1)
        case "DescribeTopicPartitions":
            data = _of(module, "TopicRequest", name=topic)
            return _of(
                module,
                "DescribeTopicPartitionsRequest",
                topics=(data,),
                response_partition_limit=100,
                cursor=None,
            )
    return None


def _error_codes(message: Any) -> list[int]:
    """Every error code anywhere in a response."""
    if isinstance(message, tuple):
        return [code for item in message for code in _error_codes(item)]
    found = []
    for name in getattr(message, "__dataclass_fields__", ()):
        value = getattr(message, name)
        found += [int(value)] if name == "error_code" else _error_codes(value)
    return found


@pytest.fixture(scope="module")
def topic(broker: Broker) -> tuple[str, uuid.UUID]:
    """A topic with one record, and its id."""
    name = f"every-version-{uuid.uuid4().hex[:8]}"
    broker.admin.create(name)
    wait_until("its leader", lambda: broker.leads(name, 0))
    with RawConnection(leader_of(broker.bootstrap, name)) as connection:
        connection.call(_request("Produce", 9, name, uuid.UUID(int=0)))
        module = schema(3, 12)
        asked = _of(module, "MetadataRequestTopic", name=name, topic_id=uuid.UUID(int=0))
        answer = connection.call(_of(module, "MetadataRequest", topics=(asked,)))
    return name, answer.topics[0].topic_id


@pytest.mark.parametrize(("api", "version"), EVERY)
def test_every_version_of_every_request_is_answered(
    api: str, version: int, broker: Broker, topic: tuple[str, uuid.UUID]
) -> None:
    with RawConnection(leader_of(broker.bootstrap, topic[0])) as connection:
        response = connection.call(_request(api, version, *topic))
    errors = _error_codes(response)
    assert errors
    # Deleting what never was is an error, and all that is needed here.
    assert set(errors) <= ({3} if api == "DeleteTopics" else {0})


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_of_fetch_brings_the_records(
    version: int, broker: Broker, topic: tuple[str, uuid.UUID]
) -> None:
    with RawConnection(leader_of(broker.bootstrap, topic[0])) as connection:
        response = connection.call(_request("Fetch", version, *topic))
    records = bytes(response.responses[0].partitions[0].records)
    assert b"from v9" in records


def test_api_versions_lists_the_versions_that_are_served(broker: Broker) -> None:
    with RawConnection(broker.bootstrap) as connection:
        response = connection.call(_request("ApiVersions", 3, "", uuid.UUID(int=0)))
    offered = {int(key.api_key): (int(key.min_version), int(key.max_version)) for key in response.api_keys}
    served = {**SERVED, **ELSEWHERE, **OF_CONTROLLERS}
    for api, (key, low, high) in served.items():
        # Apache Kafka says Produce 0, which it does not serve, as old librdkafka looks for it.
        assert offered[key] == (0 if api == "Produce" else low, high), api
    if broker.is_ours:
        assert set(offered) == {key for key, _, _ in served.values()} | OURS


@pytest.mark.parametrize("version", [5, 99, 32767])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0(version: int, broker: Broker) -> None:
    """KIP-511: error 35, in the oldest format, with the versions of ApiVersions itself in it."""
    import struct

    from kio.schema.api_versions.v0.response import ApiVersionsResponse
    from kio.serial import entity_reader

    header = struct.pack(">hhih", 18, version, 77, 4) + b"test" + b"\0"
    with RawConnection(broker.bootstrap) as connection:
        connection.send_frame(header + b"\x05name\x02v\0")
        frame = connection.receive_frame()
        assert struct.unpack_from(">i", frame) == (77,)
        response, size = entity_reader(ApiVersionsResponse)(memoryview(frame), 4)
        assert 4 + size == len(frame)
        assert response.error_code == 35
        (own,) = (key for key in response.api_keys if key.api_key == 18)
        assert (own.min_version, own.max_version) == (0, 4)
        # The same connection goes on with a version that is known.
        assert connection.call(_request("ApiVersions", 3, "", uuid.UUID(int=0))).error_code == 0
