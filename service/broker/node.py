"""One node: built here, from the ground up, and ended here, from the top down.

Start: data directories (formatted where they are empty), metadata log and controller, logs of all partitions,
object store and offload, listeners; then the `ready` line. The order is that of dependence, so that no
request arrives before what serves it. The end is the reverse: listeners first, the clean-shutdown marker
last.

Object storage that cannot be reached does not keep a node from starting: hot data is served, and offload and
cold reads go on by themselves when it is back. A prefix that belongs to another cluster does.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from service.base.clock import Clock
from service.base.disk import Disk
from service.base.errors import ConfigError, CorruptionError, StorageError
from service.base.files import exists
from service.base.health import Check
from service.base.steps import at_once
from service.base.timers import Timers
from service.base.turns import Turns
from service.base.world import World, system_world
from service.broker import descriptors, health
from service.broker.applier import Applier
from service.broker.broker import Broker
from service.broker.config_rules import NodeConfigRules
from service.broker.coordinators import GroupCoordinators
from service.broker.descriptors import Budget
from service.broker.dispatch import Dispatcher
from service.broker.effective_settings import check_topics, dynamic_config, topic_settings
from service.broker.garbage import Garbage
from service.broker.internal_topics import InternalTopics
from service.broker.loop import LoopWatch, new_loop
from service.broker.replicas import Replicas
from service.broker.retention import retention_loop
from service.broker.supervisor import Supervisor
from service.config.settings import BrokerConfig, Listener
from service.hot import names
from service.hot.cleaning.cleaning import CleanerSettings
from service.hot.log import LocalLog
from service.hot.log_dir import cluster_id_of, encode_uuid, random_id
from service.hot.manager import LogManager
from service.metadata.controller.controller import Controller, ControllerOptions
from service.metadata.controller.requests import Endpoint, PartitionLimit, RegisterBroker, TopicDefaults
from service.metadata.image import MetadataImage
from service.metadata.publisher import MetadataOptions, Publisher
from service.network.admission import Admission
from service.network.exchange import Limits
from service.network.metrics import NetworkMetrics
from service.network.server import Server
from service.partition.fetch_sessions import FetchSessions
from service.partition.metrics import ServingMetrics
from service.partition.partition import Partition

if TYPE_CHECKING:
    from service.broker.cold import ColdTier, OpenStore

log = logging.getLogger(__name__)

OpenConsole = Callable[["Node", Clock], AbstractAsyncContextManager[str]]
"""Shows a node to people over HTTP while the context lasts; gives the URL."""


SWITCH_S: Final = 0.0005
"""How long a thread that works in Python keeps the interpreter while others want it. The loop gives it away
with each call of a socket or file and waits so long to have it back: with Python's 5 ms, a request that takes
three calls waits 15 ms beside one thread that decodes a manifest."""


def run_server(config: BrokerConfig, open_console: OpenConsole | None = None) -> int:
    """Run a node until SIGTERM or SIGINT; returns the process's exit code.

    Prints ``ready: node <id> on <host>:<port>`` once it serves, and ``http: <url>`` where it has a console.
    """
    turns = Turns()
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=lambda: new_loop(turns, time.monotonic)) as runner:
        return runner.run(_run(config, turns, open_console))


def _allow_open_files() -> int:
    """Every partition's newest segment and every connection is an open file; the usual soft limit of 1,024 is
    for programs that do not know better."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


