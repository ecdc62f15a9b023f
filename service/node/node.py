"""One node: starts its parts from the ground up, and ends them from the top down.

The start follows dependence, so that no request arrives before what serves it: data directories (formatted if
they are empty), metadata and controller (`control_plane`), logs of all partitions, object store and offload,
listeners. The end is the reverse: leaderships move away, the listeners close, the clean-shutdown marker is
last. A node that is only a controller is started when it is in the quorum.

Object storage that cannot be reached does not prevent a start: hot data is served, and offload and cold reads
continue when it is back. A prefix that belongs to another cluster prevents it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from service.base.errors import StorageError
from service.base.steps import at_once
from service.base.timers import Timers
from service.base.turns import TurnTimes
from service.base.world import World
from service.config.settings import BrokerConfig
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.publisher import Publisher
from service.network.metrics import OF_CUTS, OF_LAG, OF_REPLICATION
from service.node import fd_budget
from service.node.authorizer import make_authorizer
from service.node.data_directories import DataDirectories
from service.node.fd_budget import Budget
from service.node.inter_broker import InterBroker
from service.node.metadata_check import check_metadata, note_metadata
from service.node.node_options import check_cluster, cleaner_settings, limits_of, partition_limit
from service.node.node_parts import NodeParts
from service.node.retention_task import retention_loop
from service.node.standalone_control_plane import AlonePlane, Home
from service.node.supervisor import Supervisor
from service.node.transactions import TransactionWiring
from service.partition.fetch_sessions import FetchSessions
from service.records.produce_kernel import COMPILED
from service.remote.opened_order import NoDocuments, OrderDocuments
from service.replicas.dynamic_config import check_topics, dynamic_config, topic_settings
from service.replicas.local_erasures import LocalErasures
from service.replicas.metadata_applier import Applier
from service.replicas.partition_registry import Replicas
from service.replicas.settings_applier import SettingsApplier
from service.replication.selectors import of_the_rack
from service.security.tokens import token_rules
from service.serving.control_plane import ControlPlane
from service.serving.dispatch import Dispatcher
from service.serving.group_coordinators import GroupCoordinators
from service.serving.handlers.api_versions import answer_for, features_of_broker
from service.serving.internal_topics import InternalTopics
from service.serving.request_host import Broker
from service.serving.run_handlers import RunHandlers
from service.serving.topic_coordinator import CoordinatorParts
from service.wire.apis import ListenerType

if TYPE_CHECKING:
    from service.client.security import Security
    from service.network.jwks.key_sets import KeySets
    from service.network.tls.node_tls import NodeTls
    from service.node.cold_tier import ColdTier, OpenStore
    from service.node.quorum_control_plane import ClusterPlane
    from service.remote.reading.reader import RemoteReader
    from service.replicas.replica_manager import ReplicaManager
    from service.serving.listener_logins import NodeLogins

log = logging.getLogger(__name__)

COMPARE_WITH_ARCHIVES_S = 60.0
"""Longest time that a start waits for the comparison; partitions are offline until they are compared."""


class Node:
    """One node. `start` makes its parts, and puts on the stack what ends each of them."""

    def __init__(
        self,
        config: BrokerConfig,
        supervisor: Supervisor,
        world: World,
        *,
        open_files: int | None = None,
        open_store: OpenStore | None = None,
        turns: TurnTimes | None = None,
    ) -> None:
        """`open_files`: limit of this process's descriptors; None if it is not known. `open_store` makes a
        client of the bucket; None: by the settings. `turns` gets the requests that hold the loop long."""
        self._static_config = config
        self._supervisor = supervisor
        self._world = world
        self._clock = world.clock
        self._open_files = open_files
        self._open_store = open_store
        self._directories = DataDirectories(config, world)
        self._applier: Applier | None = None
        self._tls: NodeTls | None = None
        self._others: InterBroker | None = None
        self._erasures: LocalErasures | None = None
        self.parts = NodeParts(
            supervisor,
            turns or TurnTimes(),
            is_broker=config.cluster.is_broker,
            node_id=config.node_id,
            rack=config.broker_rack or "",
            session_ms=config.cluster.broker_session_timeout_ms,
        )

    async def start(self, stack: AsyncExitStack) -> None:
        """Start all parts. Raises `ConfigError`, `CorruptionError`, `StorageError` or `OSError`; what was
        started before is on `stack`."""
        config, parts = self._static_config, self.parts
        if config.cluster.is_member:
            check_cluster(config)
        if config.cluster.security.uses_tls:
            self._tls = parts.tls = self._make_tls(stack)
        if config.cluster.security.takes_signed_tokens:
            parts.key_sets = self._make_key_sets(stack)
        cluster_id = await self._directories.cluster_id(self._supervisor.stopped)
        budget = None
        if self._open_files is not None:
            budget = fd_budget.budget(self._open_files, max_connections=config.quotas.max_connections)
        closing: _LogsClosing | None = None
        if config.cluster.is_broker:
            parts.logs = self._make_logs(budget)
            # A node that fails during its start has not shut down cleanly: it leaves no marker.
            closing = _LogsClosing(parts.logs, self._supervisor)
            stack.push_async_exit(closing)
        log.info("node %d belongs to cluster %s", config.node_id, cluster_id)
        parts.identity = parts.identity._replace(cluster_id=cluster_id)
        home = self._directories.claim(stack, cluster_id, parts.logs)
        if config.cluster.is_controller:
            disk, log_dirs = self._world.disk, () if parts.logs is None else tuple(parts.logs.directories)
            check_metadata(
                disk,
                config.cluster,
                log_dirs,
                home.metadata_directory_id,
                recovers=config.remote_recover,
            )
            note_metadata(disk, config.cluster, log_dirs, home.metadata_directory_id)
        parts.authorizer = make_authorizer(config, lambda: parts.metadata)
        member = self._make_member(home) if config.cluster.is_member else None
        parts.plane = plane = member or self._make_plane(home, budget)
        parts.metadata = plane.metadata
        await plane.start(stack)
        if closing is None:
            assert member is not None
            await member.in_quorum()
            await member.recorded()
            if self._tls is not None:
                from service.node.controller_stores import follow_stores

                follow_stores(self._tls, config, plane.metadata)
            parts.is_serving = True
            return
        broker = await self._start_broker(stack, plane, cluster_id)
        closing.broker_epoch = lambda: plane.epoch
        await self._serve(stack, broker)
        stack.push_async_callback(plane.leave)
        if member is not None and config.cluster.is_controller:
            await member.recorded()

    def _make_tls(self, stack: AsyncExitStack) -> NodeTls:
        """Load the certificates. Raises `ConfigError`."""
        from service.network.tls.node_tls import NodeTls  # a node without TLS does not load it

        tls = NodeTls(self._static_config.cluster.security, self._world, self.parts.network)
        stack.callback(tls.close)
        tls.start()
        return tls

    def _make_key_sets(self, stack: AsyncExitStack) -> KeySets:
        from service.network.jwks.key_sets import KeySets  # a node without tokens does not load it

        key_sets = KeySets(self._world)
        stack.callback(key_sets.close)
        return key_sets

    def _follow_stores(self, tls: NodeTls, broker: Broker, settings: SettingsApplier) -> None:
        """Check and follow changes of this node's key and trust stores."""
        from service.serving.store_changes import StoreCheckedAdmin

        metadata = broker.metadata
        tls.configure(settings.config.cluster.security)
        settings.watchers.append(lambda changed: tls.configure(changed.cluster.security))
        broker.config_admin = StoreCheckedAdmin(
            broker.admin, lambda: settings.config, lambda: metadata.image, tls.refusal
        )

    def _make_logs(self, budget: Budget | None) -> LogManager:
        config = self._static_config
        return LogManager(
            config.log_dirs,
            self._world,
            essential=config.cluster.metadata_log_dir,
            max_open_files=budget.cached_files if budget else fd_budget.FEW_FILES,
            on_directory_failed=self._directory_failed,
            checkpoint_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
            high_watermark_interval_ms=config.replication.high_watermark_checkpoint_interval_ms,
            producer_expiration_ms=config.producer_id_expiration_ms,
        )

    def _make_plane(self, home: Home, budget: Budget | None) -> ControlPlane:
        return AlonePlane(
            self._static_config,
            self._current_config,
            self._world,
            home,
            self._world.new_uuid(),
            partition_limit=None if budget is None else partition_limit(budget),
            on_fatal=self._supervisor.fail,
            authorizer=self.parts.authorizer,
        )

    def _make_member(self, home: Home) -> ClusterPlane:
        from service.node.quorum_control_plane import ClusterPlane  # a node that is alone does not load it

        return ClusterPlane(
            self._static_config,
            self._current_config,
            self._world,
            home,
            self._world.new_uuid(),
            limits=limits_of(self._static_config),
            network=self.parts.network,
            turns=self.parts.turns,
            stopped=self._supervisor.stopped,
            on_fatal=self._supervisor.fail,
            tls=self._tls,
            authorizer=self.parts.authorizer,
            key_sets=self.parts.key_sets,
        )

    def _current_config(self) -> BrokerConfig:
        return self._applier.settings.config if self._applier else self._static_config

    async def _start_broker(self, stack: AsyncExitStack, plane: ControlPlane, cluster_id: str) -> Broker:
        """Open the logs, and take the roles that the metadata says. No connection is accepted yet."""
        parts, logs, metadata = self.parts, self.parts.logs, plane.metadata
        assert logs is not None
        listeners = parts.listeners
        logins = self._make_logins(metadata, cluster_id)
        places = await listeners.bind(
            stack, self._static_config, self._world, parts.network, parts.turns, logins, self._tls
        )
        await plane.caught_up(stack, places)
        config = dynamic_config(self._static_config, metadata.image)
        at_once(check_topics(metadata.image, config))
        cold = await self._open_cold_tier(stack, config, plane, cluster_id)
        if cold is not None and config.remote_recover:
            assert plane.adopter is not None  # `check_cluster`
            await cold.recover(plane.adopter, metadata, self._static_config)
            config = dynamic_config(self._static_config, metadata.image)
        replicas = Replicas()
        replicas.traffic.most = config.metrics_topics_max
        timers = Timers(asyncio.get_running_loop())
        reader = cold.reader if cold else None
        replication = self._make_replication(stack, plane, logs, replicas, reader)
        checked = None if plane.adopter is None else plane.adopter.checked_with_archive
        applier = Applier(config, logs, replicas, reader, timers.purgatory, replication, checked)
        self._applier, parts.replication = applier, replication
        documents: OrderDocuments = NoDocuments() if cold is None else cold.orders
        if cold is not None:
            applier.opener.tails = cold.tail_loader(
                applier.opener, logs, lambda: metadata.image, plane.catalog
            )
        self._erasures = LocalErasures(
            self._static_config.node_id, replicas, logs.cleaner, documents, lambda: metadata.image,
            plane.catalog, self._clock, logs.metrics,
        )  # fmt: skip
        applier.watch(self._erasures)
        settings = applier.settings
        at_once(check_topics(metadata.image, config))
        await logs.open_all(lambda topic: topic_settings(metadata.image, topic, config))
        coordinators = self._coordinator_parts(applier, plane, timers, replicas, logs)
        self._others = others = self._inter_broker(coordinators)
        groups = GroupCoordinators(coordinators, lambda: others.channels(OF_LAG))
        stack.push_async_callback(groups.close)
        transactions = TransactionWiring(coordinators, others)
        stack.push_async_callback(transactions.coordinators.close)
        applier.watch(groups)
        applier.watch(transactions.coordinators)
        metadata.subscribe(applier.apply)  # later changes wait for their turn
        await applier.start(metadata.image)
        await logs.set_aside_unknown(applier.holds)
        broker = self._make_broker(plane, cluster_id, replicas, timers, groups, settings)
        broker.transactions, transactions.broker = transactions.coordinators, broker
        stack.callback(broker.close)
        broker.endpoints.update(listeners.places)
        answer_versions = answer_for(ListenerType.BROKER, lambda: features_of_broker(broker))
        listeners.serve_with(
            Dispatcher(broker, plane.apis), answer_versions, lambda: settings.config, broker.connection_ended,
            RunHandlers(broker) if COMPILED else None,
        )  # fmt: skip
        self._limit(broker, metadata)
        if plane.prefix_owner is None:
            await plane.join(stack)
        return broker

    def _make_logins(self, metadata: Publisher, cluster_id: str) -> NodeLogins | None:
        """Return the logins of the listeners; None where no client logs in."""
        security = self._static_config.cluster.security
        if not security.has_logins:
            return None
        from service.serving.listener_logins import NodeLogins

        return NodeLogins(
            security,
            self._world,
            lambda: metadata.image,
            cluster_id,
            self.parts.network,
            token_rules(self._static_config.tokens).secret,
            self.parts.key_sets,
        )

    def _make_broker(
        self,
        plane: ControlPlane,
        cluster_id: str,
        replicas: Replicas,
        timers: Timers,
        groups: GroupCoordinators,
        settings: SettingsApplier,
    ) -> Broker:
        """Return the interface to the handlers, with what limits and protects it."""
        parts, config = self.parts, settings.config
        assert parts.logs is not None
        broker = Broker(
            lambda: settings.config,
            self._clock,
            cluster_id,
            plane,
            replicas,
            parts.logs,
            self._world.threads,
            timers,
            FetchSessions(
                timers.purgatory,
                config.max_incremental_fetch_session_cache_slots,
                config.fetch_session_cache_partitions,
                self._world.random.randint,
            ),
            groups,
        )
        parts.broker = broker
        if self._tls is not None:
            self._follow_stores(self._tls, broker, settings)
        broker.authorizer, broker.servers = parts.authorizer, lambda: parts.listening
        broker.judged = lambda: parts.told(self._clock.now_ms())
        if config.replication.selects_by_rack:
            broker.replica_selector = of_the_rack
        if (replication := parts.replication) is not None:
            broker.leader_throttle = replication.leader_throttle
            replication.watch_room(broker.disks)
        broker.disks.report_room(self._directories.ids, plane)
        return broker

    def _limit(self, broker: Broker, metadata: Publisher) -> None:
        """Apply the quotas of the metadata to clients and connections, now and whenever they change."""
        arrivals = self.parts.listeners.arrivals
        assert arrivals is not None

        def apply(image: MetadataImage) -> None:
            broker.quotas.apply(image.client_quotas)
            arrivals.apply(image.client_quotas)

        def published(before: MetadataImage, image: MetadataImage, delta: MetadataDelta) -> None:
            if before.client_quotas is not image.client_quotas:
                apply(image)

        metadata.subscribe(published)
        apply(metadata.image)

    def _make_replication(
        self,
        stack: AsyncExitStack,
        plane: ControlPlane,
        logs: LogManager,
        replicas: Replicas,
        reader: RemoteReader | None,
    ) -> ReplicaManager | None:
        """Return the replication with other brokers; None on a node without any."""
        if plane.new_queue is None:
            return None
        from service.replicas.replica_manager import ReplicaManager
        from service.replicas.tier_state_builder import TierStateBuilder

        config = self._static_config
        replication = ReplicaManager(
            config.node_id,
            config.replication,
            config.cluster.inter_broker_listener_name,
            lambda: plane.epoch,
            plane.new_queue,
            self._clock,
            TierStateBuilder(reader, replicas.get, lambda: plane.metadata.image),
            logs,
            self._directories.id_of,
            self._supervisor.fail,
            self._world.random.random,
            self.parts.network.channel(OF_REPLICATION),
            self._inter_broker_security(),
        )
        logs.checkpoint_high_watermarks(replication.marks)
        stack.push_async_callback(replication.close)
        return replication

    def _inter_broker_security(self) -> Security:
        """Return the security of connections to other brokers."""
        from service.client.node_security import outgoing_security
        from service.serving.listener_logins import new_nonce

        return outgoing_security(
            self._static_config.cluster.security.inter_broker,
            partial(new_nonce, self._world),
            None if self._tls is None else self._tls.inter_broker,
            self._world.disk,
        )

    def _coordinator_parts(
        self,
        applier: Applier,
        plane: ControlPlane,
        timers: Timers,
        replicas: Replicas,
        logs: LogManager,
    ) -> CoordinatorParts:
        def config() -> BrokerConfig:
            return applier.settings.config

        def image() -> MetadataImage:
            return plane.metadata.image

        internal = InternalTopics(config, image, plane.admin)
        return CoordinatorParts(config, image, self._world, timers, replicas, logs, internal)

    def _inter_broker(self, parts: CoordinatorParts) -> InterBroker:
        listener = self._static_config.cluster.inter_broker_listener_name
        return InterBroker(parts, listener, self._inter_broker_security, self.parts.network)

    async def _open_cold_tier(
        self, stack: AsyncExitStack, config: BrokerConfig, plane: ControlPlane, cluster_id: str
    ) -> ColdTier | None:
        """Open the cold tier, if there is a bucket. Other nodes do not import it: 50 ms, and megabytes."""
        if config.remote_url is None:
            return None
        from service.node.cold_tier import ColdTier, is_tiered, open_configured_store

        make = self._open_store or open_configured_store
        cold = ColdTier(
            config, self._world, cluster_id, make, plane.incarnation_id,
            is_in_use=lambda: is_tiered(plane.metadata.image),
        )  # fmt: skip
        stack.push_async_callback(cold.close)
        self.parts.cold = cold
        await cold.claim()
        return cold

    async def _serve(self, stack: AsyncExitStack, broker: Broker) -> None:
        """Start the periodic tasks, and accept connections."""
        if self._tls is not None:
            await self._tls.settled()
        parts = self.parts
        logs, applier, cold = parts.logs, self._applier, parts.cold
        assert logs is not None
        assert applier is not None
        stack.push_async_callback(self._supervisor.close)
        self._supervisor.run("log-manager", logs.run())
        self._supervisor.run("applier", applier.opener.run())
        if (tails := applier.opener.tails) is not None:
            self._supervisor.run("tail-loading", tails.run())
        if parts.replication is not None:
            self._supervisor.run("replication", parts.replication.run())
        self._supervisor.run("retention", retention_loop(broker))
        self._supervisor.run("disk-watch", broker.disks.run())

        def stable_offset(log: LocalLog) -> int | None:
            partition = broker.replicas.get(log.tip.topic_id, log.tip.partition)
            return None if partition is None else partition.last_stable_offset

        cleaner = logs.cleaner.run(lambda: cleaner_settings(broker.config), stable_offset)
        self._supervisor.run("log-cleaner", cleaner)
        if self._erasures is not None:
            self._supervisor.run("erasures", self._erasures.run())
        if cold is not None:
            assert self._others is not None
            channels = self._others.channels(OF_CUTS)
            stack.push_async_callback(channels.close)
            self._supervisor.run("cold-tier", cold.run(broker, channels))
            await self._archives_compared(applier)
            if broker.plane.prefix_owner is None:
                await cold.heads_compared()
        await parts.listeners.start(stack)
        if broker.plane.prefix_owner is not None:
            # The metadata tells clients at once that the broker is unfenced: by then it must accept them.
            await broker.plane.join(stack)
        # The first step of the end: requests that wait for a generation would delay the servers' close.
        stack.push_async_callback(broker.groups.close)
        if broker.transactions is not None:
            stack.push_async_callback(broker.transactions.close)
        parts.is_serving = True

    async def _archives_compared(self, applier: Applier) -> None:
        """Wait, for a limited time, until local logs are compared with the archives that a recovery took
        over."""
        metadata = self.parts.metadata
        assert metadata is not None
        if any(state.unchecked_partitions for state in metadata.image.recovered.values()):
            try:
                async with asyncio.timeout(COMPARE_WITH_ARCHIVES_S):
                    await applier.opener.archives.done_once()
            except TimeoutError:
                log.warning("this node serves before all local logs were compared with their archives")

    def _directory_failed(self, path: Path, error: StorageError) -> None:
        """Continue with the other directories, unless the node needs this one or it was the last."""
        plane = self.parts.plane
        if self._directories.fail(path):
            self._supervisor.fail(f"log directory {path}", error)
        elif plane is not None and path in self._directories.ids:
            plane.directory_failed(self._directories.ids[path])


class _LogsClosing:
    """Closes the logs, with a clean-shutdown marker unless something failed."""

    def __init__(self, logs: LogManager, supervisor: Supervisor) -> None:
        self._logs = logs
        self._supervisor = supervisor
        self.broker_epoch: Callable[[], int] = lambda: -1

    async def __call__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        epoch = self.broker_epoch()
        clean = error is None and self._supervisor.failure is None and epoch >= 0
        await self._logs.close(clean, epoch)
