"""The controllers' listener: what it answers, and requests that are malformed or not allowed."""

from __future__ import annotations

import asyncio
import random
import struct
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.envelope.v0.request import EnvelopeRequest
from kio.schema.errors import ErrorCode

from service.controller_client import lifecycle_messages
from service.controller_client.broker_lifecycle import Heartbeat
from service.controller_client.lifecycle_messages import Feature, Identity
from service.controller_server.api_table import CONTROLLER_APIS
from service.metadata.controller.requests import Endpoint
from service.metadata.raft.message_parts import make
from service.wire.api import APIS, ApiKey, decode_response, encode_request, request_module
from service.wire.catalog import CommitCatalogRequest
from service.wire.primitives import Cursor
from service.wire.schema import compile_steps
from tests.support.alter_partition import alter_isr
from tests.support.controller_calls import call, run
from tests.support.controllers import CLUSTER_ID, Broker, Fleet, new_topics
from tests.support.fuzzing import pair
from tests.support.waiting import until


def test_the_listener_describes_itself_cluster_and_quorum(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        active = await fleet.led()
        await until(lambda: len(active.publisher.image.controllers) == 3)
        module = request_module(ApiKey.API_VERSIONS)
        message = module.ApiVersionsRequest(client_software_name="x", client_software_version="1")
        told = await call(fleet, ApiKey.API_VERSIONS, message)
        assert {one.api_key for one in told.api_keys} == {int(key) for key in CONTROLLER_APIS}
        features = {one.name: (one.min_version, one.max_version) for one in told.supported_features}
        assert features["kraft.version"] == (0, 1)
        assert features["metadata.version"][1] == 30
        assert {one.name for one in told.finalized_features} >= {"metadata.version"}

        module = request_module(ApiKey.DESCRIBE_CLUSTER)
        for kind, version, error in (
            (2, 1, ErrorCode.none),
            (1, 1, ErrorCode.mismatched_endpoint_type),
            (3, 2, ErrorCode.unsupported_endpoint_type),
            (1, 0, ErrorCode.invalid_request),
        ):
            message = module.DescribeClusterRequest(
                include_cluster_authorized_operations=False, endpoint_type=kind, include_fenced_brokers=False
            )
            told = await call(fleet, ApiKey.DESCRIBE_CLUSTER, message, version)
            assert told.error_code == error
            if error is ErrorCode.none:
                assert told.controller_id == fleet.id_of(active)
                assert {(one.broker_id, one.host, one.port) for one in told.brokers} == {
                    (node_id, one.host, one.port) for node_id, one in fleet.endpoints.items()
                }

        module = request_module(ApiKey.DESCRIBE_QUORUM)
        topic = module.TopicData(
            topic_name="__cluster_metadata", partitions=(module.PartitionData(partition_index=0),)
        )
        message = module.DescribeQuorumRequest(topics=(topic,))
        for version in (0, 1, 2):
            told = await call(fleet, ApiKey.DESCRIBE_QUORUM, message, version)
            partition = told.topics[0].partitions[0]
            assert partition.leader_id == fleet.id_of(active)
            assert {one.replica_id for one in partition.current_voters} == {1, 2, 3}
        follower = next(one for one in fleet.running if one != fleet.id_of(active))
        told = await call(fleet, ApiKey.DESCRIBE_QUORUM, message, node_id=follower)
        assert told.topics[0].partitions[0].error_code == ErrorCode.not_leader_or_follower
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


def test_every_version_of_fetch_is_answered(tmp_path: Path) -> None:
    """From version 13 on the topic is named by its id, before that by its name."""

    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        active = await fleet.led()
        place = fleet.endpoints[fleet.id_of(active)]
        api = APIS[ApiKey.FETCH]
        for version in range(api.min_version, api.max_version + 1):
            answer = await fetched(place, version, active.publisher.epoch)
            if version < 13:  # its topic has no id, which is required
                assert not answer.responses, version
                assert version < 7 or answer.error_code == ErrorCode.invalid_request, version
            else:
                one = answer.responses[0].partitions[0]
                assert one.error_code == ErrorCode.none, version
                assert one.records, version
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


async def fetched(place: Any, version: int, leader_epoch: int) -> Any:
    """Fetch the metadata log in this version, and return the response of this version."""
    message = fetch_request(version, leader_epoch)
    out = bytearray(struct.pack(">hhihx" if version >= 12 else ">hhih", 1, version, version, 0))
    compile_steps(type(message), type(message)).write(out, message)
    reader, writer = await asyncio.open_connection(place.host, place.port)
    writer.write(struct.pack(">i", len(out)) + out)
    size, correlation_id = struct.unpack(">ii", await reader.readexactly(8))
    assert correlation_id == version
    data = await reader.readexactly(size - 4)
    writer.close()
    kind = import_module(f"kio.schema.fetch.v{version}.response").FetchResponse
    return compile_steps(kind, kind).read(Cursor(data, 1 if version >= 12 else 0))


def fetch_request(version: int, leader_epoch: int) -> Any:
    module = import_module(f"kio.schema.fetch.v{version}.request")
    partition = make(
        module,
        "FetchPartition",
        partition=0,
        current_leader_epoch=leader_epoch,
        fetch_offset=0,
        last_fetched_epoch=0,
        log_start_offset=-1,
        partition_max_bytes=0,
        replica_directory_id=None,
        high_watermark=0,
    )
    topic = make(
        module, "FetchTopic", topic="__cluster_metadata", topic_id=UUID(int=1), partitions=(partition,)
    )
    values: dict[str, Any] = {"cluster_id": CLUSTER_ID, "replica_id": -1, "isolation_level": 0}
    if version >= 15:
        values["replica_state"] = make(module, "ReplicaState", replica_id=-1, replica_epoch=-1)
    return make(
        module,
        "FetchRequest",
        max_wait=timedelta(milliseconds=10),
        min_bytes=0,
        max_bytes=1 << 20,
        topics=(topic,),
        forgotten_topics_data=(),
        **values,
    )


async def answers(place: Any, frame: bytes) -> bytes:
    """Return the response to a frame; nothing if the connection ends."""
    reader, writer = await asyncio.open_connection(place.host, place.port)
    writer.write(struct.pack(">i", len(frame)) + frame)
    async with asyncio.timeout(10):
        head = await reader.read(4)
        data = await reader.readexactly(int.from_bytes(head, "big")) if len(head) == 4 else b""
    writer.close()
    return data


ANONYMOUS = bytes.fromhex("00 00 05 55 73 65 72 0a 41 4e 4f 4e 59 4d 4f 55 53 00 00")


def envelope(inner: bytes, principal: bytes = ANONYMOUS, address: bytes = bytes(4)) -> bytes:
    message = EnvelopeRequest(request_data=inner, request_principal=principal, client_host_address=address)
    return encode_request(ApiKey.ENVELOPE, 0, 3, "x", message)[4:]


def test_hostile_frames_get_the_protocols_answer_and_nothing_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        active = await fleet.led()
        place = fleet.endpoints[fleet.id_of(active)]
        create = encode_request(ApiKey.CREATE_TOPICS, 7, 1, "c", new_topics("never"))[4:]
        metadata = request_module(ApiKey.METADATA).MetadataRequest(
            topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        asked = encode_request(ApiKey.METADATA, 12, 1, "c", metadata)[4:]
        producer_ids = encode_request(
            ApiKey.ALLOCATE_PRODUCER_IDS, 0, 1, "c", lifecycle_messages.producer_ids(99, 5)
        )[4:]

        async def refused(frame: bytes) -> ErrorCode:
            code: ErrorCode = decode_response(ApiKey.ENVELOPE, 0, await answers(place, frame))[1].error_code
            return code

        assert await refused(envelope(envelope(create))) == ErrorCode.invalid_request
        assert await refused(envelope(asked)) == ErrorCode.invalid_request
        assert await refused(envelope(create[:-9])) == ErrorCode.unsupported_version
        assert await refused(envelope(b"\0")) == ErrorCode.unsupported_version
        assert await refused(envelope(create, b"\0\1")) == ErrorCode.principal_deserialization_failure
        assert await refused(envelope(create, address=b"123")) == ErrorCode.invalid_request
        assert await refused(envelope(create[:2] + b"\0\x63" + create[4:])) == ErrorCode.unsupported_version
        # What stands in the inner answer is the client's: the envelope itself is sound.
        assert await refused(envelope(producer_ids)) == ErrorCode.none
        for broken in (asked, envelope(create)[:-5], b"", b"\0\1\0", create[:-9], b"\x7f\xff" + create[2:]):
            assert await answers(place, broken) == b""
        follower = next(one for one in fleet.running if one != fleet.id_of(active))
        place = fleet.endpoints[follower]
        assert await refused(envelope(create)) == ErrorCode.not_controller
        image = active.publisher.image
        assert not image.topics_by_name
        assert not image.next_producer_id
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


def test_brokers_are_refused_as_kafkas_controller_refuses_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        active = await fleet.led()
        follower = next(one for one in fleet.running if one != fleet.id_of(active))
        identity = Identity(
            9,
            UUID(int=9),
            "another cluster",
            (Endpoint("PLAINTEXT", "127.0.0.1", 1),),
            log_dirs=(UUID(int=900),),
        )
        message = lifecycle_messages.registration(identity)
        answer = await call(fleet, ApiKey.BROKER_REGISTRATION, message)
        assert answer.error_code == ErrorCode.inconsistent_cluster_id
        answer = await call(fleet, ApiKey.BROKER_REGISTRATION, message, node_id=follower)
        assert (answer.error_code, answer.broker_epoch) == (ErrorCode.not_controller, -1)
        message = lifecycle_messages.registration(identity._replace(cluster_id=CLUSTER_ID))
        answer = await call(fleet, ApiKey.BROKER_REGISTRATION, message)
        assert answer.error_code == ErrorCode.invalid_registration  # it does not name metadata.version
        identity = identity._replace(cluster_id=CLUSTER_ID, features=(Feature("metadata.version", 7, 29),))
        answer = await call(fleet, ApiKey.BROKER_REGISTRATION, lifecycle_messages.registration(identity))
        assert answer.error_code == ErrorCode.unsupported_version
        message = lifecycle_messages.heartbeat(9, Heartbeat(3, 3, False, False, ()))
        answer = await call(fleet, ApiKey.BROKER_HEARTBEAT, message)
        assert (answer.error_code, answer.is_fenced) == (ErrorCode.broker_id_not_registered, True)
        answer = await call(fleet, ApiKey.BROKER_HEARTBEAT, message, node_id=follower)
        assert answer.error_code == ErrorCode.not_controller
        broker = await Broker(fleet, 7).start()
        message = lifecycle_messages.producer_ids(7, 1 << 40)
        answer = await call(fleet, ApiKey.ALLOCATE_PRODUCER_IDS, message)
        assert answer.error_code == ErrorCode.stale_broker_epoch
        message = alter_isr(7, 1 << 40, [])
        answer = await call(fleet, ApiKey.ALTER_PARTITION, message)
        assert answer.error_code == ErrorCode.stale_broker_epoch
        message = CommitCatalogRequest(broker_id=7, broker_epoch=1 << 40)
        answer = await call(fleet, ApiKey.COMMIT_CATALOG, message)
        assert answer.error_code == ErrorCode.stale_broker_epoch
        module = request_module(ApiKey.ASSIGN_REPLICAS_TO_DIRS)
        message = module.AssignReplicasToDirsRequest(broker_id=7, broker_epoch=1 << 40, directories=())
        answer = await call(fleet, ApiKey.ASSIGN_REPLICAS_TO_DIRS, message)
        assert answer.error_code == ErrorCode.stale_broker_epoch
        module = request_module(ApiKey.UNREGISTER_BROKER)
        answer = await call(fleet, ApiKey.UNREGISTER_BROKER, module.UnregisterBrokerRequest(broker_id=55))
        assert answer.error_code == ErrorCode.broker_id_not_registered
        assert answer.error_message == "Broker ID 55 is not currently registered"
        await broker.close()
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


def test_a_thousand_silent_connections_cost_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        broker = await Broker(fleet, 7).start()
        active = await fleet.led()
        place = fleet.endpoints[fleet.id_of(active)]
        epoch = active.publisher.epoch
        silent = [await asyncio.open_connection(place.host, place.port) for _ in range(1_000)]
        await until(lambda: active.servers[0].connection_count >= 1_000)
        answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("among-many"))
        assert answer.topics[0].error_code == ErrorCode.none
        assert active.servers[0].request_memory_bytes == 0
        assert (active.controller.is_active, active.publisher.epoch) == (True, epoch)
        for _, writer in silent:
            writer.close()
        await until(lambda: active.servers[0].connection_count < 100)
        await broker.close()
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


def test_any_request_in_any_version_is_answered_or_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sound frames with values that make little sense, and the same ones with a byte changed."""
    seed = 14

    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        active = await fleet.led()
        place, epoch = fleet.endpoints[fleet.id_of(active)], active.publisher.epoch
        chance, count = random.Random(seed), 0
        for key in CONTROLLER_APIS:
            api = APIS[key]
            for version in range(api.min_version, api.max_version + 1):
                for number in range(8):
                    frame = bytearray(pair(key, version, chance)[0])
                    if number % 2 and len(frame) > 20:
                        frame[chance.randrange(10, len(frame))] = chance.randrange(256)
                    data = await answers(place, bytes(frame))
                    count += bool(data)
                    if data and key != ApiKey.FETCH:
                        decode_response(key, version, data)
        print(f"seed {seed}: {count} answers")
        assert count > 200
        image = active.publisher.image
        assert not image.topics_by_name
        assert not image.brokers
        assert (active.controller.is_active, active.publisher.epoch) == (True, epoch)
        await fleet.stop()
        assert not fleet.failures
        assert not [one.getMessage() for one in caplog.records if one.exc_info]

    run(scenario())
