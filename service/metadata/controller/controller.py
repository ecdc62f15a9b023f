"""Asyncio shell of the controller: decides requests, proposes their records, answers once committed.

Owned by the event loop. Every voter of the quorum has a controller; it decides requests while its node leads,
from `claim` to `renounce` or `stop` (`controller/decision_queue.py`). Decisions are made one after the other,
so of two requests for one name exactly one wins, though both wait for the same fsync. Responses depend on
committed metadata only. The publisher owns the log and the committed image. The caller reads
`next_deadline_ms` and calls `tick` then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from service.base.world import World
from service.metadata.controller import (
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
from service.metadata.controller.access_admin import AccessAdmin
from service.metadata.controller.activation import activate
from service.metadata.controller.broker_registrations import BrokerRegistrations
from service.metadata.controller.broker_sessions import SessionTimes
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.decision_queue import AwaitOffset, DecisionQueue
from service.metadata.controller.elections_control import ElectionSettings
from service.metadata.controller.features_control import FeatureUpdate
from service.metadata.controller.full_directories import DirectoriesWithoutRoom
from service.metadata.controller.overseer import Overseer, ProbeBroker, note_failure
from service.metadata.controller.periodic import PeriodicTaskIntervals
from service.metadata.controller.remote_catalog import ControllerCatalog
from service.metadata.controller.requests import (
    AlterPartition,
    AlterPartitionResult,
    AlterResource,
    AlterResourceResult,
    AssignReplica,
    AssignReplicaResult,
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
    RegisterController,
    TopicDefaults,
)
from service.metadata.features import bootstrap_records, controller_frame, supported_features
from service.metadata.image import FeatureRange, MetadataImage
from service.metadata.publisher import Publisher
from service.metadata.records import MetadataRecord
from service.quotas.mutations import MutationQuota
from service.security.tokens import TokenRules


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """Identity and configuration of a controller."""

    node_id: int
    cluster_id: str
    defaults: TopicDefaults = field(default_factory=TopicDefaults)
    listeners: tuple[Endpoint, ...] = ()
    """Endpoints of this controller."""
    partition_limit: PartitionLimit | None = None
    """Greatest number of partitions; None: no limit."""
    bootstrap: tuple[MetadataRecord, ...] = field(default_factory=bootstrap_records)
    """First records of an empty log."""
    supported: tuple[FeatureRange, ...] = field(default_factory=supported_features)
    """Supported feature levels; with ``firn.catalog.version`` the remote catalog needs that feature's
    level."""
    voters: tuple[int, ...] = ()
    """Controllers that must have registered before a feature level changes."""
    incarnation_id: UUID | None = None
    """Id of this process where it registers as a standby, too; None: drawn at its first activation."""
    elections: ElectionSettings = field(default_factory=ElectionSettings)
    sessions: SessionTimes = field(default_factory=SessionTimes)
    periodic_tasks: PeriodicTaskIntervals = field(default_factory=PeriodicTaskIntervals)
    """Intervals of periodic tasks."""
    tokens: TokenRules = field(default_factory=TokenRules)


class Controller:
    """The cluster's controller, on a node that may lead the metadata quorum.

    Every coroutine raises `RequestError` where the request as a whole is refused (NOT_CONTROLLER while this
    node does not lead, and for every waiting proposal once it no longer leads) and `StorageError` where the
    metadata log cannot be written: the outcome of the change is then unknown. `deadline_ms`, on the monotonic
    clock: a request that is not decided by then gets REQUEST_TIMED_OUT.
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
        counts: AwaitOffset | None = None,
    ) -> None:
        """Create a standby controller.

        `probe` and `on_disproved`: see `Overseer`. `on_news`: called when `next_deadline_ms` may be earlier
        than before. `counts(offset)` returns once a response that depends on the log up to there may be sent;
        None: once this node has applied the image with that offset.
        """
        self._options = options
        self._publisher = publisher
        self._clock = world.clock
        self._new_uuid = world.new_uuid
        self._rules = config_rules
        self._incarnation_id = options.incarnation_id
        self._full = DirectoriesWithoutRoom()
        self._decisions = DecisionQueue(
            publisher, self._clock, lambda: self._overseer.wrote(), counts or publisher.committed
        )
        self._elections = options.elections._replace(
            full=self._full, is_awaited=lambda one: self._overseer.is_awaited(one)
        )
        self._overseer = Overseer(
            self._decisions,
            self._clock,
            sessions=options.sessions,
            tasks=options.periodic_tasks,
            elections=self._elections,
            probe=probe,
            sweep_tokens=lambda: self.access.tokens.sweep_expired(),
            on_disproved=on_disproved,
            on_news=on_news,
        )
        self.brokers = BrokerRegistrations(
            options.cluster_id, publisher, self._decisions, self._overseer, self._full, self._elections
        )
        self.catalog = ControllerCatalog(options.node_id, options.supported, publisher, self._decisions)
        self.access = AccessAdmin(self._decisions, world.clock, world.new_uuid, options.tokens)

    @property
    def image(self) -> MetadataImage:
        """Newest committed image."""
        return self._publisher.image

    @property
    def epoch(self) -> int:
        """Epoch of the controller; 0 before `start`."""
        return self._publisher.epoch

    @property
    def is_active(self) -> bool:
        """True while requests are decided here."""
        return self._decisions.is_open

    # -- claim and renounce

    async def start(self) -> None:
        """Take over on a node that leads: see `claim`. Start the publisher before, and stop it after.

        Raises `StorageError` where the metadata log fails.
        """
        await self.claim(self._publisher.epoch)

    def claim(self, epoch: int) -> asyncio.Task[None]:
        """Take over: this node leads the quorum in `epoch`, and its image holds everything before that epoch.

        Requests are decided once the activation records are proposed. The returned task ends when they are
        committed and this process is registered; it raises `RequestError` NOT_CONTROLLER where leadership is
        lost before, and `StorageError`.
        """
        self._decisions.begin(epoch)
        self._full.clear()
        self._overseer.claimed(self._publisher.image, self._options.node_id)
        task = asyncio.get_running_loop().create_task(self._activate(), name="controller-activation")
        task.add_done_callback(note_failure)
        return task

    async def _activate(self) -> None:
        options = self._options
        await self._decisions.run(
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

        def register(image: MetadataImage) -> ControllerResult[None]:
            known = image.controllers.get(options.node_id)
            is_known = known is not None and known.incarnation_id == incarnation_id
            return ControllerResult(() if is_known else (frame,), None)

        await self._decisions.decide(register)

    def renounce(self) -> None:
        """End the leadership: drop uncommitted decisions, answer their requests with NOT_CONTROLLER, and stop
        ticks."""
        self._decisions.renounce()
        self._overseer.renounced()

    def stop(self) -> None:
        """Decide nothing more: new requests get NOT_CONTROLLER. Proposed records may still be committed."""
        self._decisions.stop()
        self._overseer.renounced()

    # -- time

    @property
    def next_deadline_ms(self) -> int:
        """Time of the next `tick` on the monotonic clock; very far where none is needed."""
        return self._overseer.next_deadline_ms

    async def tick(self) -> None:
        """Run due tasks one after the other, until leadership is lost.

        Raises `StorageError` where the metadata log fails.
        """
        await self._overseer.tick()

    # -- requests

    async def create_topics(
        self,
        requests: Sequence[CreateTopic],
        *,
        validate_only: bool = False,
        quota: MutationQuota | None = None,
        deadline_ms: int | None = None,
    ) -> list[CreateTopicResult]:
        """Create topics; `topics_control.create_topics` documents the order of the results."""
        return await self._decisions.decide(
            lambda image: topics_control.create_topics(
                image,
                requests,
                defaults=self._options.defaults,
                rules=self._rules,
                new_uuid=self._new_uuid,
                limit=self._options.partition_limit,
                quota=quota,
                validate_only=validate_only,
            ),
            deadline_ms,
        )

    async def create_partitions(
        self,
        requests: Sequence[CreatePartitions],
        *,
        validate_only: bool = False,
        quota: MutationQuota | None = None,
        deadline_ms: int | None = None,
    ) -> list[CreatePartitionsResult]:
        """Add partitions to topics; `partitions_control.create_partitions` documents the order of the
        results."""
        return await self._decisions.decide(
            lambda image: partitions_control.create_partitions(
                image,
                requests,
                limit=self._options.partition_limit,
                quota=quota,
                validate_only=validate_only,
            ),
            deadline_ms,
        )

    async def delete_topics(
        self,
        requests: Sequence[DeleteTopic],
        *,
        quota: MutationQuota | None = None,
        deadline_ms: int | None = None,
    ) -> list[DeleteTopicResult]:
        """Delete topics by name or id; the results are in no particular order."""
        now_ms = self._clock.now_ms()
        return await self._decisions.decide(
            lambda image: topics_control.delete_topics(image, requests, now_ms=now_ms, quota=quota),
            deadline_ms,
        )

    async def incremental_alter_configs(
        self,
        resources: Sequence[AlterResource],
        *,
        validate_only: bool = False,
        via_broker: int | None = None,
    ) -> list[AlterResourceResult]:
        """Change configurations; `via_broker` is the broker that received the request."""
        return await self._decisions.decide(
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
        """Replace configurations: overrides that are not named are deleted."""
        return await self._decisions.decide(
            lambda image: configs_control.alter_configs(
                image, resources, self._rules, validate_only=validate_only, via_broker=via_broker
            )
        )

    async def update_features(self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False) -> None:
        """Set feature levels, all of them or none."""
        options = self._options
        await self._decisions.decide(
            lambda image: features_control.update_features(
                image.with_kraft_version(self._publisher.kraft_version),
                updates,
                node_id=options.node_id,
                validate_only=validate_only,
                supported=options.supported,
                voters=options.voters,
                min_isr=self._elections.min_isr,
                kraft_version=self._publisher.kraft_version,
            )
        )

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """Allocate a block of producer ids."""
        return await self._decisions.decide(
            lambda image: producer_ids_control.allocate_producer_ids(image, broker_id, broker_epoch)
        )

    async def register_controller(self, request: RegisterController) -> None:
        """Register another controller process."""
        await self._decisions.decide(lambda image: cluster_control.register_controller(image, request))

    # -- partitions

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, requests: Sequence[AlterPartition]
    ) -> list[AlterPartitionResult]:
        """Change the ISRs of partitions, for their leader."""
        settings = self._elections
        return await self._decisions.decide(
            lambda image: isr_control.alter_partitions(image, broker_id, broker_epoch, requests, settings)
        )

    async def elect_leaders(
        self, request: ElectLeaders, *, deadline_ms: int | None = None
    ) -> list[ElectionResult]:
        """Elect leaders on an operator's request."""
        settings = self._elections
        return await self._decisions.decide(
            lambda image: elections_control.elect_leaders(image, request, settings), deadline_ms
        )

    async def alter_reassignments(
        self,
        requests: Sequence[ReassignPartition],
        *,
        allows_factor_change: bool = True,
        deadline_ms: int | None = None,
    ) -> list[ReassignResult]:
        """Start and cancel reassignments."""
        return await self._decisions.decide(
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
        """Record the directories of a broker's replicas."""
        settings = self._elections
        return await self._decisions.decide(
            lambda image: directories_control.assign_replicas(
                image, broker_id, broker_epoch, requests, settings
            )
        )
