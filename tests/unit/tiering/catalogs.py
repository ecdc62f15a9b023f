"""The catalog of `world` decided by the controller's own rules, and reached over an unkind network."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.controller_client.controller_channel import Active, Controllers
from service.controller_client.remote_log_catalog import (
    Registration,
    RpcCatalog,
    commits_of,
    error_response,
    response_of,
)
from service.metadata.controller.catalog_control import commit_catalog, remote_log_record
from service.metadata.controller.requests import CatalogSender, Endpoint, ResourceType
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.records import (
    ConfigRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoteLogRecord,
    TopicRecord,
)
from service.remote.catalog import CatalogCommit, CatalogEntry, CatalogResult
from service.remote.stores.errors import StoreUnavailable
from service.wire.api import (
    decode_request,
    decode_response,
    encode_request,
    parse_request_header,
    response_frame,
)
from tests.unit.tiering.world import CatalogView, MemoryCatalog, faulty

BROKER = Registration(1, 10)


class ImageCatalog(MemoryCatalog):
    """Each commit is decided on a metadata image, and its record is read for what the image says then.

    `leaders` are the brokers that lead other partitions than broker 1 does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.leaders: dict[tuple[UUID, int], int] = {}
        self.brokers = {1: 10, 2: 20}

    async def commit_from(
        self, sender: CatalogSender, commits: Sequence[CatalogCommit]
    ) -> list[CatalogResult]:
        """Commit for a broker. Raises `RequestError` STALE_BROKER_EPOCH."""
        await asyncio.sleep(0)
        with faulty(self.decide("commit", str(commits[0].tip)), "commit"):
            return [self._commit(one, sender) for one in commits]

    def _commit(self, one: CatalogCommit, sender: CatalogSender | None = None) -> CatalogResult:
        decision = commit_catalog(self._image(), [one], sender=sender)
        for frame in decision.frames:
            record = frame.record
            assert isinstance(record, RemoteLogRecord)
            assert record.topic_id is not None
            values = {name: getattr(record, name) for name in CatalogEntry._fields}
            self.entries[record.topic_id, record.partition_id] = CatalogEntry(**values)
            self.history.append(one)
        [result] = decision.response
        return result

    def _image(self) -> MetadataImage:
        records: list[Any] = [
            RegisterBrokerRecord(
                broker_id=number,
                incarnation_id=UUID(int=number),
                broker_epoch=epoch,
                end_points=(),
                rack=None,
            )
            for number, epoch in self.brokers.items()
        ]
        for number, topic_id in enumerate(sorted({topic_id for topic_id, _ in self.leader_epochs})):
            name = f"topic-{number}"
            records.append(TopicRecord(name=name, topic_id=topic_id))
            off = topic_id in self.off
            for key, value in (("remote.storage.enable", not off), ("remote.log.delete.on.disable", off)):
                records.append(
                    ConfigRecord(
                        resource_type=ResourceType.TOPIC,
                        resource_name=name,
                        name=key,
                        value=str(value).lower(),
                    )
                )
        for (topic_id, partition), epoch in self.leader_epochs.items():
            records.append(
                PartitionRecord(
                    partition_id=partition,
                    topic_id=topic_id,
                    replicas=(1,),
                    isr=(1,),
                    removing_replicas=(),
                    adding_replicas=(),
                    leader=self.leaders.get((topic_id, partition), 1),
                    leader_epoch=epoch,
                    partition_epoch=epoch,
                    directories=(),
                )
            )
        records += [remote_log_record(*key, entry) for key, entry in self.entries.items()]
        return MetadataDelta(MetadataImage()).replay_all(records).build(len(records), 1, 0)


class Wire:
    """CommitCatalog from a broker to the controller, as bytes: lost on either way, doubled, late, refused."""

    def __init__(self, catalog: MemoryCatalog, random: Random) -> None:
        self.catalog = catalog
        self.fault_share = 0.0
        self.served = 0
        self._random = random
        self._late: list[bytes] = []

    async def call(
        self, endpoint: Any, api_key: int, version: int | None, message: Any, *, timeout_ms: int | None = None
    ) -> Any:
        frame = encode_request(api_key, version or 0, 7, "broker", message)[4:]
        if self._happens():
            raise ConnectionRefusedError("nobody listens")
        if self._happens():
            self._late.append(frame)
            raise ConnectionResetError("sent, and the connection was lost")
        await self.deliver()
        try:
            answer = await self.serve(frame)
            while self._happens():
                answer = await self.serve(frame)
        except StoreUnavailable as e:
            raise ConnectionResetError(f"the answer was lost: {e}") from e
        if self._happens():
            raise ConnectionResetError("the answer was lost")
        if self._happens():
            self._late.append(frame)  # once more, after whatever comes next
        return decode_response(api_key, 0, answer)[1]

    def _happens(self) -> bool:
        return self._random.random() < self.fault_share

    async def deliver(self) -> None:
        """Requests that were on their way for long arrive; nobody hears what is said to them."""
        late, self._late = self._late, []
        self._random.shuffle(late)
        for frame in late:
            try:
                await self.serve(frame)
            except StoreUnavailable:
                continue

    async def serve(self, frame: bytes) -> memoryview:
        """The controller's side."""
        self.served += 1
        header = parse_request_header(frame)
        request = decode_request(header, frame)
        if self._happens():
            answer = error_response(ErrorCode.not_controller)
        else:
            sender = CatalogSender(request.broker_id, request.broker_epoch)
            commits = commits_of(request, lambda topic_id: "events")
            try:
                results = await self._decide(sender, commits) if commits else []
                for topic_id in request.forgotten_topics:
                    self.catalog.buried.pop(topic_id, None)
                answer = response_of(results, 5)
            except RequestError as e:
                answer = error_response(e.code)
        return memoryview(response_frame(header, answer))[4:]

    async def _decide(self, sender: CatalogSender, commits: Sequence[CatalogCommit]) -> list[CatalogResult]:
        if isinstance(self.catalog, ImageCatalog):
            return await self.catalog.commit_from(sender, commits)
        return await self.catalog.commit(commits)


class Reached:
    """A node's image that has everything, but for what `view` lags."""

    def __init__(self, view: CatalogView) -> None:
        self.view = view
        self.entry = view.entry
        self.tombstones = view.tombstones
        self.reached_offsets: list[int] = []

    async def reached(self, offset: int) -> None:
        self.reached_offsets.append(offset)


class Quorum:
    def active(self) -> Active | None:
        return Active(9, 1, Endpoint("CONTROLLER", "controller", 9093))


def rpc_catalog(
    view: CatalogView, wire: Wire, registration: Registration = BROKER, *, timeout_ms: int = 2_000
) -> RpcCatalog:
    """The catalog of a broker behind `wire`."""
    controllers = Controllers(registration.broker_id, Quorum(), wire, retry_ms=1)
    return RpcCatalog(controllers, Reached(view), lambda: registration, timeout_ms=timeout_ms)


def by_rpc(view: CatalogView, wire: Wire, registration: Registration = BROKER) -> None:
    """Let `view` commit through `wire` from now on."""
    catalog = rpc_catalog(view, wire, registration)

    async def commit(commits: Sequence[CatalogCommit]) -> list[CatalogResult]:
        return await catalog.commit(commits)

    view.commit = commit  # type: ignore[method-assign]
    view.forget_topics = catalog.forget_topics  # type: ignore[method-assign]
