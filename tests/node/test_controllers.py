"""Three controllers over real sockets: they elect a leader, and brokers live through its death."""

from __future__ import annotations

import asyncio
import random
import shutil
import struct
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.envelope.v0.request import EnvelopeRequest
from kio.schema.errors import ErrorCode

from service.base.errors import StorageError
from service.base.types import TopicIdPartition
from service.client.node_channel import Channels
from service.controller_client import lifecycle_messages
from service.controller_client.broker_lifecycle import Heartbeat, MoveAway, Recover, Serve
from service.controller_client.forwarding import ANONYMOUS
from service.controller_client.lifecycle_messages import Feature, Identity
from service.controller_server.api_table import CONTROLLER_APIS
from service.metadata.controller.broker_sessions import SessionTimes
from service.metadata.controller.requests import Endpoint
from service.metadata.raft.keys import ReplicaKey
from service.metadata.raft.message_parts import make
from service.remote.catalog import CatalogCommit, CatalogEntry, CatalogResult
from service.wire.api import APIS, ApiKey, decode_response, encode_request, request_module
from service.wire.catalog import CommitCatalogRequest
from service.wire.primitives import Cursor
from service.wire.schema import compile_steps
from tests.support.alter_partition import AlterIsr, alter_isr, isr_altered
from tests.support.controllers import CLUSTER_ID, Broker, Fleet, new_topics
from tests.support.fuzzing import pair
from tests.support.peers import Peer
from tests.support.waiting import until


def run(scenario: Any) -> None:
    asyncio.run(scenario)


def test_one_leads_and_all_are_registered(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        await fleet.led()
        await until(lambda: all(len(one.publisher.image.controllers) == 3 for one in fleet.running.values()))
        await fleet.stop()
        assert not fleet.failures
        assert fleet.assert_same_logs() > 0

    run(scenario())


def test_a_voter_that_is_silent_is_reached_anew_once_its_time_is_up(tmp_path: Path) -> None:
    """The connection may lead nowhere any more: where packets were lost for a while, or another machine has
    the address now."""

    async def scenario() -> None:
        fleet = Fleet(tmp_path, 2)
        silent = await Peer().start(fleet.endpoints[2].host, fleet.endpoints[2].port)
        await fleet.start(1)
        await until(lambda: silent.accepted > 2, 60 * fleet.timing.request_timeout_ms / 1000)
        await fleet.stop()
        await silent.stop()
        assert not fleet.failures

    run(scenario())


def test_a_broker_lives_through_the_death_of_its_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        broker = await Broker(fleet, 7).start()
        first = await fleet.led()
        answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("before"))
        assert [one.error_code for one in answer.topics] == [ErrorCode.none]
        assert "before" in broker.publisher.image.topics_by_name
        epoch = broker.membership.epoch
        await fleet.kill(fleet.id_of(first))
        second = await fleet.led()
        assert second is not first
        answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("after"))
        assert [one.error_code for one in answer.topics] == [ErrorCode.none]
        assert "after" in broker.publisher.image.topics_by_name
        assert broker.membership.epoch == epoch
        exit_ = await broker.leaves()
        assert exit_.reason == "the controller has moved all leaderships away"
        assert [type(one) for one in broker.told[:3]] == [Recover, Serve, MoveAway]
        assert (
            second.publisher.image.brokers[7].in_controlled_shutdown
            or second.publisher.image.brokers[7].fenced
        )
        await broker.close()
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


def test_topics_by_envelope_while_leaders_die(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        broker = await Broker(fleet, 7).start()
        await fleet.led()
        answered: list[str] = []
        is_over = False

        async def create(writer: int) -> None:
            number = 0
            while not is_over:
                number += 1
                name = f"w{writer}-{number}"
                answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics(name, timeout_ms=8_000))
                code = answer.topics[0].error_code
                if code == ErrorCode.none:
                    answered.append(name)
                else:
                    assert code in (ErrorCode.request_timed_out, ErrorCode.unknown_server_error), code

        async with asyncio.TaskGroup() as group:
            for writer in range(3):
                group.create_task(create(writer))
            for _ in range(3):
                active = await fleet.led()
                before = len(answered)
                await until(lambda before=before: len(answered) >= before + 5)  # type: ignore[misc]
                gone = fleet.id_of(active)
                await fleet.kill(gone)
                await fleet.led()
                await fleet.start(gone)
            before = len(answered)
            await until(lambda: len(answered) >= before + 5)
            is_over = True
        images = [one.publisher.image for one in fleet.running.values()]
        offset = max(image.offset for image in images)
        await until(lambda: all(one.publisher.image.offset >= offset for one in fleet.running.values()))
        for one in fleet.running.values():
            missing = [name for name in answered if name not in one.publisher.image.topics_by_name]
            assert not missing
        await broker.close()
        await fleet.stop()
        assert not fleet.failures
        assert fleet.assert_same_logs() > 0

    run(scenario())


