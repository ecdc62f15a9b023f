"""Several brokers that tier to one bucket, with one metadata log that each has read up to somewhere.

The metadata is real: images made by replay, commits decided by the controller's own rules, each member's
house the node's own class. What is not: replicas, of which every member has one of every partition, alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.threads import SystemThreads
from service.controller_client.controller_channel import Controllers
from service.controller_client.keeper_candidate import ClusterPrefixOwner
from service.controller_client.remote_log_catalog import (
    Registration,
    RpcCatalog,
    commits_of,
    error_response,
    response_of,
)
from service.controller_client.rewrite_messages import answer_numbers
from service.metadata.controller.catalog_control import commit_catalog, forget_topics
from service.metadata.controller.requests import CatalogSender, ResourceType
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage, live_rewrite
from service.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoteLogRecord,
    RemoveTopicRecord,
    TombstoneRecord,
    TopicRecord,
)
from service.remote.catalog import (
    CatalogCommit,
    CatalogEntry,
    CatalogResult,
    Erasure,
    RewriteIntent,
    Tombstone,
)
from service.remote.format.manifest_codec import TopicsFileRow
from service.remote.format.stamp import Writer
from service.remote.stores.store import ObjectStore
from service.tiering.metadata_copy import MetadataSnapshot
from service.tiering.shared_objects import TopicsSnapshot
from service.wire.api import decode_request, parse_request_header, response_frame
from tests.unit.tiering.catalog_rewrites import RewritesView
from tests.unit.tiering.catalogs import Quorum as OneController
from tests.unit.tiering.catalogs import Wire, told
from tests.unit.tiering.stepped import SteppedManager
from tests.unit.tiering.world import CLUSTER, MemoryCatalog, Replica, World, faulty

NOBODY = -1


class Quorum(MemoryCatalog):
    """The metadata of one cluster, and how it came to be; `log` is what its brokers read."""

    def __init__(self, topics: Mapping[str, UUID], partitions: int) -> None:
        super().__init__()
        self.image = MetadataImage()
        self.log: list[tuple[MetadataImage, MetadataImage, MetadataDelta]] = []
        for name, topic_id in topics.items():
            self.create(name, topic_id, partitions)

    def write(self, *records: Any) -> None:
        """One batch is committed."""
        before = self.image
        delta = MetadataDelta(before).replay_all(records)
        self.image = delta.build(before.offset + len(records), 1, 0)
        self.log.append((before, self.image, delta))
        self.entries = dict(self.image.remote)
        self.buried = dict(self.image.tombstones)
        self.intents, self.orders = dict(self.image.rewrites), dict(self.image.erasures)
        self.notes = {erasure_id: dict(notes) for erasure_id, notes in self.image.erased.items()}
        self.leader_epochs = {
            (topic.id, number): partition.leader_epoch
            for topic in self.image.topics_by_id.values()
            for number, partition in topic.partitions.items()
        }

    def image_now(self) -> MetadataImage:
        return self.image

    def read(self, *records: Any) -> None:
        if records:
            self.write(*records)

    def clone(self) -> Quorum:
        """Another cluster that has this one's past."""
        other = Quorum({}, 0)
        other.image, other.log, other.history = self.image, list(self.log), list(self.history)
        other.entries, other.buried = dict(self.entries), dict(self.buried)
        other.intents, other.orders, other.notes = dict(self.intents), dict(self.orders), dict(self.notes)
        other.leader_epochs = dict(self.leader_epochs)
        other.published_end = dict(self.published_end)
        return other

    # -- topics ----------------------------------------------------------------------------------------------

    def create(self, name: str, topic_id: UUID, partitions: int) -> None:
        self.write(
            TopicRecord(name=name, topic_id=topic_id),
            *(
                PartitionRecord(
                    partition_id=number,
                    topic_id=topic_id,
                    replicas=(1, 2, 3),
                    isr=(1,),
                    removing_replicas=(),
                    adding_replicas=(),
                    leader=NOBODY,
                    leader_epoch=0,
                    partition_epoch=0,
                    directories=(),
                )
                for number in range(partitions)
            ),
        )
        self.set_tiered(name, on=True)

    def set_tiered(self, name: str, *, on: bool) -> None:
        values = {
            "remote.storage.enable": str(on).lower(),
            "remote.log.delete.on.disable": str(not on).lower(),
        }
        self.write(
            *(
                ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=name, name=key, value=value)
                for key, value in values.items()
            )
        )

    def delete(self, name: str, now_ms: int) -> None:
        topic = self.image.topics_by_name[name]
        self.write(RemoveTopicRecord(topic_id=topic.id))
        self.write(
            TombstoneRecord(topic_id=topic.id, name=name, partitions=len(topic.partitions), deleted_ms=now_ms)
        )

    # -- brokers ---------------------------------------------------------------------------------------------

    def register(self, broker_id: int, incarnation: UUID) -> int:
        """A new process of that broker, which is fenced yet; its epoch."""
        self._lead_elsewhere(broker_id)
        epoch = self.image.offset + 1
        self.write(
            RegisterBrokerRecord(
                broker_id=broker_id, incarnation_id=incarnation, broker_epoch=epoch, end_points=(), rack=None
            )
        )
        return epoch

    def unfence(self, broker_id: int) -> None:
        self._fenced(broker_id, -1)
        for topic in self.image.topics_by_id.values():
            for number, partition in topic.partitions.items():
                if partition.leader == NOBODY:
                    self.elect(topic.id, number, broker_id)

    def fence(self, broker_id: int) -> None:
        """End its session: others lead its partitions."""
        self._fenced(broker_id, 1)
        self._lead_elsewhere(broker_id)

    def _fenced(self, broker_id: int, change: int) -> None:
        epoch = self.image.brokers[broker_id].epoch
        self.write(BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=change))

    def unfenced(self) -> list[int]:
        return sorted(one.id for one in self.image.brokers.values() if not one.fenced)

    def _lead_elsewhere(self, broker_id: int) -> None:
        left = [one for one in self.unfenced() if one != broker_id]
        for topic in list(self.image.topics_by_id.values()):
            for number, partition in topic.partitions.items():
                if partition.leader == broker_id:
                    self.elect(topic.id, number, left[number % len(left)] if left else NOBODY)

    def elect(self, topic_id: UUID, partition: int, leader: int) -> None:
        self.write(PartitionChangeRecord(partition_id=partition, topic_id=topic_id, leader=leader))

    def leader(self, topic_id: UUID, partition: int) -> int:
        found = self.image.partition(topic_id, partition)
        assert found is not None
        return found.leader

    # -- the catalog -----------------------------------------------------------------------------------------

    def decide_from(
        self, sender: CatalogSender, commits: Sequence[CatalogCommit], forgotten: Collection[UUID] = ()
    ) -> tuple[list[CatalogResult], int]:
        """CommitCatalog, as the active controller does it: faults and all. Raises `RequestError`."""
        what = str(commits[0].tip) if commits else "barrier"
        with faulty(self.decide("commit" if commits else "barrier", what), what):
            if forgotten:
                frames = forget_topics(self.image, forgotten, sender=sender).frames
                results: list[CatalogResult] = []
            else:
                decision = commit_catalog(self.image, commits, sender=sender)
                frames, results = decision.frames, decision.response
            made = {(one.tip.topic_id, one.tip.partition, one.entry): one for one in commits}
            if frames:
                self.write(*(frame.record for frame in frames))
            for record in (frame.record for frame in frames):
                if isinstance(record, RemoteLogRecord):
                    values = {name: getattr(record, name) for name in CatalogEntry._fields}
                    assert record.topic_id is not None
                    self.history.append(made[record.topic_id, record.partition_id, CatalogEntry(**values)])
        return results, self.image.offset