async def _run(config: BrokerConfig, turns: Turns, open_console: OpenConsole | None) -> int:
    open_files = _allow_open_files()
    supervisor = Supervisor()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stop)
    world = system_world()
    node = Node(config, supervisor, world, open_files=open_files, turns=turns)
    watch = LoopWatch(turns, world.threads, threading.get_ident(), node.name_of)
    garbage = Garbage(turns, time.monotonic, is_loading=node.is_loading)
    try:
        async with AsyncExitStack() as stack:
            url = ""
            if open_console is not None:
                url = await stack.enter_async_context(open_console(node, world.clock))
            # What a start makes lives until the end, be it ten thousand partitions: no collection need look
            # at it, now or later.
            gc.disable()
            await node.start(stack)
            garbage.begin()
            gc.enable()
            supervisor.run("garbage", garbage.run())
            await asyncio.sleep(0)
            watch.start()
            host, port = node.address
            print(
                f"ready: node {config.node_id} on {host}:{port}",
                *([f"http: {url}"] if url else ()),
                sep="\n",
                flush=True,
            )
            await supervisor.stopped()
            node.is_serving = False
            log.info("node %d stops", config.node_id)
    except (ConfigError, CorruptionError, StorageError, OSError) as e:
        log.critical("node %d: %s", config.node_id, e)
        return 1
    finally:
        watch.close()
    return 0 if supervisor.failure is None else 1


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
        turns: Turns | None = None,
    ) -> None:
        """`open_files`: descriptors that this process may have; None: no bound is known. `open_store` makes a
        client of the bucket, None: as the settings say. `turns` are told who holds the loop."""
        self._static_config = config
        self._supervisor = supervisor
        self._world = world
        self._clock = world.clock
        self._open_files = open_files
        self._open_store = open_store
        self.turns = turns or Turns()
        self.network = NetworkMetrics()
        self.logs: LogManager | None = None
        self.metadata: Publisher | None = None
        self.cold: ColdTier | None = None
        self.is_serving = False
        self._broker: Broker | None = None
        self._failed_directories: set[Path] = set()
        self._servers: list[Server] = []
        self._applier: Applier | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first listener."""
        return self._servers[0].host, self._servers[0].port

    def is_loading(self) -> bool:
        """Whether a coordinator reads its log."""
        return self._broker is not None and self._broker.groups.runtime.is_loading

    def name_of(self, task: asyncio.Task[Any]) -> str:
        """What `task` is for: a request, or a chore of the node."""
        asking = (server.client_of(task) for server in self._servers)
        client = next((one for one in asking if one is not None), None)
        if client is not None:
            return client
        name = task.get_name()
        if name.startswith("Task-"):
            # A handler's own task: nobody knows whose, but there are not many that it can be.
            at_work = islice((one for server in self._servers for one in server.being_answered()), 3)
            name = ", perhaps for ".join((name, *at_work))
        return name

    async def start(self, stack: AsyncExitStack) -> None:
        """Bring everything up. Raises `ConfigError`, `CorruptionError`, `StorageError` or `OSError`, what was
        started until then being on `stack`."""
        config = self._static_config
        cluster_id = _cluster_id(config, self._world)
        budget = None
        if self._open_files is not None:
            budget = descriptors.budget(self._open_files, max_connections=config.max_connections)
        logs = LogManager(
            config.log_dirs,
            self._world,
            max_open_files=budget.cached_files if budget else descriptors.FEW_FILES,
            on_directory_failed=self._directory_failed,
            checkpoint_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
            producer_expiration_ms=config.producer_id_expiration_ms,
        )
        self.logs = logs
        # A node that fails half-way has not shut down cleanly: no marker is left then.
        closing = _LogsClosing(logs, self._supervisor)
        stack.push_async_exit(closing)
        directories = tuple(meta.directory_id for meta in logs.claim(cluster_id, config.node_id))

        if not config.remote_recover:
            _check_metadata(self._world.disk, logs.directories)
        self.metadata = metadata = await self._start_metadata(stack, directories[0])
        controller = await self._start_controller(stack, metadata, cluster_id, budget)
        config = dynamic_config(config, metadata.image)
        at_once(check_topics(metadata.image, config))
        self.cold = cold = await self._open_cold_tier(stack, config, cluster_id)
        adopted = await cold.recover(controller) if cold is not None and config.remote_recover else {}
        replicas = Replicas()
        timers = Timers(asyncio.get_running_loop())
        applier = Applier(config, logs, replicas, cold.reader if cold else None, timers.purgatory)
        self._applier = applier
        at_once(check_topics(metadata.image, config))
        await logs.open_all(lambda topic: topic_settings(metadata.image, topic, config))
        applier.adopt(adopted)
        groups = self._make_coordinators(applier, controller, timers, replicas, logs)
        stack.push_async_callback(groups.close)
        await applier.start(metadata.image)
        await logs.set_aside_unknown(applier.holds)
        metadata.subscribe(applier.apply)

        broker = Broker(
            lambda: applier.config,
            self._clock,
            cluster_id,
            metadata,
            controller,
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
        await self._bind(broker)
        broker.epoch = closing.broker_epoch = await self._register(stack, broker, directories)
        await self._serve(stack, broker, logs, applier, cold)

    def _make_coordinators(
        self,
        applier: Applier,
        controller: Controller,
        timers: Timers,
        replicas: Replicas,
        logs: LogManager,
    ) -> GroupCoordinators:
        """They hear of what is led here from the first change on that the applier makes."""

        def config() -> BrokerConfig:
            return applier.config

        def image() -> MetadataImage:
            return controller.image

        internal = InternalTopics(config, image, controller)
        groups = GroupCoordinators(config, image, self._world, timers, replicas, logs, internal)
        applier.watch(groups)
        return groups

    async def _open_cold_tier(
        self, stack: AsyncExitStack, config: BrokerConfig, cluster_id: str
    ) -> ColdTier | None:
        """Only a node that has one carries the code of it: 50 ms of a start, and megabytes."""
        if config.remote_url is None:
            return None
        from service.broker.cold import ColdTier, open_configured_store

        cold = ColdTier(config, self._world, cluster_id, self._open_store or open_configured_store)
        stack.push_async_callback(cold.close)
        self.cold = cold
        await cold.claim()
        return cold

    async def _serve(
        self, stack: AsyncExitStack, broker: Broker, logs: LogManager, applier: Applier, cold: ColdTier | None
    ) -> None:
        """Begin the chores of the node, and let clients in."""
        stack.push_async_callback(self._supervisor.close)
        self._supervisor.run("log-manager", logs.run())
        self._supervisor.run("applier", applier.run())
        self._supervisor.run("retention", retention_loop(broker))
        self._supervisor.run("disk-watch", broker.disks.run())

        def stable_offset(log: LocalLog) -> int | None:
            partition = broker.replicas.get(log.tip.topic_id, log.tip.partition)
            return None if partition is None else partition.last_stable_offset

        cleaner = logs.cleaner.run(lambda: _cleaner_settings(broker.config), stable_offset)
        self._supervisor.run("log-cleaner", cleaner)
        if cold is not None:
            self._supervisor.run("cold-tier", cold.run(broker, broker.controller))
            await cold.heads_compared()
        for server in self._servers:
            await server.start()
            stack.push_async_callback(server.close)
        # First of all at the end: who waits for a generation would keep the servers waiting, too.
        stack.push_async_callback(broker.groups.close)
        self.is_serving = True

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

    def connections(self) -> Mapping[str, int]:
        """Open connections by listener."""
        return {server.listener: server.connection_count for server in self._servers}

    def memory(self) -> Mapping[str, int]:
        """Bytes held, by who holds them."""
        held = {"requests": sum(server.request_memory_bytes for server in self._servers)}
        if self.cold is not None:
            flights = self.cold.reader.stats().flights
            held["cold_cache"] = flights.cached_bytes
            held["cold_downloads"] = flights.in_flight_bytes
            held["cold_metadata"] = flights.metadata_bytes
            held["cold_answers"] = flights.sending_bytes
        return held

    def health(self) -> Sequence[Check]:
        """How logs, metadata and store are, and whether requests are served."""
        return health.checks(self._supervisor.failure, self._broker, self.logs, self.cold, self.is_serving)

    def _directory_failed(self, path: Path, error: StorageError) -> None:
        """Partitions of other directories go on; without metadata, or without any directory, nothing does."""
        self._failed_directories.add(path)
        dirs = self._static_config.log_dirs
        if path == dirs[0] or self._failed_directories.issuperset(dirs):
            self._supervisor.fail(f"log directory {path}", error)

    async def _start_metadata(self, stack: AsyncExitStack, directory_id: UUID) -> Publisher:
        config = self._static_config
        options = MetadataOptions(
            node_id=config.node_id,
            directory=config.log_dirs[0],
            directory_id=directory_id,
            segment_bytes=config.metadata_log_segment_bytes,
            snapshot_max_bytes=config.metadata_log_max_record_bytes_between_snapshots,
            snapshot_interval_ms=config.metadata_log_max_snapshot_interval_ms,
        )
        metadata = Publisher(options, self._world, on_fatal=self._supervisor.fail)
        stack.push_async_callback(metadata.stop)
        await metadata.start()
        return metadata

    async def _start_controller(
        self, stack: AsyncExitStack, metadata: Publisher, cluster_id: str, budget: Budget | None
    ) -> Controller:
        config = self._static_config
        options = ControllerOptions(
            node_id=config.node_id,
            cluster_id=cluster_id,
            defaults=TopicDefaults(config.num_partitions, config.default_replication_factor),
            listeners=_endpoints(config.controller_listeners),
            partition_limit=None if budget is None else _partition_limit(budget),
        )
        rules = NodeConfigRules(lambda: self._applier.config if self._applier else config)
        controller = Controller(options, metadata, self._world, rules)
        stack.callback(controller.stop)
        await controller.start()
        return controller

    async def _bind(self, broker: Broker) -> None:
        config = self._static_config
        limits = Limits(
            max_request_bytes=config.socket_request_max_bytes,
            idle_ms=_or_unbounded(config.connections_max_idle_ms),
            request_memory_bytes=_or_unbounded(config.queued_max_request_bytes),
            read_timeout_ms=config.request_read_timeout_ms,
            send_timeout_ms=config.send_timeout_ms,
        )
        admission = Admission(config.max_connections)
        dispatcher = Dispatcher(broker)
        advertised = {one.name: one for one in config.advertised_listeners}
        for listener in config.listeners:
            server = Server(
                listener.host,
                listener.port,
                dispatcher,
                limits=limits,
                listener=listener.name,
                admission=admission,
                metrics=self.network,
                turns=self.turns,
                describe=dispatcher.describe,
            )
            await server.bind()
            self._servers.append(server)
            told = advertised[listener.name]
            broker.endpoints[listener.name] = (told.host, told.port or server.port)

    async def _register(self, stack: AsyncExitStack, broker: Broker, directories: tuple[UUID, ...]) -> int:
        """Make this process the broker that leads; it is fenced again at the end, so that the next one may
        be.
        """
        config, controller = self._static_config, broker.controller
        epoch = await controller.register_broker(
            RegisterBroker(
                broker_id=config.node_id,
                incarnation_id=self._world.new_uuid(),
                endpoints=tuple(
                    Endpoint(name, host, port) for name, (host, port) in broker.endpoints.items()
                ),
                cluster_id=broker.cluster_id,
                rack=config.broker_rack,
                log_dirs=directories,
            )
        )
        await controller.unfence_broker(config.node_id, epoch)
        stack.push_async_callback(_fence, controller, config.node_id, epoch)
        return epoch


async def _fence(controller: Controller, node_id: int, epoch: int) -> None:
    try:
        await controller.fence_broker(node_id, epoch)
    except StorageError as e:
        log.warning("node %d stops without saying so in the metadata: %s", node_id, e)


class _LogsClosing:
    """Closes the logs, with a clean-shutdown marker unless something failed."""

    def __init__(self, logs: LogManager, supervisor: Supervisor) -> None:
        self._logs = logs
        self._supervisor = supervisor
        self.broker_epoch = -1

    async def __call__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        clean = error is None and self._supervisor.failure is None and self.broker_epoch >= 0
        await self._logs.close(clean, self.broker_epoch)


def _cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    return CleanerSettings(
        config.log_cleaner_enable,
        config.log_cleaner_threads,
        config.log_cleaner_dedupe_buffer_size,
        config.log_cleaner_io_buffer_size,
        config.log_cleaner_io_buffer_load_factor,
        config.log_cleaner_io_max_bytes_per_second,
        config.log_cleaner_backoff_ms,
    )


def _or_unbounded(value: int) -> int:
    """Settings say "no bound" with a negative number."""
    return sys.maxsize if value < 0 else value


def _cluster_id(config: BrokerConfig, world: World) -> str:
    """The id that the data directories bear; new ones are formatted with the configured or a random id."""
    known = cluster_id_of(world.disk, config.log_dirs)
    if known is None:
        return config.cluster_id or encode_uuid(random_id(world))
    if config.cluster_id not in (None, known):
        raise ConfigError(f"firn.cluster.id: the data directories belong to cluster {known}")
    return known


def _check_metadata(disk: Disk, log_dirs: Sequence[Path]) -> None:
    """Refuse to begin with empty metadata where there are partitions: `CorruptionError`.

    The metadata was lost, and the partitions of topics that nobody knows would be set aside.
    """
    metadata = log_dirs[0] / names.CLUSTER_METADATA_DIR
    found = [entry.name for entry in disk.list(metadata)] if exists(disk, metadata) else []
    if any(name.endswith((names.LOG, ".checkpoint")) for name in found):
        return
    for path in log_dirs:
        replicas = [e.name for e in disk.list(path) if e.is_dir and names.parse_partition_dir(e.name)]
        replicas = [name for name in replicas if name != names.CLUSTER_METADATA_DIR]
        if replicas:
            raise CorruptionError(
                f"{metadata} is lost or empty, and {path} holds {len(replicas)} partitions, {replicas[0]} "
                "among them: docs/operations.md says what to do"
            )


def _partition_limit(budget: Budget) -> PartitionLimit:
    return PartitionLimit(
        budget.partitions, f"its {budget.limit} open files (RLIMIT_NOFILE) carry {budget.partitions}"
    )


def _endpoints(listeners: tuple[Listener, ...]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(one.name, one.host, one.port) for one in listeners)