def test_a_follower_with_an_empty_directory_fetches_a_snapshot(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path, snapshot_max_bytes=20_000).start()
        broker = await Broker(fleet, 7).start()
        active = await fleet.led()
        for number in range(12):
            names = [f"topic-{number}-{one}" for one in range(20)]
            answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics(*names, partitions=3))
            assert {one.error_code for one in answer.topics} == {ErrorCode.none}
        leader_id = fleet.id_of(active)
        metadata = tmp_path / str(leader_id) / "__cluster_metadata-0"
        await until(lambda: list(metadata.glob("*.checkpoint")))
        wiped = next(node_id for node_id in fleet.running if node_id != leader_id)
        await fleet.stop(wiped)
        shutil.rmtree(tmp_path / str(wiped))
        await fleet.start(wiped)
        node = fleet.running[wiped]
        await until(lambda: len(node.publisher.image.topics_by_name) == 240)
        assert list((tmp_path / str(wiped) / "__cluster_metadata-0").glob("*.checkpoint"))
        assert node.publisher.quorum.machine.core.log.start_offset > 0
        await broker.close()
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


# -- what the listener answers


async def call(fleet: Fleet, key: ApiKey, message: Any, version: int | None = None, node_id: int = 0) -> Any:
    """As whoever knocks at the controllers' listener of the leader, or of that node."""
    channels = Channels()
    try:
        chosen = node_id or fleet.id_of(await fleet.led())
        return await channels.call(fleet.endpoints[chosen], key, version, message, timeout_ms=10_000)
    finally:
        await channels.close()


def test_what_the_listener_tells_of_itself(tmp_path: Path) -> None:
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
    """By id from version 13 on, by name before."""

    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        active = await fleet.led()
        place = fleet.endpoints[fleet.id_of(active)]
        api = APIS[ApiKey.FETCH]
        for version in range(api.min_version, api.max_version + 1):
            module = import_module(f"kio.schema.fetch.v{version}.request")
            partition = make(
                module,
                "FetchPartition",
                partition=0,
                current_leader_epoch=active.publisher.epoch,
                fetch_offset=0,
                last_fetched_epoch=0,
                log_start_offset=-1,
                partition_max_bytes=0,
                replica_directory_id=None,
                high_watermark=0,
            )
            topic = make(
                module,
                "FetchTopic",
                topic="__cluster_metadata",
                topic_id=UUID(int=1),
                partitions=(partition,),
            )
            values: dict[str, Any] = {"cluster_id": CLUSTER_ID, "replica_id": -1, "isolation_level": 0}
            if version >= 15:
                values["replica_state"] = make(module, "ReplicaState", replica_id=-1, replica_epoch=-1)
            message = make(
                module,
                "FetchRequest",
                max_wait=timedelta(milliseconds=10),
                min_bytes=0,
                max_bytes=1 << 20,
                topics=(topic,),
                forgotten_topics_data=(),
                **values,
            )
            out = bytearray(struct.pack(">hhihx" if version >= 12 else ">hhih", 1, version, version, 0))
            compile_steps(type(message), type(message)).write(out, message)
            reader, writer = await asyncio.open_connection(place.host, place.port)
            writer.write(struct.pack(">i", len(out)) + out)
            size, correlation_id = struct.unpack(">ii", await reader.readexactly(8))
            assert correlation_id == version
            data = await reader.readexactly(size - 4)
            writer.close()
            kind = import_module(f"kio.schema.fetch.v{version}.response").FetchResponse
            answer = compile_steps(kind, kind).read(Cursor(data, 1 if version >= 12 else 0))
            if version < 13:  # it cannot name the log by its id, as everybody must
                assert not answer.responses, version
                assert version < 7 or answer.error_code == ErrorCode.invalid_request, version
            else:
                one = answer.responses[0].partitions[0]
                assert one.error_code == ErrorCode.none, version
                assert one.records, version
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


# -- whoever means no good


async def answers(place: Any, frame: bytes) -> bytes:
    """What comes back for a frame; nothing where the connection ends."""
    reader, writer = await asyncio.open_connection(place.host, place.port)
    writer.write(struct.pack(">i", len(frame)) + frame)
    async with asyncio.timeout(10):
        head = await reader.read(4)
        data = await reader.readexactly(int.from_bytes(head, "big")) if len(head) == 4 else b""
    writer.close()
    return data


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