class ClusterWire(Wire):
    """CommitCatalog from one member, as bytes, to a controller that knows its brokers."""

    catalog: Quorum
    is_cut_off = False

    async def call(
        self, endpoint: Any, api_key: int, version: int | None, message: Any, **options: Any
    ) -> Any:
        if self.is_cut_off:
            raise ConnectionRefusedError("no way to the controller")
        return await super().call(endpoint, api_key, version, message, **options)

    async def serve(self, frame: bytes) -> memoryview:
        self.served += 1
        header = parse_request_header(frame)
        request = decode_request(header, frame)
        sender = CatalogSender(request.broker_id, request.broker_epoch)
        if self._happens():
            answer = error_response(ErrorCode.not_controller)
        else:
            results: list[CatalogResult] = []
            try:
                answers = told(self.catalog, request, sender)
                if request.rewrites or request.erased or request.erasures:
                    offset = self.catalog.image.offset
                else:
                    results, offset = self.catalog.decide_from(
                        sender, commits_of(request, lambda topic_id: "events"), request.forgotten_topics
                    )
                answer = replace(response_of(results, offset), rewrite_answers=answer_numbers(answers))
            except RequestError as e:
                answer = error_response(e.code, e.message)
        return memoryview(response_frame(header, answer))[4:]


class _Inline(Executor):
    """Work is done when it is handed over: whoever waits for it goes on in a later turn of the loop."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as e:
            future.set_exception(e)
        return future


class InlineThreads(SystemThreads):
    """No threads: the same seed gives the same order of everything."""

    def pool(self, name: str, size: int, *, nice: int = 0) -> Executor:
        return _Inline()


class _Sending:
    """The decisions of a quorum about rewrites and erasures, for one broker process."""

    def __init__(self, quorum: Quorum, sender: CatalogSender) -> None:
        self.decide_rewrites = partial(quorum.decide_rewrites, sender=sender)
        self.decide_notes = partial(quorum.decide_notes, sender=sender)
        self.decide_start = partial(quorum.decide_start, sender=sender)
        self.decide_finish = partial(quorum.decide_finish, sender=sender)
        self.decide_remove = partial(quorum.decide_remove, sender=sender)


class Here(RewritesView):
    """The catalog and the barrier of a broker in the process of its controller."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._sender = CatalogSender(member.number, member.broker_epoch)
        self.catalog = _Sending(member.quorum, self._sender)

    def rewrite(self, topic_id: UUID, partition: int) -> RewriteIntent | None:
        return live_rewrite(self._member.image, (topic_id, partition))

    def erasures(self) -> dict[UUID, Erasure]:
        return dict(self._member.image.erasures)

    def erased(self, erasure_id: UUID) -> dict[tuple[UUID, int], frozenset[int]]:
        return dict(self._member.image.erased.get(erasure_id, {}))

    def entry(self, topic_id: UUID, partition: int) -> CatalogEntry | None:
        return self._member.image.remote.get((topic_id, partition))

    def tombstones(self) -> Mapping[UUID, Tombstone]:
        return self._member.image.tombstones

    async def reached(self, offset: int) -> None:
        self._member.catch_up()

    async def commit(self, commits: Sequence[CatalogCommit]) -> list[CatalogResult]:
        await self._step()
        return self._member.quorum.decide_from(self._sender, commits)[0]

    async def forget_topics(self, topic_ids: Collection[UUID]) -> None:
        await self._step()
        self._member.quorum.decide_from(self._sender, [], topic_ids)

    async def barrier(self) -> int:
        await self._step()
        try:
            offset = self._member.quorum.decide_from(self._sender, [])[1]
        except RequestError as e:
            raise StorageError(str(e)) from e
        self._member.catch_up()
        return offset

    async def _step(self) -> None:
        await asyncio.sleep(0)
        if self._member.is_cut_off:
            raise StorageError("no way to the controller")


