"""Apache Kafka's controller as the judge of what our brokers say to a controller."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import StorageError
from service.client.node_channel import Channels
from service.controller_client import lifecycle_messages
from service.controller_client.broker_lifecycle import Exit, MoveAway, Recover, Serve, Timing
from service.controller_client.broker_lifecycle_manager import Membership
from service.controller_client.controller_channel import Active, Controllers
from service.controller_client.forwarding import Forwarder
from service.controller_client.lifecycle_messages import Feature, Identity
from service.controller_client.remote_log_catalog import Registration, RpcCatalog
from service.metadata.controller.requests import Endpoint
from service.network.request import RequestContext
from service.security.session import anonymous
from service.wire.api import (
    ApiKey,
    decode_request,
    decode_response,
    encode_request,
    parse_request_header,
    request_module,
)
from service.wire.errors import UnsupportedVersion
from tests.support.kafka_node import CLUSTER_ID, KafkaNode
from tests.support.peers import Address
from tests.support.waiting import until

pytestmark = pytest.mark.java

FEATURES = (
    Feature("metadata.version", 7, 30),
    *(
        Feature(f"{name}.version", 0, high)
        for name, high in (
            ("group", 1), ("transaction", 2), ("share", 1), ("streams", 1), ("kraft", 1),
            ("eligible.leader.replicas", 1),
        )
    ),
)  # fmt: skip


class KafkasQuorum:
    """One voter, for ever."""

    def __init__(self, node: KafkaNode) -> None:
        lines = (node.data.parent / "server.properties").read_text().splitlines()
        settings = dict(line.split("=", 1) for line in lines)
        host, _, port = settings["controller.quorum.voters"].partition("@")[2].rpartition(":")
        self.address = Address(host, int(port))

    def active(self) -> Active:
        return Active(1, 1, self.address)


class Broker:
    def __init__(self, quorum: KafkasQuorum, node_id: int, incarnation: int) -> None:
        identity = Identity(
            node_id,
            UUID(int=incarnation << 64 | 1),
            CLUSTER_ID,
            (Endpoint("PLAINTEXT", "127.0.0.1", 1),),
            FEATURES,
            log_dirs=(UUID(int=incarnation << 70 | 5),),
        )
        self.told: list[Any] = []
        self.channels = Channels()
        self.controllers = Controllers(node_id, quorum, self.channels)
        self.membership = Membership(
            identity, self.controllers, self.told.append, Timing(heartbeat_interval_ms=500)
        )

    async def serves(self) -> None:
        self.membership.start()
        await until(lambda: self.membership.epoch >= 0)
        self.membership.published(1_000_000)
        await until(lambda: Recover() in self.told)
        self.membership.logs_ready()
        await until(lambda: Serve() in self.told)

    async def close(self) -> None:
        await self.membership.close()
        await self.channels.close()


@pytest.fixture(scope="module")
def quorum(tmp_path_factory: pytest.TempPathFactory) -> Any:
    node = KafkaNode(tmp_path_factory.mktemp("kafka") / "node", heap="512m")
    yield KafkasQuorum(node)
    node.stop()


def test_a_broker_registers_is_unfenced_and_leaves_under_control(quorum: KafkasQuorum) -> None:
    async def scenario() -> None:
        broker = Broker(quorum, 7, 1)
        await broker.serves()
        block = lifecycle_messages.producer_ids_allocated(
            await broker.controllers.ask(
                ApiKey.ALLOCATE_PRODUCER_IDS,
                lifecycle_messages.producer_ids(7, broker.membership.epoch),
                timeout_ms=5_000,
            )
        )
        assert block.size == 1_000
        broker.membership.terminate()
        await until(lambda: len(broker.told) == 4)
        assert [type(one) for one in broker.told] == [Recover, Serve, MoveAway, Exit]
        assert broker.told[-1].reason == "the controller has moved all leaderships away"
        await broker.close()

    asyncio.run(scenario())


def test_a_second_process_of_the_same_id_is_refused_while_the_first_lives(
    quorum: KafkasQuorum, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        first, second = Broker(quorum, 8, 2), Broker(quorum, 8, 3)
        await first.serves()
        second.membership.start()
        await until(lambda: "duplicate_broker_registration" in caplog.text)
        assert second.membership.epoch == -1
        await second.close()
        await first.close()

    asyncio.run(scenario())


def test_an_envelope_is_taken_and_its_answer_is_the_clients(quorum: KafkasQuorum) -> None:
    async def scenario() -> None:
        broker = Broker(quorum, 9, 4)
        caught_up = 0

        async def catch_up() -> None:
            nonlocal caught_up
            caught_up += 1

        module = request_module(ApiKey.CREATE_TOPICS)
        topic = module.CreatableTopic(
            name="by-envelope", num_partitions=2, replication_factor=1, assignments=(), configs=()
        )
        message = module.CreateTopicsRequest(topics=(topic,), timeout=10_000)
        forwarder = Forwarder(broker.controllers, catch_up)
        for code in (ErrorCode.none, ErrorCode.topic_already_exists):
            frame = encode_request(ApiKey.CREATE_TOPICS, 7, 77, "admin", message)[4:]
            header = parse_request_header(frame)
            context = RequestContext(1, "10.1.2.3", 5, "PLAINTEXT", anonymous("10.1.2.3", "PLAINTEXT"))
            response = await forwarder.forward(context, header, frame, decode_request(header, frame))
            whole = b"".join(one for one in response.parts if isinstance(one, bytes | bytearray | memoryview))
            correlation_id, answer = decode_response(ApiKey.CREATE_TOPICS, 7, whole[4:])
            assert (correlation_id, answer.topics[0].error_code) == (77, code)
        assert caught_up == 2
        await broker.close()

    asyncio.run(scenario())


def test_a_controller_registers_with_the_active_one(quorum: KafkasQuorum) -> None:
    async def scenario() -> None:
        broker = Broker(quorum, 9, 6)
        message = lifecycle_messages.controller_registration(
            30, UUID(int=30), (Endpoint("CONTROLLER", "127.0.0.1", 1),), FEATURES
        )
        answer = await broker.controllers.ask(ApiKey.CONTROLLER_REGISTRATION, message, timeout_ms=5_000)
        lifecycle_messages.controller_registered(answer)
        await broker.close()

    asyncio.run(scenario())


def test_kafkas_controller_has_no_catalog_and_that_is_told(quorum: KafkasQuorum) -> None:
    async def scenario() -> None:
        broker = Broker(quorum, 9, 5)
        with pytest.raises(UnsupportedVersion):
            await broker.controllers.ask(ApiKey.COMMIT_CATALOG, None, timeout_ms=5_000)
        catalog = RpcCatalog(broker.controllers, _Nothing(), lambda: Registration(9, 1))
        with pytest.raises(StorageError, match="does not serve any version of CommitCatalog"):
            await catalog.barrier()
        versions = await broker.channels.to(quorum.address).versions()
        ours = {key: one for key, one in versions.items() if key in CONTROLLERS_ALONE}
        assert ours == CONTROLLERS_ALONE
        await broker.close()

    asyncio.run(scenario())


CONTROLLERS_ALONE = {
    ApiKey.VOTE: (0, 2), ApiKey.BEGIN_QUORUM_EPOCH: (0, 1), ApiKey.END_QUORUM_EPOCH: (0, 1),
    ApiKey.DESCRIBE_QUORUM: (0, 2), ApiKey.ALTER_PARTITION: (2, 3), ApiKey.ENVELOPE: (0, 0),
    ApiKey.FETCH_SNAPSHOT: (0, 1), ApiKey.BROKER_REGISTRATION: (0, 4), ApiKey.BROKER_HEARTBEAT: (0, 2),
    ApiKey.ALLOCATE_PRODUCER_IDS: (0, 0), ApiKey.CONTROLLER_REGISTRATION: (0, 0), ApiKey.FETCH: (4, 18),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: (0, 0), ApiKey.UPDATE_RAFT_VOTER: (0, 0),
    ApiKey.ADD_RAFT_VOTER: (0, 1), ApiKey.REMOVE_RAFT_VOTER: (0, 0),
}  # fmt: skip


class _Nothing:
    """The image of a node that has nothing."""

    def entry(self, topic_id: UUID, partition: int) -> None:
        return None

    def rewrite(self, topic_id: UUID, partition: int) -> None:
        return None

    def erasures(self) -> dict[UUID, Any]:
        return {}

    def erased(self, erasure_id: UUID) -> dict[Any, frozenset[int]]:
        return {}

    def tombstones(self) -> dict[UUID, Any]:
        return {}

    async def reached(self, offset: int) -> None:
        return None
