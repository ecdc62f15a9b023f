"""One node: built here, from the ground up, and ended here, from the top down.

Start: data directories (formatted where they are empty), metadata and controller (`control_plane`), logs of
all partitions, object store and offload, listeners. The order is that of dependence, so that no request
arrives before what serves it. The end is the reverse: leaderships move away, the listeners
close, the clean-shutdown marker is last. A node that is a controller alone ends with its place in the quorum.

Object storage that cannot be reached does not keep a node from starting: hot data is served, and offload and
cold reads go on by themselves when it is back. A prefix that belongs to another cluster does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from uuid import UUID

from service.base.errors import ConfigError, InvariantError, StorageError
from service.base.health import Check
from service.base.steps import at_once
from service.base.timers import Timers
from service.base.turns import TurnTimes
from service.base.world import World
from service.config.settings import BrokerConfig
from service.hot.log import LocalLog
from service.hot.log_dir import LogDir, cluster_id_of, encode_uuid, random_id
from service.hot.manager import LogManager
from service.hot.meta_properties_ensemble import check_directory_ids, load_ensemble
from service.metadata.controller.requests import Endpoint
from service.metadata.formatting import (
    SelfFormatting,
    check_formatted,
    check_metadata_place,
    self_formatting,
)
from service.metadata.image import MetadataImage
from service.metadata.publisher import Publisher
from service.network.admission import Admission
from service.network.metrics import NetworkMetrics
from service.network.request import Answer, RequestContext
from service.network.server import Server
from service.node import fd_budget, health
from service.node.fd_budget import Budget
from service.node.metadata_check import check_metadata, note_metadata
from service.node.node_options import cleaner_settings, limits_of, partition_limit
from service.node.quorum_control_plane import ClusterPlane, ask_cluster_id, check_cluster
from service.node.retention_task import retention_loop
from service.node.standalone_control_plane import AlonePlane, Home
from service.node.supervisor import Supervisor
from service.partition.fetch_sessions import FetchSessions
from service.partition.metrics import ServingMetrics
from service.partition.partition import Partition
from service.replicas.dynamic_config import check_topics, dynamic_config, topic_settings
from service.replicas.metadata_applier import Applier
from service.replicas.partition_registry import Replicas
from service.replication.metrics import ReplicationMetrics
from service.replication.selectors import of_the_rack
from service.serving.control_plane import ControlPlane
from service.serving.dispatch import Dispatcher
from service.serving.group_coordinators import GroupCoordinators
from service.serving.internal_topics import InternalTopics
from service.serving.request_host import Broker

if TYPE_CHECKING:
    from service.node.cold_tier import ColdTier, OpenStore
    from service.remote.reading.reader import RemoteReader
    from service.replicas.replica_manager import ReplicaManager

log = logging.getLogger(__name__)

COMPARE_WITH_ARCHIVES_S = 60.0
"""How long a start waits for that; partitions that were not compared yet are offline until they are."""


class Node:
    """The parts of one node. `start` puts on the stack what ends each of them."""

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
        """`open_files`: descriptors that this process may have; None: no bound is known. `open_store` makes a
        client of the bucket, None: as the settings say. `turns` are told who holds the loop."""
        self._static_config = config
        self._supervisor = supervisor
        self._world = world
        self._clock = world.clock
        self._open_files = open_files
        self._open_store = open_store
        self.turns = turns or TurnTimes()
        self.network = NetworkMetrics()
        self.logs: LogManager | None = None
        self.metadata: Publisher | None = None
        self.cold: ColdTier | None = None
        self.is_serving = False
        self._broker: Broker | None = None
        self._failed_directories: set[Path] = set()
        self._servers: list[Server] = []
        self._places: dict[str, tuple[str, int]] = {}
        """by listener: where clients find this node"""
        self._directory_ids: dict[Path, UUID] = {}
        self.plane: ControlPlane | None = None
        self._applier: Applier | None = None
        self._replication: ReplicaManager | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first listener."""
        first = self.listening[0]
        return first.host, first.port

    @property
    def listening(self) -> Sequence[Server]:
        """The broker's listeners, then the controller's."""
        of_controller = () if self.plane is None else self.plane.servers
        return (*self._servers, *of_controller)

    def is_loading(self) -> bool:
        """Return whether a coordinator reads its log."""
        return self._broker is not None and self._broker.groups.runtime.is_loading

    def name_of(self, task: asyncio.Task[Any]) -> str:
        """What `task` is for: a request, or a chore of the node."""
        asking = (server.client_of(task) for server in self.listening)
        client = next((one for one in asking if one is not None), None)
        if client is not None:
            return client
        name = task.get_name()
        if name.startswith("Task-"):
            # A handler's own task: nobody knows whose, but there are not many that it can be.
            at_work = islice((one for server in self.listening for one in server.being_answered()), 3)
            name = ", perhaps for ".join((name, *at_work))
        return name

    async def start(self, stack: AsyncExitStack) -> None:
        """Bring everything up. Raises `ConfigError`, `CorruptionError`, `StorageError` or `OSError`, what was
        started until then being on `stack`."""
        config = self._static_config
        if config.cluster.is_member:
            check_cluster(config)
        cluster_id = await self._cluster_id()
        budget = None
        if self._open_files is not None:
            budget = fd_budget.budget(self._open_files, max_connections=config.max_connections)
        closing: _LogsClosing | None = None
        if config.cluster.is_broker:
            self.logs = self._make_logs(budget)
            # A node that fails half-way has not shut down cleanly: no marker is left then.
            closing = _LogsClosing(self.logs, self._supervisor)
            stack.push_async_exit(closing)
        home = self._claim(stack, cluster_id)
        if config.cluster.is_controller:
            disk, log_dirs = self._world.disk, () if self.logs is None else tuple(self.logs.directories)
            check_metadata(
                disk,
                config.cluster,
                log_dirs,
                home.metadata_directory_id,
                recovers=config.remote_recover,
            )
            note_metadata(disk, config.cluster, log_dirs, home.metadata_directory_id)
        self.plane = plane = self._make_plane(home, budget)
        self.metadata = plane.metadata
        await plane.start(stack)
        if closing is None:
            assert isinstance(plane, ClusterPlane)
            await plane.in_quorum()
            await plane.recorded()
            self.is_serving = True
            return
        broker = await self._start_broker(stack, plane, cluster_id)
        closing.broker_epoch = lambda: plane.epoch
        await self._serve(stack, broker)
        stack.push_async_callback(plane.leave)
        if isinstance(plane, ClusterPlane) and config.cluster.is_controller:
            await plane.recorded()

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

    async def _cluster_id(self) -> str:
        """The id that the directories bear, or that empty ones are to be formatted with: the configured one,
        a random one, or that of the quorum."""
        config, cluster, disk = self._static_config, self._static_config.cluster, self._world.disk
        check_metadata_place(disk, cluster)
        if cluster.is_member:
            check_formatted(cluster, load_ensemble(disk, cluster.directories))
        known = cluster_id_of(disk, cluster.directories)
        if known is None:
            if self_formatting(cluster) is SelfFormatting.BY_THE_QUORUM:
                return await ask_cluster_id(cluster, self._world, self._supervisor.stopped)
            return config.cluster_id or encode_uuid(random_id(self._world))
        if config.cluster_id not in (None, known):
            raise ConfigError(f"firn.cluster.id: the data directories belong to cluster {known}")
        return known

    def _claim(self, stack: AsyncExitStack, cluster_id: str) -> Home:
        """Note on every directory whose it is."""
        config = self._static_config
        place, node_id, keeps = config.cluster.metadata_log_dir, config.node_id, config.cluster.is_member
        known = {} if self.logs is None else self.logs.claim(cluster_id, node_id, keeps_ends=keeps)
        self._directory_ids = {path: meta.directory_id for path, meta in known.items()}
        metadata = known.get(place)
        if metadata is None:
            apart = LogDir(place, self._world)
            stack.callback(apart.close)
            taken = {meta.directory_id for meta in known.values()}
            metadata = apart.claim(cluster_id, node_id, taken)
            check_directory_ids({**known, place: metadata})
        return Home(
            cluster_id,
            metadata.directory_id,
            tuple(self._directory_ids.values()),
            *(() if self.logs is None else (self.logs.previous_epoch(), self.logs.registered)),
        )

    def _make_plane(self, home: Home, budget: Budget | None) -> ControlPlane:
        config, world, fail = self._static_config, self._world, self._supervisor.fail

        def current() -> BrokerConfig:
            return self._applier.settings.config if self._applier else config

        if not config.cluster.is_member:
            limit = None if budget is None else partition_limit(budget)
            return AlonePlane(
                config, current, world, home, world.new_uuid(), partition_limit=limit, on_fatal=fail
            )
        return ClusterPlane(
            config,
            current,
            world,
            home,
            world.new_uuid(),
            limits=limits_of(config),
            network=self.network,
            turns=self.turns,
            stopped=self._supervisor.stopped,
            on_fatal=fail,
        )

    async def _start_broker(self, stack: AsyncExitStack, plane: ControlPlane, cluster_id: str) -> Broker:
        """Open what it has, and become what the metadata says; nobody is let in yet."""
        logs, metadata = self.logs, plane.metadata
        assert logs is not None
        await plane.caught_up(stack, await self._bind(stack))
        config = dynamic_config(self._static_config, metadata.image)
        at_once(check_topics(metadata.image, config))
        self.cold = cold = await self._open_cold_tier(stack, config, plane, cluster_id)
        if cold is not None and config.remote_recover:
            assert plane.adopter is not None  # `check_cluster`
            await cold.recover(plane.adopter, metadata, self._static_config)
            config = dynamic_config(self._static_config, metadata.image)
        replicas = Replicas()
        timers = Timers(asyncio.get_running_loop())
        reader = cold.reader if cold else None
        replication = self._make_replication(stack, plane, logs, replicas, reader)
        checked = None if plane.adopter is None else plane.adopter.checked_with_archive
        applier = Applier(config, logs, replicas, reader, timers.purgatory, replication, checked)
        self._applier, self._replication = applier, replication
        settings = applier.settings
        at_once(check_topics(metadata.image, config))
        await logs.open_all(lambda topic: topic_settings(metadata.image, topic, config))
        groups = self._make_coordinators(applier, plane, timers, replicas, logs)
        stack.push_async_callback(groups.close)
        metadata.subscribe(applier.apply)  # what comes from now on waits for its turn
        await applier.start(metadata.image)
        await logs.set_aside_unknown(applier.holds)
        broker = Broker(
            lambda: settings.config,
            self._clock,
            cluster_id,
            plane,
            replicas,
            logs,
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
        stack.callback(broker.close)
        self._broker = broker
        if config.replication.selects_by_rack:
            broker.replica_selector = of_the_rack
        if replication is not None:
            broker.leader_throttle = replication.leader_throttle
            replication.watch_room(broker.disks)
        broker.disks.report_room(self._directory_ids, plane)
        broker.endpoints.update(self._places)
        dispatcher = Dispatcher(broker, plane.apis)
        for server in self._servers:
            server.set_handler(dispatcher, dispatcher.describe)
        if plane.prefix_owner is None:
            await plane.join(stack)
        return broker

    def _make_replication(
        self,
        stack: AsyncExitStack,
        plane: ControlPlane,
        logs: LogManager,
        replicas: Replicas,
        reader: RemoteReader | None,
    ) -> ReplicaManager | None:
        """A node that is alone has nobody to share partitions with."""
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
            lambda log: self._directory_ids.get(log.dir.parent),
            self._supervisor.fail,
            self._world.random.random,
        )
        logs.checkpoint_high_watermarks(replication.marks)
        stack.push_async_callback(replication.close)
        return replication

    def _make_coordinators(
        self,
        applier: Applier,
        plane: ControlPlane,
        timers: Timers,
        replicas: Replicas,
        logs: LogManager,
    ) -> GroupCoordinators:
        """They hear of what is led here from the first change on that the applier makes."""

        def config() -> BrokerConfig:
            return applier.settings.config

        def image() -> MetadataImage:
            return plane.metadata.image

        internal = InternalTopics(config, image, plane.admin)
        groups = GroupCoordinators(config, image, self._world, timers, replicas, logs, internal)
        applier.watch(groups)
        return groups

    async def _open_cold_tier(
        self, stack: AsyncExitStack, config: BrokerConfig, plane: ControlPlane, cluster_id: str
    ) -> ColdTier | None:
        """Only a node that has one carries the code of it: 50 ms of a start, and megabytes."""
        if config.remote_url is None:
            return None
        from service.node.cold_tier import ColdTier, is_tiered, open_configured_store

        make = self._open_store or open_configured_store
        cold = ColdTier(
            config, self._world, cluster_id, make, plane.incarnation_id,
            is_in_use=lambda: is_tiered(plane.metadata.image),
        )  # fmt: skip
        stack.push_async_callback(cold.close)
        self.cold = cold
        await cold.claim()
        return cold

    async def _serve(self, stack: AsyncExitStack, broker: Broker) -> None:
        """Begin the chores of the node, and let clients in."""
        logs, applier, cold = self.logs, self._applier, self.cold
        assert logs is not None
        assert applier is not None
        stack.push_async_callback(self._supervisor.close)
        self._supervisor.run("log-manager", logs.run())
        self._supervisor.run("applier", applier.opener.run())
        if self._replication is not None:
            self._supervisor.run("replication", self._replication.run())
        self._supervisor.run("retention", retention_loop(broker))
        self._supervisor.run("disk-watch", broker.disks.run())

        def stable_offset(log: LocalLog) -> int | None:
            partition = broker.replicas.get(log.tip.topic_id, log.tip.partition)
            return None if partition is None else partition.last_stable_offset

        cleaner = logs.cleaner.run(lambda: cleaner_settings(broker.config), stable_offset)
        self._supervisor.run("log-cleaner", cleaner)
        if cold is not None:
            self._supervisor.run("cold-tier", cold.run(broker))
            await self._archives_compared(applier)
            if broker.plane.prefix_owner is None:
                await cold.heads_compared()
        for server in self._servers:
            await server.start()
            stack.push_async_callback(server.close)
        if broker.plane.prefix_owner is not None:
            # Others learn from the metadata at once that it is unfenced: it must be there for them by then.
            await broker.plane.join(stack)
        # First of all at the end: who waits for a generation would keep the servers waiting, too.
        stack.push_async_callback(broker.groups.close)
        self.is_serving = True

    async def _archives_compared(self, applier: Applier) -> None:
        """After a recovery: wait until local logs were compared with their archives, but not for ever."""
        assert self.metadata is not None
        if any(state.unchecked_partitions for state in self.metadata.image.recovered.values()):
            try:
                async with asyncio.timeout(COMPARE_WITH_ARCHIVES_S):
                    await applier.opener.archives.done_once()
            except TimeoutError:
                log.warning("this node serves before all local logs were compared with their archives")

    @property
    def serving(self) -> ServingMetrics | None:
        """What produce and fetch have counted, once they can."""
        return None if self._broker is None else self._broker.metrics

    @property
    def groups(self) -> GroupCoordinators | None:
        """The groups of this node, once it can have any."""
        return None if self._broker is None else self._broker.groups

    def partitions(self) -> Sequence[Partition]:
        """Those that are online now."""
        return () if self._broker is None else tuple(self._broker.replicas)

    def closed_count(self) -> int:
        """Partitions of this node that could not be opened, or were taken offline."""
        return 0 if self._broker is None else self._broker.replicas.closed_count

    def replica_counts(self) -> Mapping[str, int]:
        """Partitions of several replicas that are led and followed here, and what is amiss with the first."""
        if self._replication is None:
            return dict.fromkeys(("led", "followed", "under_replicated", "under_min_isr", "resting"), 0)
        return self._replication.counts()._asdict()

    def replicated(self) -> ReplicationMetrics:
        """What its replicas have counted."""
        return ReplicationMetrics() if self._replication is None else self._replication.metrics

    def throttled_bytes(self) -> Mapping[str, int]:
        """Of replicas that are throttled: what was sent as `leader`, and taken as `follower`."""
        if self._replication is None:
            return {"leader": 0, "follower": 0}
        leader, follower = self._replication.leader_throttle, self._replication.follower_throttle
        return {"leader": leader.quota.recorded, "follower": follower.quota.recorded}

    def connections(self) -> Mapping[str, int]:
        """Open connections by listener."""
        return {server.listener: server.connection_count for server in self.listening}

    def memory(self) -> Mapping[str, int]:
        """Bytes held, by who holds them."""
        held = {"requests": sum(server.request_memory_bytes for server in self.listening)}
        if self.cold is not None:
            downloads = self.cold.reader.stats().downloads
            held["cold_cache"] = downloads.cached_bytes
            held["cold_downloads"] = downloads.in_flight_bytes
            held["cold_metadata"] = downloads.metadata_bytes
            held["cold_answers"] = downloads.sending_bytes
        return held

    def health(self) -> Sequence[Check]:
        """How logs, metadata and store are, and whether requests are served."""
        is_broker = self._static_config.cluster.is_broker
        return health.checks(
            self._supervisor.failure,
            self._broker,
            self.logs,
            self.cold,
            self.is_serving,
            is_broker=is_broker,
        )

    def _directory_failed(self, path: Path, error: StorageError) -> None:
        """Partitions of other directories go on; without metadata, or without any directory, nothing does."""
        self._failed_directories.add(path)
        config = self._static_config
        is_essential = path == config.cluster.metadata_log_dir
        if is_essential or self._failed_directories.issuperset(config.log_dirs):
            self._supervisor.fail(f"log directory {path}", error)
        elif self.plane is not None and path in self._directory_ids:
            self.plane.directory_failed(self._directory_ids[path])

    async def _bind(self, stack: AsyncExitStack) -> tuple[Endpoint, ...]:
        """Take the addresses of the broker's listeners; where they are reached."""
        config = self._static_config
        limits, admission = limits_of(config), Admission(config.max_connections)
        advertised = {one.name: one for one in config.advertised_listeners}
        for listener in config.listeners:
            server = Server(
                listener.host,
                listener.port,
                _not_yet,
                limits=limits,
                listener=listener.name,
                admission=admission,
                metrics=self.network,
                turns=self.turns,
                threads=self._world.threads,
            )
            await server.bind()
            stack.push_async_callback(server.close)
            self._servers.append(server)
            told = advertised[listener.name]
            self._places[listener.name] = (told.host, told.port or server.port)
        return tuple(Endpoint(name, host, port) for name, (host, port) in self._places.items())


def _not_yet(context: RequestContext, frame: memoryview) -> Answer:
    raise InvariantError("nobody is let in before the broker is there")


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
