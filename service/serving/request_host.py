"""The node's interface to its request handlers. Owned by the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.disk import Space
from service.base.errors import InvariantError, RequestError
from service.base.printable import printable
from service.base.rate_limited_log import RateLimitedLog
from service.base.slices import in_later_turns
from service.base.threads import Threads
from service.base.timers import Timers
from service.config.settings import BrokerConfig
from service.health.findings import Finding
from service.hot.files import FileSlice
from service.hot.log import LocalLog
from service.hot.lookup_prefetch import prefetch
from service.hot.manager import LogManager
from service.metadata.controller.controller import Controller
from service.metadata.controller.requests import ProducerIdBlock
from service.metadata.image import MetadataImage
from service.network.request import RequestContext, Response
from service.network.request_meter import RequestQuotas
from service.partition.fetch_sessions import FetchSessions
from service.partition.implicit_sessions import ImplicitSessions
from service.partition.metrics import ServingMetrics
from service.replicas.disk_pressure import DiskWatch
from service.replicas.partition_registry import Replicas
from service.security.operations import AclOperation
from service.serving.fetch_plans import FetchPlans
from service.serving.group_coordinators import GroupCoordinators
from service.serving.metadata_cache import ClusterView
from service.serving.ports import BrokerAdmin, ConfigAdmin, FeatureAdmin, TopicAdmin
from service.serving.producer_id_manager import ProducerIds
from service.serving.response_cache import EncodedSettings, EncodedTopics
from service.wire.api import RequestHeader
from service.wire.produce import NodeEndpoint

if TYPE_CHECKING:
    from service.network.server import Server
    from service.replicas.cut_answers import CutAnswers
    from service.replication.selectors import Selector
    from service.replication.throttle import ReplicationThrottle
    from service.security.authorizer import Authorizer
    from service.serving.control_plane import ControlPlane
    from service.serving.rewrite_ports import ErasureOrders, RangePublisher
    from service.serving.transaction_coordinators import TransactionCoordinators


_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

NO_THROTTLE: Final = timedelta(0)
"""Throttle that a handler sets; the dispatcher sets that of a quota (`serving/throttles.py`)."""

CAREFUL_S: Final = 60.0
"""Duration of `Broker.reads_carefully` after a failure."""

TOPIC_OPERATIONS: Final = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
"""All operations on a topic, as a bit field of AclOperation codes: without an authorizer all are allowed."""
GROUP_OPERATIONS: Final = sum(1 << code for code in (3, 6, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))

PASSING: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.topic_authorization_failed,
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.inconsistent_topic_id,
    }
)
"""Errors of clients and followers when topics or leaders change: one broker learns of it first. That a client
may not read or write is in the audit log."""


class Broker:
    """The node as its handlers see it."""

    alters_loggers: Final = AclOperation.ALTER_CONFIGS

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        clock: Clock,
        cluster_id: str,
        plane: ControlPlane,
        replicas: Replicas,
        logs: LogManager,
        threads: Threads,
        timers: Timers,
        fetch_sessions: FetchSessions,
        groups: GroupCoordinators,
    ) -> None:
        self._config = config
        self.clock = clock
        self.cluster_id = cluster_id
        self.plane = plane
        self.metadata = plane.metadata
        self.admin: BrokerAdmin = plane.admin
        self.config_admin: ConfigAdmin = plane.admin
        self.replicas = replicas
        replicas.known_by(lambda: plane.metadata.image)
        self.timers = timers
        self.fetch_sessions = fetch_sessions
        own = config()
        has_sessions = own.max_incremental_fetch_session_cache_slots > 0
        self.fetch_plans = FetchPlans()
        self.implicit_sessions = ImplicitSessions(
            timers.purgatory, own.fetch_session_cache_partitions if has_sessions else 0, in_later_turns
        )
        self.groups = groups
        self.transactions: TransactionCoordinators | None = None
        """None: transactions are not served"""
        self.producer_ids = ProducerIds(self._allocate_producer_ids)
        self.loop = asyncio.get_running_loop()
        self.endpoints: dict[str, tuple[str, int]] = {}
        """listener name -> (advertised host, advertised port)"""
        self.cluster = ClusterView(
            own.node_id, own.broker_rack, lambda: plane.metadata.image, self.endpoints, lambda: plane.epoch
        )
        self._logs = logs
        self._records_pool = threads.pool("records", 2)
        self._search_pool = threads.pool("search", 1)
        self._seek_pool = threads.pool("seek", 2)
        self.encoded_settings = EncodedSettings()
        self.encoded_topics = EncodedTopics(replicas)
        self.authorizer: Authorizer | None = None
        """None: everything is allowed"""
        self.servers: Callable[[], Sequence[Server]] = tuple
        """the listeners of this process"""
        self.judged: Callable[[], Sequence[Finding]] = tuple
        """the findings about this node and its cluster"""
        self.replica_selector: Selector | None = None
        """``replica.selector.class``: chooses the replica from which a consumer should read"""
        self.leader_throttle: ReplicationThrottle | None = None
        """limits the fetches of other brokers; None if there are none"""
        self.metrics = ServingMetrics()
        self.quotas = RequestQuotas(self.loop, own.quotas)
        self.disks = DiskWatch(config, clock, replicas, logs, self.metrics)
        self.heir: str | None = None
        """cluster that was restored from this one, and has its prefix"""
        self.cuts: CutAnswers | None = None
        """this broker's part of cuts; None until its cold tier runs, and without a bucket"""
        self.range_publisher: RangePublisher | None = None
        """publishes rewrites that workers elsewhere have made; None until the cold tier runs"""
        self.erasure_orders: ErasureOrders | None = None
        """orders to erase keys; None until the cold tier runs"""
        self._careful_until = 0.0
        self._refusals, self._passing = (RateLimitedLog(_log, now=self.loop.time) for _ in range(2))
        self._storage_errors = RateLimitedLog(_log, now=self.loop.time)

    @property
    def erasure_waits(self) -> Mapping[tuple[UUID, tuple[UUID, int]], str]:
        """Reasons why orders to erase keys wait in the logs here, by order and partition."""
        return self._logs.metrics.erasure_waits

    @property
    def config(self) -> BrokerConfig:
        """The node's current settings; some can be altered while it runs."""
        return self._config()

    @property
    def topic_admin(self) -> TopicAdmin:
        """The controller of this process. Without one the dispatcher forwards clients' requests."""
        return self._decides()

    @property
    def feature_admin(self) -> FeatureAdmin:
        """The same controller, for features."""
        return self._decides()

    def _decides(self) -> Controller:
        if self.plane.decides is None:
            raise InvariantError("the controller is in another process: the request should be forwarded")
        return self.plane.decides

    async def forward(
        self, context: RequestContext, header: RequestHeader, frame: memoryview, request: Any
    ) -> Response:
        """Forward a request to the controller, and return its response."""
        if self.plane.forwarder is None:
            raise InvariantError("the controller is in this process: there is no forwarder")
        return await self.plane.forwarder.forward(context, header, frame, request)

    @property
    def image(self) -> MetadataImage:
        """The newest committed metadata."""
        return self.metadata.image

    def name_of(self, topic: str | UUID) -> str | None:
        """Return the name of a topic that a request names, by name or by id; None for an unknown id."""
        if isinstance(topic, str):
            return topic
        known = self.image.topic(topic)
        return None if known is None else known.name

    def current_leader(self, topic: str | UUID, partition: int) -> tuple[int, int] | None:
        """Return (leader, leader epoch) of a partition in the metadata, by topic name or id; leader -1: none.
        None if the metadata does not have the partition.
        """
        known = self.image.topic(topic)
        found = None if known is None else known.partitions.get(partition)
        return None if found is None else (found.leader, found.leader_epoch)

    def node_endpoints(self, listener: str, nodes: Iterable[int]) -> tuple[NodeEndpoint, ...]:
        """Return the addresses of those of `nodes` that clients of `listener` can reach."""
        known = self.cluster.view_for(listener).by_id
        found = [known[node] for node in nodes if node in known]
        return tuple([NodeEndpoint(one.id, one.host, one.port, one.rack) for one in found])

    def heir_changed(self, heir: str | None) -> None:
        """Note which cluster was restored from this one and has its prefix; None for none."""
        self.heir = heir

    def check_heir(self) -> None:
        """Raise `RequestError` KAFKA_STORAGE_ERROR where producers belong to the heir of this cluster."""
        if self.heir is not None and self.config.displaced_produce == "refuse":
            raise RequestError(
                ErrorCode.kafka_storage_error,
                f"cluster {self.heir} was restored from this one and has its bucket: nothing more is written "
                f"here (firn.displaced.produce)",
            )

    async def _allocate_producer_ids(self) -> ProducerIdBlock:
        return await self.admin.allocate_producer_ids(self.config.node_id, self.plane.epoch)

    async def flush(self, log: LocalLog) -> None:
        """Wait until everything appended to `log` until now is on the device; threads flush. Raises
        `StorageError` if that fails or the log is not in use.
        """
        await self._logs.flush(log)

    def durable_start(self, log: LocalLog) -> int:
        """Return the start offset that `log` keeps after a crash; -1 if this node no longer has the log."""
        return self._logs.durable_start(log)

    async def checkpoint_starts(self) -> None:
        """Write the checkpoint of all log start offsets; `durable_start` returns the outcome for each log."""
        await self._logs.checkpoint_starts()

    def logs_by_directory(self) -> list[tuple[LocalLog, Path]]:
        """Return all logs, with offline ones, each with its log directory."""
        return self._logs.by_directory()

    async def space(self, log_dir: Path) -> Space:
        """Return the size and free space of the directory's file system. Raises `StorageError` if the
        directory is offline.
        """
        return await self._logs.space(log_dir)

    async def records_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` on a thread: the validation of a batch that would hold the loop for too long."""
        return await self.loop.run_in_executor(self._records_pool, partial(call, *args, **kwargs))

    async def search_thread(self, call: Callable[[], T]) -> T:
        """Run `call`, a search for a record, on the one `search` thread: all searches wait in one queue, and
        do not delay the validation of records.
        """
        return await self.loop.run_in_executor(self._search_pool, call)

    def seek(self, slices: Sequence[FileSlice]) -> Future[None]:
        """Prefetch the slices into the page cache, on a thread. The future may fail with the same error as a
        read.
        """
        return self._seek_pool.submit(prefetch, slices)

    async def load(self, module: str) -> ModuleType:
        """Import a module on a thread, since that takes long."""
        return await self._logs.on_thread(import_module, module)

    def connection_ended(self, context: RequestContext) -> None:
        """Free what is kept for the connection of a client."""
        self.implicit_sessions.close(context.connection_id)
        self.fetch_plans.drop(context.connection_id)
        self.groups.connection_ended(context.connection_id)

    def close(self) -> None:
        """Shut the thread pools down: queued calls are cancelled, running ones are not awaited."""
        self.quotas.close()
        for pool in (self._records_pool, self._search_pool, self._seek_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    @property
    def reads_carefully(self) -> bool:
        """Return whether the disk has failed in the last `CAREFUL_S` while a response was being sent.

        Such a failure ends the connection, since the head of the response has been sent. So fetches read all
        bytes before they respond for a while: then only the unreadable partition gets an error.
        """
        return self.loop.time() < self._careful_until

    @property
    def fetches_plainly(self) -> bool:
        """Return whether nothing stands between a consumer and the records here: neither ACLs nor another
        replica to read from, and a disk that works."""
        return self.authorizer is None and self.replica_selector is None and not self.reads_carefully

    def note_send_failure(self) -> None:
        """Note that a disk read has failed while a response was being sent."""
        self._careful_until = self.loop.time() + CAREFUL_S

    def log_refusal(
        self,
        api: str,
        context: RequestContext,
        topic: str | UUID,
        partition: int,
        error: RequestError,
    ) -> None:
        """Log a refused partition of a request, rate-limited, as peers can cause any number of lines.

        Errors of `PASSING` have a limit of their own, and are INFO. A topic that is asked for by its id is
        told by its name, if it has one.
        """
        is_passing = error.code in PASSING
        limited, level = (self._passing, logging.INFO) if is_passing else (self._refusals, logging.WARNING)
        name = self.name_of(topic) or str(topic)
        words = str(error).replace(str(topic), name)
        limited.log(
            level,
            "%s of %s to %s-%d refused with %s: %s",
            api, context, printable(name), partition, error.code.name, printable(words),
        )  # fmt: skip

    def log_storage_error(self, api: str, topic: object, partition: int, error: Exception) -> None:
        """Log that the disk or the object store has failed a partition of a request, rate-limited."""
        self._storage_errors.log(
            logging.ERROR, "%s of %s-%d: %s", api, printable(topic), partition, printable(error, 1024)
        )
