"""Broker 1 of three: its image is made by hand and applied as a node does it; requests come as frames."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from uuid import UUID

from service.base.steps import Steps
from service.base.timers import Timers
from service.base.types import TopicIdPartition
from service.config.replication import ReplicationConfig
from service.config.settings import BrokerConfig, LogConfig
from service.hot.manager import LogManager
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage, PartitionImage, TopicImage
from service.metadata.records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from service.network.request import Answer, Later, RequestContext, Response
from service.partition.fetch_sessions import FetchSessions
from service.partition.partition import Partition
from service.records.builder import BatchBuilder
from service.replicas.metadata_applier import Applier
from service.replicas.partition_registry import Replicas
from service.replication.throttle import Quota, ReplicationThrottle
from service.security.session import anonymous
from service.serving.api_table import BROKER_APIS
from service.serving.dispatch import Dispatcher
from service.serving.group_coordinators import GroupCoordinators
from service.serving.internal_topics import InternalTopics
from service.serving.request_host import Broker
from service.serving.topic_coordinator import CoordinatorParts
from service.wire.api import ApiKey, decode_response, encode_request, request_module
from tests.support.world import START_MS, make_world

OUTSIDE, INSIDE = "OUTSIDE", "INSIDE"
"""Two listeners; of the brokers, 3 has no `OUTSIDE`."""
ME, OTHER, HIDDEN = 1, 2, 3
TOPIC: Final = UUID(int=100)
CLUSTER: Final = "cccccccccccccccccccccc"


def directory(broker_id: int) -> UUID:
    return UUID(int=1000 + broker_id)


def registered(
    broker_id: int, *, fenced: bool = False, epoch: int = 0, suffix: str = ""
) -> RegisterBrokerRecord:
    listeners = (INSIDE,) if broker_id == HIDDEN else (OUTSIDE, INSIDE)
    return RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=UUID(int=broker_id),
        broker_epoch=epoch or 10 * broker_id,
        end_points=tuple(
            BrokerEndpoint(
                name=name,
                host=f"{name.lower()}-{broker_id}{suffix}",
                port=9090 + broker_id,
                security_protocol=0,
            )
            for name in listeners
        ),
        rack=f"rack-{broker_id}",
        fenced=fenced,
        log_dirs=(directory(broker_id),),
    )


def fenced(broker_id: int, *, back: bool = False) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker_id, broker_epoch=10 * broker_id, fenced=-1 if back else 1
    )


def topic(name: str = "t", topic_id: UUID = TOPIC) -> TopicRecord:
    return TopicRecord(name=name, topic_id=topic_id)


def partition(number: int, leader: int, *, topic_id: UUID = TOPIC, **more: Any) -> PartitionRecord:
    """Return the record of a partition with one replica, unless `more` says otherwise."""
    replicas = more.pop("replicas", (leader,))
    fields: dict[str, Any] = {
        "isr": replicas,
        "leader_epoch": 0,
        "partition_epoch": 0,
        "directories": tuple(map(directory, replicas)),
    }
    return PartitionRecord(
        partition_id=number, topic_id=topic_id, replicas=replicas, leader=leader, **{**fields, **more}
    )


def changed(number: int, topic_id: UUID = TOPIC, **what: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=number, topic_id=topic_id, **what)


def moved(number: int, to: int, topic_id: UUID = TOPIC) -> PartitionChangeRecord:
    """The end of a reassignment: another broker has it, this one does not."""
    return changed(number, topic_id, replicas=(to,), isr=(to,), leader=to, directories=(directory(to),))


class OneOfThree:
    """`tell` is the metadata log, `ask` a client."""

    def __init__(self, broker: Broker, applier: Applier, logs: LogManager, metadata: SimpleNamespace) -> None:
        self.broker, self.applier, self.logs = broker, applier, logs
        self._metadata = metadata
        self._dispatcher = Dispatcher(broker, BROKER_APIS)
        self._numbers = itertools.count(1)

    @property
    def image(self) -> MetadataImage:
        return self.broker.image

    async def start(self, known: Sequence[MetadataRecord]) -> None:
        """Begin with the image of these records."""
        delta = MetadataDelta(self.image).replay_all(known)
        self._metadata.image = delta.build(len(known), 1, START_MS)
        await self.applier.start(self.image)

    async def tell(self, *records: MetadataRecord) -> None:
        """Publish an image with these records on top, and wait until the node is what it says."""
        applied = self.publish(*records)
        if applied is not None:
            await applied

    def publish(self, *records: MetadataRecord) -> Any:
        before = self._metadata.image
        delta = MetadataDelta(before).replay_all(records)
        self._metadata.image = delta.build(before.offset + len(records), 1, START_MS)
        return self.applier.apply(before, self._metadata.image, delta)

    def handle(
        self, key: ApiKey, message: Any, version: int, context: RequestContext | None = None, number: int = 0
    ) -> Answer | Later:
        """Return the immediate answer to a canonical message."""
        context = context or RequestContext(1, "127.0.0.1", 50_000, OUTSIDE, anonymous("127.0.0.1", OUTSIDE))
        frame = memoryview(bytearray(encode_request(key, version, number, "test", message)))[4:]
        return self._dispatcher(context, frame)

    async def ask(
        self,
        key: ApiKey,
        message: Any,
        version: int,
        listener: str = OUTSIDE,
        context: RequestContext | None = None,
    ) -> Any:
        """The canonical answer to a canonical message. `context`: that of a connection with more requests."""
        session = anonymous("127.0.0.1", listener)
        context = context or RequestContext(1, "127.0.0.1", 50_000, listener, session)
        number = next(self._numbers)
        answer: Any = self.handle(key, message, version, context, number)
        response = answer if isinstance(answer, Response) else await answer
        parts = [
            part if isinstance(part, bytes | bytearray | memoryview) else part.read()
            for part in response.parts
        ]
        correlation_id, decoded = decode_response(key, version, bytearray(b"".join(parts))[4:])
        assert correlation_id == number
        return decoded

    async def call(self, key: ApiKey, name: str, version: int, listener: str = OUTSIDE, **fields: Any) -> Any:
        return await self.ask(key, getattr(request_module(key), name)(**fields), version, listener)

    # -- single partitions

    async def produce(self, number: int = 0, *, topic_id: UUID = TOPIC, acks: int = -1) -> Any:
        """The whole answer to one record."""
        builder = BatchBuilder()
        builder.add(START_MS, None, b"value")
        module = request_module(ApiKey.PRODUCE)
        data = module.PartitionProduceData(index=number, records=bytes(builder.build()))
        topic_data = module.TopicProduceData(topic_id=topic_id, partition_data=(data,))
        return await self.call(
            ApiKey.PRODUCE, "ProduceRequest", 13, transactional_id=None, acks=acks,
            timeout=timedelta(seconds=1), topic_data=(topic_data,),
        )  # fmt: skip

    async def fetch(self, *numbers: int, topic_id: UUID = TOPIC, version: int = 17, **fields: Any) -> Any:
        module = request_module(ApiKey.FETCH)
        epoch = fields.pop("current_leader_epoch", -1)
        asked = tuple(
            module.FetchPartition(
                partition=one, fetch_offset=0, partition_max_bytes=1 << 20, current_leader_epoch=epoch
            )
            for one in numbers
        )
        message = {
            "max_wait": timedelta(0), "min_bytes": 1, "isolation_level": 0,
            "session_id": 0, "session_epoch": -1,
            "topics": (module.FetchTopic(topic_id=topic_id, partitions=asked),) if asked else (),
            "forgotten_topics_data": (), "rack_id": "", **fields,
        }  # fmt: skip
        return await self.call(ApiKey.FETCH, "FetchRequest", version, **message)


class _Unfollowed:
    """The applier's `ReplicaManager` where followers are the test's own: nobody fetches by itself."""

    def __init__(self) -> None:
        self.leader_throttle = ReplicationThrottle(ME, Quota(windows=11, window_s=1))

    def update_brokers(self, image: MetadataImage, changed: Iterable[int]) -> list[TopicIdPartition]:
        return []

    def configure(self, config: ReplicationConfig) -> bool:
        return self.leader_throttle.limit(config.leader_replication_throttled_rate)

    def throttle(self, topic: TopicImage, leaders: Collection[str], followers: Collection[str]) -> bool:
        return self.leader_throttle.mark(topic.name, leaders)

    def reevaluate(self, tips: Iterable[TopicIdPartition]) -> Steps[None]:
        yield from ()

    def note_directory(self, partition: Partition, replica: PartitionImage) -> None:
        pass

    def failed(self, partition: Partition, replica: PartitionImage) -> None:
        pass

    def lost(self, tip: TopicIdPartition, replica: PartitionImage) -> None:
        pass

    def lead(self, partition: Partition, replica: PartitionImage) -> None:
        if partition.archive.loads_to is None:
            partition.log.appender.note_leader_epoch(replica.leader_epoch)
        partition.lead(replica.leader_epoch, None)

    def follow(self, partition: Partition, replica: PartitionImage, *, is_unclean: bool) -> None:
        partition.follow(replica.leader_epoch)

    def moved_start(self, tip: TopicIdPartition) -> None:
        pass

    def leave(self, tip: TopicIdPartition) -> None:
        pass


class _NoController:
    """Controller of which every use is a mistake of the test."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the controller is asked for {name}")


