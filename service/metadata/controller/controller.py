"""The controller's shell: each request is decided, proposed to the publisher, and answered once it counts.

Owned by the event loop. Every voter of the quorum has one; it decides while its node leads, from `claim` to
`renounce` or `stop` (`controller/turns.py`): so of two requests for one name exactly one wins, though both
wait for the same fsync. Answers see committed metadata only. The log, and the committed image, are the
publisher's. What is due as time passes is asked for by `next_deadline_ms` and done by `tick`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from service.base.steps import Steps
from service.base.world import World
from service.metadata.controller import (
    adoption_control,
    catalog_control,
    cluster_control,
    configs_control,
    directories_control,
    elections_control,
    features_control,
    isr_control,
    partitions_control,
    producer_ids_control,
    reassignment_control,
    topics_control,
)
from service.metadata.controller.activation import activate, gates_catalog
from service.metadata.controller.broker_sessions import (
    BrokerControl,
    ConnectionLost,
    Fencing,
    Gone,
    Heard,
    Registered,
    SessionTimes,
)
from service.metadata.controller.cluster_control import check_epoch
from service.metadata.controller.decision import Decision
from service.metadata.controller.elections_control import ElectionSettings
from service.metadata.controller.features_control import FeatureUpdate
from service.metadata.controller.full_directories import FullDirectories
from service.metadata.controller.heartbeat_control import HeartbeatOutcome, process_heartbeat
from service.metadata.controller.overseer import Overseer, ProbeBroker, note_failure
from service.metadata.controller.periodic import ChoreTimes
from service.metadata.controller.requests import (
    AlterPartition,
    AlterPartitionResult,
    AlterResource,
    AlterResourceResult,
    AssignReplica,
    AssignReplicaResult,
    BrokerHeartbeat,
    BrokerHeartbeatReply,
    CatalogSender,
    ConfigRules,
    CreatePartitions,
    CreatePartitionsResult,
    CreateTopic,
    CreateTopicResult,
    DeleteTopic,
    DeleteTopicResult,
    ElectionResult,
    ElectLeaders,
    Endpoint,
    PartitionLimit,
    ProducerIdBlock,
    ReassignPartition,
    ReassignResult,
    RegisterBroker,
    RegisterController,
    TopicDefaults,
)
from service.metadata.controller.turns import Counts, Decide, Turns, not_controller
from service.metadata.features import bootstrap_records, controller_frame, supported_features
from service.metadata.image import FeatureRange, MetadataImage
from service.metadata.partition_index import leads
from service.metadata.publisher import Publisher
from service.metadata.records import MetadataRecord
from service.remote.catalog import CatalogCommit, CatalogEntry, CatalogResult, Tombstone

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """Whose controller this is, and what its cluster is set to."""

    node_id: int
    cluster_id: str
    defaults: TopicDefaults = field(default_factory=TopicDefaults)
    listeners: tuple[Endpoint, ...] = ()
    """where this controller is reached"""
    partition_limit: PartitionLimit | None = None
    """how many partitions there may be; None: no bound is known"""
    bootstrap: tuple[MetadataRecord, ...] = field(default_factory=bootstrap_records)
    """what a log begins with that is empty"""
    supported: tuple[FeatureRange, ...] = field(default_factory=supported_features)
    """feature levels; where ``firn.catalog.version`` is among them, the remote catalog needs its level"""
    voters: tuple[int, ...] = ()
    """controllers that must have registered before a feature's level changes"""
    incarnation_id: UUID | None = None
    """of this process, where it registers as a standby, too; None: one is drawn at its first activation"""
    elections: ElectionSettings = field(default_factory=ElectionSettings)
    sessions: SessionTimes = field(default_factory=SessionTimes)
    chores: ChoreTimes = field(default_factory=ChoreTimes)
    """brokers fetch partitions from each other, so that there can be several replicas, and new ones"""


