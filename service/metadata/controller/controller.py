"""The controller's shell: each request is decided, proposed to the publisher, and answered once it counts.

Owned by the event loop. Decisions are made one after the other. Each looks at the newest image, committed or
not, and is applied to it before the next one: so of two requests for one name exactly one wins, though both
wait for the same fsync. A large one is made in slices, and those behind it wait. Answers see committed
metadata only. The log, and the committed image, are the publisher's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import Slice
from service.base.steps import Steps
from service.base.world import World
from service.metadata.controller import (
    adoption_control,
    catalog_control,
    cluster_control,
    configs_control,
    features_control,
    partitions_control,
    producer_ids_control,
    topics_control,
)
from service.metadata.controller.decision import Decision
from service.metadata.controller.features_control import FeatureUpdate
from service.metadata.controller.requests import (
    MAX_RECORDS_PER_OPERATION,
    AlterResource,
    AlterResourceResult,
    ConfigRules,
    CreatePartitions,
    CreatePartitionsResult,
    CreateTopic,
    CreateTopicResult,
    DeleteTopic,
    DeleteTopicResult,
    Endpoint,
    PartitionLimit,
    ProducerIdBlock,
    RegisterBroker,
    TopicDefaults,
)
from service.metadata.features import bootstrap_frames, controller_frame
from service.metadata.image import MetadataImage
from service.metadata.publisher import Publisher
from service.remote.catalog import CatalogCommit, CatalogEntry, CatalogResult, Tombstone

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """Whose controller this is."""

    node_id: int
    cluster_id: str
    defaults: TopicDefaults = field(default_factory=TopicDefaults)
    listeners: tuple[Endpoint, ...] = ()
    """where this controller is reached"""
    partition_limit: PartitionLimit | None = None
    """how many partitions there may be; None: no bound is known"""


class Controller:
    """The cluster's controller, on the node that leads the metadata quorum. Is a `tiering.catalog.Catalog`.

    Every coroutine raises `RequestError` where the request as a whole is refused (NOT_CONTROLLER once
    stopped) and `StorageError` where the metadata log cannot be written: what became of the change is then
    unknown.
    """

    def __init__(
        self, options: ControllerOptions, publisher: Publisher, world: World, config_rules: ConfigRules
    ) -> None:
        self._options = options
        self._publisher = publisher
        self._clock = world.clock
        self._new_uuid = world.new_uuid
        self._rules = config_rules
        self._latest: MetadataImage | None = None
        """the newest image, committed or not; None while this node does not decide"""
        self._turn = asyncio.Lock()
        """whose decision is being made"""
        self._sessions: set[int] = set()

    @property
    def image(self) -> MetadataImage:
        """The newest committed image."""
        return self._publisher.image

    @property
    def epoch(self) -> int:
        """The controller's epoch; 0 before `start`."""
        return self._publisher.epoch

    # -- life

    async def start(self) -> None:
        """Take over: from the committed image on, with a registration of this process. Start the publisher
        before, stop it after.

        Raises `StorageError` where the metadata log fails.
        """
        self._latest = self._publisher.image
        registration = controller_frame(self._options.node_id, self._new_uuid(), self._options.listeners)
        await self._run(lambda image: Decision(() if image.features else bootstrap_frames(), None))
        await self._run(lambda _: Decision((registration,), None))

    def stop(self) -> None:
        """Decide nothing more: requests from now on get NOT_CONTROLLER. What was proposed may still count."""
        self._latest = None

    # -- requests

    async def create_topics(
        self, requests: Sequence[CreateTopic], *, validate_only: bool = False
    ) -> list[CreateTopicResult]:
        """Create topics; see `topics_control.create_topics` for the order of the answers."""
        return await self._run(
            lambda image: topics_control.create_topics(
                image,
                requests,
                defaults=self._options.defaults,
                rules=self._rules,
                new_uuid=self._new_uuid,
                limit=self._options.partition_limit,
                validate_only=validate_only,
            )
        )

    async def create_partitions(
        self, requests: Sequence[CreatePartitions], *, validate_only: bool = False
    ) -> list[CreatePartitionsResult]:
        """Have topics grow; see `partitions_control.create_partitions` for the order of the answers."""
        return await self._run(
            lambda image: partitions_control.create_partitions(
                image, requests, limit=self._options.partition_limit, validate_only=validate_only
            )
        )

    async def delete_topics(self, requests: Sequence[DeleteTopic]) -> list[DeleteTopicResult]:
        """Delete topics by name or id; the answers are in no particular order."""
        now_ms = self._clock.now_ms()
        return await self._run(lambda image: topics_control.delete_topics(image, requests, now_ms=now_ms))

    async def incremental_alter_configs(
        self,
        resources: Sequence[AlterResource],
        *,
        validate_only: bool = False,
        via_broker: int | None = None,
    ) -> list[AlterResourceResult]:
        """Change configurations; `via_broker` is the broker to which the client spoke."""
        return await self._run(
            lambda image: configs_control.incremental_alter_configs(
                image, resources, self._rules, validate_only=validate_only, via_broker=via_broker
            )
        )

    async def alter_configs(
        self,
        resources: Sequence[AlterResource],
        *,
        validate_only: bool = False,
        via_broker: int | None = None,
    ) -> list[AlterResourceResult]:
        """As `incremental_alter_configs`; what is set of a resource and not named is deleted."""
        return await self._run(
            lambda image: configs_control.alter_configs(
                image, resources, self._rules, validate_only=validate_only, via_broker=via_broker
            )
        )

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        """Have the cluster's features go to other levels, all of them or none."""
        node_id = self._options.node_id
        await self._run(
            lambda image: features_control.update_features(
                image, updates, node_id=node_id, validate_only=validate_only
            )
        )

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """A block of producer ids that nobody else will ever get."""
        return await self._run(
            lambda image: producer_ids_control.allocate_producer_ids(image, broker_id, broker_epoch)
        )

    async def register_broker(self, request: RegisterBroker) -> int:
        """Register a broker process; returns its epoch. It is fenced until `unfence_broker`."""
        epoch = await self._run(
            lambda image: cluster_control.register_broker(
                image,
                request,
                cluster_id=self._options.cluster_id,
                next_offset=self._publisher.next_offset,
                has_session=request.broker_id in self._sessions,
            )
        )
        self._sessions.add(request.broker_id)
        return epoch

    async def unfence_broker(self, broker_id: int, broker_epoch: int) -> None:
        """The broker serves from now on: it leads what has no leader, in a new leader epoch each."""
        await self._run(lambda image: cluster_control.unfence_broker(image, broker_id, broker_epoch))

    async def fence_broker(self, broker_id: int, broker_epoch: int) -> None:
        """The broker stops: it leads nothing any more, and another process may take its id."""
        await self._run(lambda image: cluster_control.fence_broker(image, broker_id, broker_epoch))
        self._sessions.discard(broker_id)

    async def commit(self, commits: Sequence[CatalogCommit]) -> list[CatalogResult]:
        """Compare-and-set of remote catalog entries, all of a call in one batch."""
        return await self._run(lambda image: catalog_control.commit_catalog(image, commits))

    def entry(self, topic_id: UUID, partition: int) -> CatalogEntry | None:
        """The committed remote catalog entry of a partition."""
        return self.image.remote.get((topic_id, partition))

    def tombstones(self) -> Mapping[UUID, Tombstone]:
        """Deleted topics that may still have objects in the bucket, as committed."""
        return self.image.tombstones

    async def forget_topics(self, topic_ids: Collection[UUID]) -> None:
        """Take away the tombstones of topics whose last object is gone."""
        await self._run(lambda image: catalog_control.forget_topics(image, topic_ids))

    async def adopt(
        self,
        topics: Sequence[adoption_control.AdoptedTopic],
        lost: MetadataImage | None,
        *,
        last_producer_id: int,
    ) -> adoption_control.Adoption:
        """Take over what the archive says that the metadata lacks, on an operator's order."""
        return await self._run(
            lambda image: adoption_control.adopt(
                image, topics, lost, node_id=self._options.node_id, last_producer_id=last_producer_id
            )
        )

    # -- deciding, proposing, waiting

    async def _run(self, decide: Callable[[MetadataImage], Decision[R] | Steps[Decision[R]]]) -> R:
        """Decide and propose in one's turn, in which nobody else does; then wait until it counts.

        An answer that writes nothing waits too: it may rest on a change that is not committed yet.
        """
        async with self._turn:
            image = self._latest
            if image is None:
                raise RequestError(ErrorCode.not_controller, "This node does not lead the metadata quorum.")
            piece, decided = Slice(), decide(image)
            decision = decided if isinstance(decided, Decision) else await piece.go_on(decided)
            frames = decision.frames
            step = len(frames) if decision.is_atomic else MAX_RECORDS_PER_OPERATION
            for start in range(0, len(frames), step or 1):
                before = image
                image = await piece.go_on(self._publisher.propose(frames[start : start + step], before))
                if self._latest is before:  # the controller has not stopped meanwhile
                    self._latest = image
        await self._publisher.committed(image.offset)
        return decision.response