def test_a_broker_whose_process_is_gone_is_fenced_before_its_session_ends(tmp_path: Path) -> None:
    """Its heartbeats' connection breaks, and nobody listens at its address."""

    async def scenario() -> None:
        fleet = Fleet(tmp_path)
        fleet.sessions = SessionTimes(
            session_timeout_ms=60_000, heartbeat_interval_ms=300, least_unfenced_ms=0
        )
        await fleet.start()
        broker = await Broker(fleet, 7).start()
        active = await fleet.led()
        assert not active.publisher.image.brokers[7].fenced
        await broker.close()
        await until(lambda: active.publisher.image.brokers[7].fenced, 10)
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


def test_voters_stay_as_they_are_under_a_static_quorum(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        active = await fleet.led()
        follower = next(one for one in fleet.running if one != fleet.id_of(active))
        module = request_module(ApiKey.REMOVE_RAFT_VOTER)
        message = module.RemoveRaftVoterRequest(
            cluster_id=CLUSTER_ID, voter_id=follower, voter_directory_id=UUID(int=1000 + follower)
        )
        answer = await call(fleet, ApiKey.REMOVE_RAFT_VOTER, message)
        assert answer.error_code == ErrorCode.unsupported_version
        message = replace(message, cluster_id="another")
        answer = await call(fleet, ApiKey.REMOVE_RAFT_VOTER, message)
        assert answer.error_code == ErrorCode.inconsistent_cluster_id
        module = request_module(ApiKey.ADD_RAFT_VOTER)
        message = module.AddRaftVoterRequest(
            cluster_id=CLUSTER_ID,
            timeout=timedelta(seconds=1),
            voter_id=9,
            voter_directory_id=UUID(int=9),
            listeners=(module.Listener(name="CONTROLLER", host="127.0.0.1", port=1),),
        )
        answer = await call(fleet, ApiKey.ADD_RAFT_VOTER, message)
        assert answer.error_code == ErrorCode.unsupported_version
        answer = await call(fleet, ApiKey.ADD_RAFT_VOTER, message, node_id=follower)
        assert answer.error_code == ErrorCode.not_leader_or_follower
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


def test_a_static_quorum_becomes_dynamic_by_update_features(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        active = await fleet.led()
        await until(lambda: len(active.publisher.image.controllers) == 3)
        module = request_module(ApiKey.UPDATE_FEATURES)
        update = module.FeatureUpdateKey(feature="kraft.version", max_version_level=1, upgrade_type=1)
        message = module.UpdateFeaturesRequest(
            feature_updates=(update,), timeout=timedelta(seconds=5), validate_only=False
        )
        for _ in range(200):
            answer = await call(fleet, ApiKey.UPDATE_FEATURES, message)
            if answer.error_code == ErrorCode.none:
                break
            assert answer.error_code == ErrorCode.invalid_update_version
            assert "that they speak kraft.version 1" in answer.error_message
            await asyncio.sleep(0.05)
        assert answer.error_code == ErrorCode.none
        assert active.publisher.image.kraft_version == 1, "what is answered is committed"
        everybody = fleet.running.values()
        await until(lambda: all(one.publisher.image.kraft_version == 1 for one in everybody))
        keys = tuple(ReplicaKey(one, UUID(int=1000 + one)) for one in fleet.endpoints)
        assert all(tuple(v.key for v in one.publisher.quorum.machine.voters) == keys for one in everybody)
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


def test_voters_come_and_go_while_topics_are_created(tmp_path: Path) -> None:
    """One controller becomes three, and the first one leaves: by requests to the listener of who leads."""

    async def scenario() -> None:
        fleet = await Fleet(tmp_path, is_dynamic=True).start()
        broker = await Broker(fleet, 7).start()
        answered: list[str] = []
        is_over = False

        async def create(writer: int) -> None:
            while not is_over:
                name = f"w{writer}-{len(answered)}"
                answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics(name))
                if answer.topics[0].error_code == ErrorCode.none:
                    answered.append(name)

        async def change(key: ApiKey, message: Any) -> None:
            errors = []
            for _ in range(200):
                answer = await call(fleet, key, message)
                if answer.error_code == ErrorCode.none:
                    return
                errors.append((answer.error_code, answer.error_message))
                await asyncio.sleep(0.05)
            raise AssertionError(errors[-3:])

        async with asyncio.TaskGroup() as group:
            for writer in range(3):
                group.create_task(create(writer))
            adding = request_module(ApiKey.ADD_RAFT_VOTER)
            for node_id in (2, 3):
                place = fleet.endpoints[node_id]
                listener = adding.Listener(name=place.name, host=place.host, port=place.port)
                message = adding.AddRaftVoterRequest(
                    cluster_id=CLUSTER_ID,
                    timeout=timedelta(seconds=5),
                    voter_id=node_id,
                    voter_directory_id=UUID(int=1000 + node_id),
                    listeners=(listener,),
                )
                await change(ApiKey.ADD_RAFT_VOTER, message)
            before = len(answered)
            await until(lambda: len(answered) >= before + 5)
            message = request_module(ApiKey.REMOVE_RAFT_VOTER).RemoveRaftVoterRequest(
                cluster_id=CLUSTER_ID, voter_id=1, voter_directory_id=UUID(int=1001)
            )
            await change(ApiKey.REMOVE_RAFT_VOTER, message)
            await until(lambda: (active := fleet.active()) is not None and fleet.id_of(active) != 1)
            before = len(answered)
            await until(lambda: len(answered) >= before + 5)
            is_over = True
        active = await fleet.led()
        assert active.publisher.quorum.machine.voters.ids == (2, 3)
        offset = active.publisher.image.offset
        await until(lambda: all(one.publisher.image.offset >= offset for one in fleet.running.values()))
        for one in fleet.running.values():
            assert not [name for name in answered if name not in one.publisher.image.topics_by_name]
        module = request_module(ApiKey.API_VERSIONS)
        asked = module.ApiVersionsRequest(client_software_name="x", client_software_version="1")
        told = await call(fleet, ApiKey.API_VERSIONS, asked)
        assert ("kraft.version", 1) in {(one.name, one.max_version_level) for one in told.finalized_features}
        await broker.close()
        await fleet.stop()
        assert not fleet.failures
        assert fleet.assert_same_logs() > 0

    run(scenario())


def test_what_admins_change_goes_through_a_broker_to_the_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        broker = await Broker(fleet, 7).start()
        answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("t", "u", partitions=2))
        assert {one.error_code for one in answer.topics} == {ErrorCode.none}
        module = request_module(ApiKey.CREATE_PARTITIONS)
        more = module.CreatePartitionsTopic(name="t", count=4, assignments=None)
        request = module.CreatePartitionsRequest(
            topics=(more,), timeout=timedelta(seconds=5), validate_only=False
        )
        answer = await broker.forward(ApiKey.CREATE_PARTITIONS, 3, request)
        assert answer.results[0].error_code == ErrorCode.none
        assert len(broker.publisher.image.topics_by_name["t"].partitions) == 4

        module = request_module(ApiKey.INCREMENTAL_ALTER_CONFIGS)
        resources = tuple(
            module.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=(module.AlterableConfig(name=key, config_operation=0, value=value),),
            )
            for kind, name, key, value in (
                (2, "t", "retention.ms", "86400000"),
                (4, "7", "log.cleaner.threads", "2"),
                (2, "t-that-is-not", "retention.ms", "1"),
            )
        )
        request = module.IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
        answer = await broker.forward(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
        assert [one.error_code for one in answer.responses][::2] == [
            ErrorCode.none,
            ErrorCode.unknown_topic_or_partition,
        ]
        module = request_module(ApiKey.DESCRIBE_CONFIGS)
        request = module.DescribeConfigsRequest(
            resources=(
                module.DescribeConfigsResource(
                    resource_type=2, resource_name="t", configuration_keys=("retention.ms",)
                ),
            ),
            include_synonyms=False,
            include_documentation=False,
        )
        answer = await call(fleet, ApiKey.DESCRIBE_CONFIGS, request)
        assert [(one.name, one.value) for one in answer.results[0].configs] == [("retention.ms", "86400000")]

        module = request_module(ApiKey.ELECT_LEADERS)
        named = module.TopicPartitions(topic="t", partitions=(0, 9))
        request = module.ElectLeadersRequest(
            election_type=0, topic_partitions=(named,), timeout=timedelta(seconds=5)
        )
        answer = await broker.forward(ApiKey.ELECT_LEADERS, 2, request)
        codes = {
            one.partition_id: one.error_code for one in answer.replica_election_results[0].partition_result
        }
        assert codes == {0: ErrorCode.election_not_needed, 9: ErrorCode.unknown_topic_or_partition}

        module = request_module(ApiKey.DELETE_TOPICS)
        named = module.DeleteTopicState(name="u", topic_id=None)
        request = module.DeleteTopicsRequest(topics=(named,), timeout=timedelta(seconds=5))
        answer = await broker.forward(ApiKey.DELETE_TOPICS, 6, request)
        assert answer.responses[0].error_code == ErrorCode.none
        assert "u" not in broker.publisher.image.topics_by_name

        assert broker.membership is not None
        epoch = broker.membership.epoch
        topic = broker.publisher.image.topics_by_name["t"]
        proposals = [
            AlterIsr(topic.id, index, one.leader_epoch, one.partition_epoch, ((7, epoch),))
            for index, one in sorted(topic.partitions.items())
        ]
        proposals.append(AlterIsr(UUID(int=5), 3, 0, 0, ((7, epoch),)))
        answer = await call(fleet, ApiKey.ALTER_PARTITION, alter_isr(7, epoch, proposals))
        told = [(one.topic_id, one.partition, one.error) for one in isr_altered(answer)]
        assert told == [
            *((topic.id, index, ErrorCode.none) for index in range(4)),
            (UUID(int=5), 3, ErrorCode.unknown_topic_id),
        ]
        module = request_module(ApiKey.ASSIGN_REPLICAS_TO_DIRS)
        partitions = tuple(module.PartitionData(partition_index=index) for index in (0, 9))
        directory = module.DirectoryData(
            id_=UUID(int=7 << 70 | 5), topics=(module.TopicData(topic_id=topic.id, partitions=partitions),)
        )
        request = module.AssignReplicasToDirsRequest(
            broker_id=7, broker_epoch=epoch, directories=(directory, directory)
        )
        answer = await call(fleet, ApiKey.ASSIGN_REPLICAS_TO_DIRS, request)
        placed = [
            (one.id_, each.topic_id, [(of.partition_index, of.error_code) for of in each.partitions])
            for one in answer.directories
            for each in one.topics
        ]
        of_topic = [(0, ErrorCode.none), (9, ErrorCode.unknown_topic_or_partition)]
        assert [each for one in placed for each in one[2]] == of_topic * 2
        assert {one[:2] for one in placed} == {(UUID(int=7 << 70 | 5), topic.id)}

        request = lifecycle_messages.producer_ids(7, broker.membership.epoch)
        answer = await call(fleet, ApiKey.ALLOCATE_PRODUCER_IDS, request)
        assert lifecycle_messages.producer_ids_allocated(answer).size == 1000
        await broker.close()
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


def test_the_catalog_goes_by_rpc_and_outlives_the_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        broker = await Broker(fleet, 7).start()
        await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("t"))
        topic = broker.publisher.image.topics_by_name["t"]
        tip = TopicIdPartition(topic.id, "t", 0)
        entry = CatalogEntry(1, "m1", topic.partitions[0].leader_epoch, 0, 9, 1, 100)
        with pytest.raises(StorageError, match="unsupported_version"):  # the feature's level is 0 yet
            await broker.catalog.commit([CatalogCommit(tip, 0, entry)])
        module = request_module(ApiKey.UPDATE_FEATURES)
        update = module.FeatureUpdateKey(feature="firn.catalog.version", max_version_level=1, upgrade_type=1)
        request = module.UpdateFeaturesRequest(
            feature_updates=(update,), timeout=timedelta(seconds=5), validate_only=False
        )
        active = await fleet.led()
        await until(lambda: len(active.publisher.image.controllers) == 3)
        answer = await broker.forward(ApiKey.UPDATE_FEATURES, 2, request)
        assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
        assert await broker.catalog.commit([CatalogCommit(tip, 0, entry)]) == [CatalogResult.COMMITTED]
        assert broker.catalog.entry(topic.id, 0) == entry
        await fleet.kill(fleet.id_of(active))
        following = entry._replace(version=2, manifest_key="m2", end_offset=20)
        commits = [CatalogCommit(tip, 1, following)]
        assert await broker.catalog.commit(commits) == [CatalogResult.COMMITTED]
        stale = [CatalogCommit(tip, 1, following._replace(manifest_key="m3"))]
        assert await broker.catalog.commit(stale) == [CatalogResult.VERSION_CONFLICT]
        assert await broker.catalog.barrier() <= broker.publisher.image.offset
        await broker.close()
        await fleet.stop()
        assert not fleet.failures

    run(scenario())


def test_a_controller_alone_leads_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path, 1).start()
        broker = await Broker(fleet, 7).start()
        answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("t"))
        assert answer.topics[0].error_code == ErrorCode.none
        await fleet.stop(1)
        await fleet.start(1)
        active = await fleet.led()
        assert "t" in active.publisher.image.topics_by_name
        assert broker.membership is not None
        epoch = broker.membership.epoch
        answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("u"))
        assert (answer.topics[0].error_code, broker.membership.epoch) == (ErrorCode.none, epoch)
        await broker.close()
        await fleet.stop()
        assert not fleet.failures

    run(scenario())