class Controller:
    """The cluster's controller, on a node that may lead the metadata quorum. Is a `tiering.catalog.Catalog`.

    Every coroutine raises `RequestError` where the request as a whole is refused (NOT_CONTROLLER while this
    node does not lead, and once it does no longer whatever it proposed) and `StorageError` where the metadata
    log cannot be written: what became of the change is then unknown. `deadline_ms`, on the monotonic clock:
    what is not decided by then is not decided (REQUEST_TIMED_OUT).
    """

    def __init__(
        self,
        options: ControllerOptions,
        publisher: Publisher,
        world: World,
        config_rules: ConfigRules,
        *,
        probe: ProbeBroker | None = None,
        on_disproved: Callable[[int, int], None] = lambda broker_id, broker_epoch: None,
        on_news: Callable[[], None] = lambda: None,
        counts: Counts | None = None,
    ) -> None:
        """`probe` and `on_disproved`: see `Overseer`. `on_news`: `next_deadline_ms` may have come nearer.
        `counts(offset)` returns once what was decided up to there may be told; None: that is once this node
        is what it says."""
        self._options = options
        self._publisher = publisher
        self._clock = world.clock
        self._new_uuid = world.new_uuid
        self._rules = config_rules
        self._incarnation_id = options.incarnation_id
        self._full = FullDirectories()
        self._turns = Turns(
            publisher, self._clock, lambda: self._overseer.wrote(), counts or publisher.committed
        )
        self._elections = options.elections._replace(
            full=self._full, is_awaited=lambda one: self._overseer.is_awaited(one)
        )
        self._overseer = Overseer(
            self._turns,
            self._clock,
            sessions=options.sessions,
            chores=options.chores,
            elections=self._elections,
            probe=probe,
            on_disproved=on_disproved,
            on_news=on_news,
        )

    @property
    def image(self) -> MetadataImage:
        """The newest committed image."""
        return self._publisher.image

    @property
    def epoch(self) -> int:
        """The controller's epoch; 0 before `start`."""
        return self._publisher.epoch

    @property
    def is_active(self) -> bool:
        """Whether requests are decided here now."""
        return self._turns.is_open

    # -- life

    async def start(self) -> None:
        """Take over, on a node that leads: see `claim`. Start the publisher before, stop it after.

        Raises `StorageError` where the metadata log fails.
        """
        await self.claim(self._publisher.epoch)

    def claim(self, epoch: int) -> asyncio.Task[None]:
        """This node leads the quorum in `epoch`, and its image holds all up to the beginning of that epoch.

        Requests are decided from the moment that what the controller before left is put in order. The task
        is for who wants to wait for that, and for the registration of this process; it raises `RequestError`
        NOT_CONTROLLER where leadership is lost before, and `StorageError`.
        """
        self._turns.begin(epoch)
        self._full.clear()
        self._overseer.claimed(self._publisher.image, self._options.node_id)
        task = asyncio.get_running_loop().create_task(self._activate(), name="controller-activation")
        task.add_done_callback(note_failure)
        return task

    async def _activate(self) -> None:
        options = self._options
        await self._turns.run(
            lambda image: activate(
                image,
                options.bootstrap,
                min_isr=self._elections.min_isr,
                supported=options.supported,
            ),
            activating=True,
        )
        self._overseer.opened()
        if self._incarnation_id is None:
            self._incarnation_id = self._new_uuid()
        incarnation_id = self._incarnation_id
        frame = controller_frame(options.node_id, incarnation_id, options.listeners, options.supported)

        def register(image: MetadataImage) -> Decision[None]:
            known = image.controllers.get(options.node_id)
            is_known = known is not None and known.incarnation_id == incarnation_id
            return Decision(() if is_known else (frame,), None)

        await self._decide(register)

    def renounce(self) -> None:
        """This node leads no longer: what is not committed is forgotten, and who waits for it is told
        NOT_CONTROLLER. Nothing is due any more."""
        self._turns.lose()
        self._overseer.renounced()

    def stop(self) -> None:
        """Decide nothing more: requests from now on get NOT_CONTROLLER. What was proposed may still count."""
        self._turns.stop()
        self._overseer.renounced()

    # -- time

    @property
    def next_deadline_ms(self) -> int:
        """When `tick` has something to do, on the monotonic clock; very far while nothing is due."""
        return self._overseer.next_deadline_ms

    async def tick(self) -> None:
        """Do what is due, one after the other; leadership that is lost meanwhile ends it.

        Raises `StorageError` where the metadata log fails.
        """
        await self._overseer.tick()

    # -- requests

    async def create_topics(
        self,
        requests: Sequence[CreateTopic],
        *,
        validate_only: bool = False,
        deadline_ms: int | None = None,
    ) -> list[CreateTopicResult]:
        """Create topics; see `topics_control.create_topics` for the order of the answers."""
        return await self._decide(
            lambda image: topics_control.create_topics(
                image,
                requests,
                defaults=self._options.defaults,
                rules=self._rules,
                new_uuid=self._new_uuid,
                limit=self._options.partition_limit,
                validate_only=validate_only,
            ),
            deadline_ms,
        )

    async def create_partitions(
        self,
        requests: Sequence[CreatePartitions],
        *,
        validate_only: bool = False,
        deadline_ms: int | None = None,
    ) -> list[CreatePartitionsResult]:
        """Have topics grow; see `partitions_control.create_partitions` for the order of the answers."""
        return await self._decide(
            lambda image: partitions_control.create_partitions(
                image, requests, limit=self._options.partition_limit, validate_only=validate_only
            ),
            deadline_ms,
        )

    async def delete_topics(
        self, requests: Sequence[DeleteTopic], *, deadline_ms: int | None = None
    ) -> list[DeleteTopicResult]:
        """Delete topics by name or id; the answers are in no particular order."""
        now_ms = self._clock.now_ms()
        return await self._decide(
            lambda image: topics_control.delete_topics(image, requests, now_ms=now_ms), deadline_ms
        )

    async def incremental_alter_configs(
        self,
        resources: Sequence[AlterResource],
        *,
        validate_only: bool = False,
        via_broker: int | None = None,
    ) -> list[AlterResourceResult]:
        """Change configurations; `via_broker` is the broker to which the client spoke."""
        return await self._decide(
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
        return await self._decide(
            lambda image: configs_control.alter_configs(
                image, resources, self._rules, validate_only=validate_only, via_broker=via_broker
            )
        )

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        """Have the cluster's features go to other levels, all of them or none."""
        options = self._options
        await self._decide(
            lambda image: features_control.update_features(
                self._with_kraft_version(image),
                updates,
                node_id=options.node_id,
                validate_only=validate_only,
                supported=options.supported,
                voters=options.voters,
                min_isr=self._elections.min_isr,
                kraft_version=self._publisher.kraft_version,
            )
        )

    def _with_kraft_version(self, image: MetadataImage) -> MetadataImage:
        """What the log's control records say counts at once, and images of proposals do not see them."""
        return image.with_kraft_version(self._publisher.kraft_version)

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """A block of producer ids that nobody else will ever get."""
        return await self._decide(
            lambda image: producer_ids_control.allocate_producer_ids(image, broker_id, broker_epoch)
        )

    # -- brokers

    async def register_broker(self, request: RegisterBroker, *, deadline_ms: int | None = None) -> int:
        """Register a broker process; returns its epoch. It is fenced until it is unfenced."""

        def decide(image: MetadataImage) -> Steps[Decision[int]]:
            existing = image.brokers.get(request.broker_id)
            return cluster_control.register_broker(
                self._with_kraft_version(image),
                request,
                cluster_id=self._options.cluster_id,
                next_offset=self._publisher.next_offset,
                has_session=existing is not None and self._overseer.is_alive(existing.id, existing.epoch),
                is_heard=self._overseer.is_heard,
                settings=self._elections,
            )

        def decided(epoch: int, offset: int) -> None:
            self._overseer.tell(Registered(request.broker_id, epoch))

        return (await self._turns.run(decide, deadline_ms=deadline_ms, decided=decided))[0]

    async def heartbeat(
        self, request: BrokerHeartbeat, *, deadline_ms: int | None = None
    ) -> BrokerHeartbeatReply:
        """A broker lives, and becomes what it wants to be where it may.

        That it lives is noted at once, however long the decision waits for its turn.
        """
        broker_id, broker_epoch = request.broker_id, request.broker_epoch
        if not self._turns.is_open:
            raise not_controller()
        known = self._turns.latest.brokers.get(broker_id)
        if known is not None and known.epoch == broker_epoch:
            self._overseer.act(Heard(broker_id, broker_epoch, request.metadata_offset))
            self._full.heard(broker_id, request.full_log_dirs, request.resting_log_dirs)

        def decide(image: MetadataImage) -> Steps[Decision[HeartbeatOutcome]]:
            broker = check_epoch(image, broker_id, broker_epoch)
            current, following = self._overseer.next_state(
                request,
                is_fenced=broker.fenced,
                leads=image.index.has_any(leads(broker_id)),
                registered_at=broker.epoch,
            )
            return process_heartbeat(image, request, current, following, self._elections)

        def decided(outcome: HeartbeatOutcome, offset: int) -> None:
            if outcome.next is BrokerControl.CONTROLLED_SHUTDOWN:
                self._overseer.moved_away(broker_id, broker_epoch, offset)
            elif outcome.next is BrokerControl.SHUTDOWN_NOW:
                self._overseer.tell(Gone(broker_id, broker_epoch))
            elif outcome.next is not outcome.current:
                is_unfenced = outcome.next is BrokerControl.UNFENCED
                self._overseer.tell(Fencing(broker_id, broker_epoch, is_unfenced))

        outcome, _ = await self._turns.run(decide, deadline_ms=deadline_ms, decided=decided)
        return outcome.reply

    async def unfence_broker(self, broker_id: int, broker_epoch: int) -> None:
        """The broker serves from now on: it leads what has no leader, in a new leader epoch each."""

        def decided(_: None, offset: int) -> None:
            self._overseer.act(Heard(broker_id, broker_epoch))
            self._overseer.tell(Fencing(broker_id, broker_epoch, True))

        settings = self._elections
        await self._turns.run(
            lambda image: cluster_control.unfence_broker(image, broker_id, broker_epoch, settings=settings),
            decided=decided,
        )

    async def fence_broker(self, broker_id: int, broker_epoch: int) -> None:
        """The broker stops: it leads nothing any more, and another process may take its id."""
        settings = self._elections
        await self._turns.run(
            lambda image: cluster_control.fence_broker(image, broker_id, broker_epoch, settings=settings),
            decided=lambda _, offset: self._overseer.tell(Gone(broker_id, broker_epoch)),
        )

    async def unregister_broker(self, broker_id: int, *, deadline_ms: int | None = None) -> None:
        """Forget a broker that will not come back; BROKER_ID_NOT_REGISTERED where there is none."""
        await self._turns.run(
            lambda image: cluster_control.unregister_broker(image, broker_id, settings=self._elections),
            deadline_ms=deadline_ms,
            decided=lambda epoch, offset: self._overseer.tell(Gone(broker_id, epoch)),
        )

    async def register_controller(self, request: RegisterController) -> None:
        """Another controller makes itself known."""
        await self._decide(lambda image: cluster_control.register_controller(image, request))

    def connection_lost(self, broker_id: int, broker_epoch: int) -> None:
        """The connection broke over which that broker process sent its heartbeats."""
        if self._turns.is_open:
            self._overseer.act(ConnectionLost(broker_id, broker_epoch))

    # -- partitions

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, requests: Sequence[AlterPartition]
    ) -> list[AlterPartitionResult]:
        """Leaders have other sets of replicas in sync."""
        settings = self._elections
        return await self._decide(
            lambda image: isr_control.alter_partitions(image, broker_id, broker_epoch, requests, settings)
        )

    async def elect_leaders(
        self, request: ElectLeaders, *, deadline_ms: int | None = None
    ) -> list[ElectionResult]:
        """Elect as an operator asks for."""
        settings = self._elections
        return await self._decide(
            lambda image: elections_control.elect_leaders(image, request, settings), deadline_ms
        )

    async def alter_reassignments(
        self,
        requests: Sequence[ReassignPartition],
        *,
        allows_factor_change: bool = True,
        deadline_ms: int | None = None,
    ) -> list[ReassignResult]:
        """Begin reassignments, and call others off."""
        return await self._decide(
            lambda image: reassignment_control.alter_reassignments(
                image,
                requests,
                self._elections,
                allows_factor_change=allows_factor_change,
            ),
            deadline_ms,
        )

    async def assign_replicas(
        self, broker_id: int, broker_epoch: int, requests: Sequence[AssignReplica]
    ) -> list[AssignReplicaResult]:
        """A broker tells in which directories its replicas lie."""
        settings = self._elections
        return await self._decide(
            lambda image: directories_control.assign_replicas(
                image, broker_id, broker_epoch, requests, settings
            )
        )

    # -- the remote catalog

    async def commit(self, commits: Sequence[CatalogCommit]) -> list[CatalogResult]:
        """Compare-and-set of remote catalog entries, all of a call in one batch."""
        return await self._decide(
            lambda image: catalog_control.commit_catalog(
                image, commits, needs_level=gates_catalog(self._options.supported)
            )
        )

    async def commit_from(
        self, sender: CatalogSender, commits: Sequence[CatalogCommit], *, deadline_ms: int | None = None
    ) -> tuple[list[CatalogResult], int]:
        """As `commit`, for another node's broker; with the offset up to which the answer holds.

        Without commits it is a barrier: whatever was committed before is in the log below that offset.
        """
        return await self._turns.run(
            lambda image: catalog_control.commit_catalog(
                image, commits, sender=sender, needs_level=gates_catalog(self._options.supported)
            ),
            deadline_ms=deadline_ms,
        )

    def entry(self, topic_id: UUID, partition: int) -> CatalogEntry | None:
        """The committed remote catalog entry of a partition."""
        return self.image.remote.get((topic_id, partition))

    def tombstones(self) -> Mapping[UUID, Tombstone]:
        """Deleted topics that may still have objects in the bucket, as committed."""
        return self.image.tombstones

    async def forget_topics(
        self, topic_ids: Collection[UUID], *, sender: CatalogSender | None = None
    ) -> None:
        """Take away the tombstones of topics whose last object is gone. `sender`: another node's broker."""
        await self._decide(lambda image: catalog_control.forget_topics(image, topic_ids, sender=sender))

    async def adopt(self, found: adoption_control.Found, life_id: UUID) -> adoption_control.Adoption:
        """Take over what the bucket says and the metadata does not, on an operator's order."""
        node_id = self._options.node_id
        return await self._decide(
            lambda image: adoption_control.adopt(image, found, node_id=node_id, life_id=life_id)
        )

    async def checked_with_archive(self, partitions: Collection[tuple[UUID, int]]) -> None:
        """Note that the local logs of these partitions fit the archives that a recovery has taken over."""
        await self._decide(lambda image: adoption_control.checked(image, partitions))

    # -- deciding, proposing, waiting

    async def _decide(self, decide: Decide[R], deadline_ms: int | None = None) -> R:
        """What `decide` answers, in its turn, once that counts."""
        answer, _ = await self._turns.run(decide, deadline_ms=deadline_ms)
        return answer