def _config(directories: Iterable[Path]) -> BrokerConfig:
    return BrokerConfig.from_properties({
        "node.id": str(ME),
        "broker.rack": "rack-1",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": ",".join(map(str, directories)),
        "firn.disk.watermarks.enable": "false",
    })  # fmt: skip


async def _assemble(config: BrokerConfig) -> OneOfThree:
    """Put a broker together as a node does, without a controller and without fetchers."""
    world = make_world()
    logs = LogManager(config.log_dirs, world)
    logs.claim(CLUSTER, ME)
    await logs.open_all(lambda _: LogConfig())
    metadata = SimpleNamespace(image=MetadataImage())
    replicas, timers = Replicas(), Timers(asyncio.get_running_loop())
    replication = _Unfollowed()
    applier = Applier(config, logs, replicas, None, timers.purgatory, cast("Any", replication))
    image: Callable[[], MetadataImage] = lambda: metadata.image  # noqa: E731
    controller: Any = _NoController()
    topics = InternalTopics(lambda: config, image, controller)
    groups = GroupCoordinators(CoordinatorParts(lambda: config, image, world, timers, replicas, logs, topics))
    applier.watch(groups)
    plane = SimpleNamespace(metadata=metadata, admin=controller, epoch=-1, decides=None, forwarder=None)
    broker = Broker(
        lambda: config,
        world.clock,
        CLUSTER,
        cast("Any", plane),
        replicas,
        logs,
        world.threads,
        timers,
        FetchSessions(timers.purgatory, 100, 1000, world.random.randint),
        groups,
    )
    broker.leader_throttle = replication.leader_throttle
    broker.endpoints.update({OUTSIDE: ("outside-1", 9091), INSIDE: ("inside-1", 9091)})
    return OneOfThree(broker, applier, logs, metadata)


@asynccontextmanager
async def one_of_three(
    folder: Path,
    *records: MetadataRecord,
    registers: bool = True,
    known: Sequence[MetadataRecord] = (),
    more_dirs: Sequence[Path] = (),
) -> AsyncIterator[OneOfThree]:
    """Run broker 1 of three. Three brokers are registered and unfenced, unless `registers` is False; then
    `records` are applied. The first image of the node is that of the records `known`."""
    node = await _assemble(_config((folder, *more_dirs)))
    if known:
        await node.start(known)
    try:
        if registers:
            await node.tell(registered(ME), registered(OTHER), registered(HIDDEN))
            plane: Any = node.broker.plane
            plane.epoch = 10 * ME
        if records:
            await node.tell(*records)
        yield node
    finally:
        await node.broker.groups.close()
        node.broker.close()
        await node.logs.close()