class Member(World):
    """One broker of a cluster. `image` is what it has read of the metadata: `catch_up` reads the rest."""

    def __init__(
        self,
        tmp: Path,
        number: int,
        quorum: Quorum,
        bucket: ObjectStore,
        *,
        is_remote: bool = False,
        random: Random | None = None,
        seed: int = 1000,
        **options: Any,
    ) -> None:
        self.number = number
        self.quorum = quorum
        self.image = MetadataImage()
        self._read = 0
        self.is_cut_off = False
        self.incarnations: list[UUID] = []
        self.wire = ClusterWire(quorum, random or Random(number)) if is_remote else None
        self.house: ClusterPrefixOwner | None = None
        self.metadata: MetadataSnapshot | None = None
        super().__init__(tmp / str(number), bucket, quorum, seed=seed + number, **options)

    def _boot(self) -> SteppedManager:
        world = replace(self._ids, clock=self.clock, threads=InlineThreads())
        incarnation = world.new_uuid()
        self.incarnations.append(incarnation)
        self.house = None
        self.broker_epoch = self.quorum.register(self.number, incarnation)
        self.catch_up()
        here = Here(self)
        catalog: Any = here
        if self.wire is not None:
            controllers = Controllers(self.number, OneController(), self.wire, retry_ms=1)
            registration = Registration(self.number, self.broker_epoch)
            catalog = RpcCatalog(controllers, here, lambda: registration, timeout_ms=60)
        house = ClusterPrefixOwner(self.number, incarnation, lambda: self.image, catalog.barrier)
        manager = SteppedManager(
            self.store,
            catalog,
            cluster_id=CLUSTER,
            writer=Writer(self.number, incarnation),
            partitions=lambda: [one for one in self.replicas if self._is_led(one)],
            find=self._find_led,
            topics=self.topics,
            metadata=lambda: self.metadata,
            world=world,
            owner=house,
            settings=self.settings,
            manifest_limits=self.limits,
            probe=lambda step, tip: self.probe(step, tip),
        )
        self.house, self.manager = house, manager
        return manager

    def cut_off(self, is_cut_off: bool = True) -> None:
        """Nothing that this member sends reaches the controller, or does again."""
        self.is_cut_off = is_cut_off
        if self.wire is not None:
            self.wire.is_cut_off = is_cut_off

    def _is_led(self, replica: Replica) -> bool:
        found = self.image.partition(replica.tip.topic_id, replica.tip.partition)
        return found is not None and found.leader == self.number

    def _find_led(self, topic_id: UUID, partition: int) -> Replica | None:
        found = self._find(topic_id, partition)
        return found if found is not None and self._is_led(found) else None

    def led(self) -> Iterator[Replica]:
        return (one for one in self.replicas if self._is_led(one))

    def topics(self) -> TopicsSnapshot:
        image = self.image
        rows = [
            TopicsFileRow(one.name, one.id, len(one.partitions), {}) for one in image.topics_by_name.values()
        ]
        return TopicsSnapshot(image.offset, image.topics_by_id.keys(), lambda: rows)

    def catch_up(self, batches: int | None = None) -> None:
        """Read so many batches of the metadata log, or all that there are."""
        end = len(self.quorum.log) if batches is None else min(len(self.quorum.log), self._read + batches)
        while self._read < end:
            before, image, delta = self.quorum.log[self._read]
            self._read += 1
            self.image = image
            for replica in self.replicas:
                found = image.partition(replica.tip.topic_id, replica.tip.partition)
                if found is not None and found.leader == self.number:
                    replica.leader_epoch = found.leader_epoch
            if self.house is not None:
                self._published(self.house, before, image, delta)

    def _published(
        self, house: ClusterPrefixOwner, before: MetadataImage, image: MetadataImage, delta: MetadataDelta
    ) -> None:
        house.published(before, image, delta)
        for partition in house.moved(before, image, delta):
            self.manager.scheduler.changed(*partition)
        if delta.deleted_topics:
            self.manager.maintenance.topics_deleted()
        if delta.topics or delta.deleted_topics or delta.configs:
            self.manager.maintenance.topics_changed()

    @property
    def is_keeper(self) -> bool:
        """Return whether this process is the keeper, as far as it knows."""
        return self.manager._fence.is_ours
