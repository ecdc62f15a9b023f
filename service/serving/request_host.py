"""What handlers work with: the node's parts that outlive a request. Owned by the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar
from uuid import UUID

from service.base.clock import Clock
from service.base.disk import Space
from service.base.errors import InvariantError, RequestError
from service.base.printable import printable
from service.base.rate_limited_log import RateLimitedLog
from service.base.threads import Threads
from service.base.timers import Timers
from service.config.settings import BrokerConfig
from service.hot.files import FileSlice
from service.hot.log import LocalLog
from service.hot.lookup_prefetch import prefetch
from service.hot.manager import LogManager
from service.metadata.controller.controller import Controller
from service.metadata.controller.requests import ProducerIdBlock
from service.metadata.image import MetadataImage
from service.network.request import RequestContext, Response
from service.partition.fetch_sessions import FetchSessions
from service.partition.metrics import ServingMetrics
from service.replicas.disk_pressure import DiskWatch
from service.replicas.partition_registry import Replicas
from service.serving.group_coordinators import GroupCoordinators
from service.serving.metadata_cache import ClusterView
from service.serving.ports import BrokerAdmin, ConfigAdmin, FeatureAdmin, TopicAdmin
from service.serving.producer_id_manager import ProducerIds
from service.serving.response_cache import EncodedSettings, EncodedTopics
from service.wire.api import RequestHeader
from service.wire.produce import NodeEndpoint

if TYPE_CHECKING:
    from service.replication.selectors import Selector
    from service.replication.throttle import ReplicationThrottle
    from service.serving.control_plane import ControlPlane

_log = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

NO_THROTTLE: Final = timedelta(0)
"""No quotas are served, so no request is ever throttled."""

CAREFUL_S: Final = 60.0

TOPIC_OPERATIONS: Final = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
"""Every operation there is on a topic, as a bit field over AclOperation codes: without an authorizer all are
allowed.
"""
GROUP_OPERATIONS: Final = sum(1 << code for code in (3, 6, 8, 10, 11))
CLUSTER_OPERATIONS: Final = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))


class Broker:
    """The node as its handlers see it."""

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
        self.groups = groups
        self.producer_ids = ProducerIds(self._allocate_producer_ids)
        self.loop = asyncio.get_running_loop()
        self.endpoints: dict[str, tuple[str, int]] = {}
        """listener name -> (advertised host, advertised port)"""
        own = config()
        self.cluster = ClusterView(
            own.node_id, own.broker_rack, lambda: plane.metadata.image, self.endpoints, lambda: plane.epoch
        )
        self._logs = logs
        self._records_pool = threads.pool("records", 2)
        self._search_pool = threads.pool("search", 1)
        self._seek_pool = threads.pool("seek", 2)
        self.encoded_settings = EncodedSettings()
        self.encoded_topics = EncodedTopics(replicas)
        self.replica_selector: Selector | None = None
        """``replica.selector.class``: from which replica a consumer had better read"""
        self.leader_throttle: ReplicationThrottle | None = None
        """what other brokers may fetch here; None where there are none"""
        self.metrics = ServingMetrics()
        self.disks = DiskWatch(config, clock, replicas, logs, self.metrics)
        self._careful_until = 0.0
        self._refusals, self._passing = (RateLimitedLog(_log, now=self.loop.time) for _ in range(2))
        self._storage_errors = RateLimitedLog(_log, now=self.loop.time)

    @property
    def config(self) -> BrokerConfig:
        """The node's settings as they are now; some of them can be altered while it runs."""
        return self._config()

    @property
    def topic_admin(self) -> TopicAdmin:
        """The controller of this process; without one, clients' requests are forwarded as they came."""
        return self._decides()

    @property
    def feature_admin(self) -> FeatureAdmin:
        """The same controller, for features."""
        return self._decides()

    def _decides(self) -> Controller:
        if self.plane.decides is None:
            raise InvariantError("the controller is elsewhere")
        return self.plane.decides

    async def forward(
        self, context: RequestContext, header: RequestHeader, frame: memoryview, request: Any
    ) -> Response:
        """The controller's answer to a request that it decides."""
        if self.plane.forwarder is None:
            raise InvariantError("there is no controller elsewhere")
        return await self.plane.forwarder.forward(context, header, frame, request)

    @property
    def image(self) -> MetadataImage:
        """The newest committed metadata."""
        return self.metadata.image

    def current_leader(self, topic: str | UUID, partition: int) -> tuple[int, int] | None:
        """(Broker id, leader epoch) of who leads a partition as the metadata says, by topic name or id; -1:
        nobody."""
        known = self.image.topic(topic)
        found = None if known is None else known.partitions.get(partition)
        return None if found is None else (found.leader, found.leader_epoch)

    def node_endpoints(self, listener: str, nodes: Iterable[int]) -> tuple[NodeEndpoint, ...]:
        """Return where those of `nodes` are found that clients of `listener` can reach."""
        known = self.cluster.seen_by(listener).by_id
        found = [known[node] for node in nodes if node in known]
        return tuple([NodeEndpoint(one.id, one.host, one.port, one.rack) for one in found])

    async def _allocate_producer_ids(self) -> ProducerIdBlock:
        return await self.admin.allocate_producer_ids(self.config.node_id, self.plane.epoch)

    async def flush(self, log: LocalLog) -> None:
        """Have `log` written through to the device, off the loop. `StorageError` if the device refuses: then
        nothing is promised of it any more.
        """
        await self._logs.flush(log)

    def durable_start(self, log: LocalLog) -> int:
        """Return where the log begins at the latest after a crash; -1 where it is not here any more."""
        return self._logs.durable_start(log)

    async def checkpoint_starts(self) -> None:
        """Have the disk tell where all logs begin now; `durable_start` says what came of it."""
        await self._logs.checkpoint_starts()

    def logs_by_directory(self) -> list[tuple[LocalLog, Path]]:
        """All logs, offline ones among them, each with its log directory."""
        return self._logs.by_directory()

    async def space(self, log_dir: Path) -> Space:
        """What its file system holds; `StorageError` where the directory is offline."""
        return await self._logs.space(log_dir)

    async def records_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Validate a batch that would hold the loop for longer than a slice."""
        return await self.loop.run_in_executor(self._records_pool, partial(call, *args, **kwargs))

    async def search_thread(self, call: Callable[[], T]) -> T:
        """Look for a record. The searches of all clients stand in one line, beside nobody's records."""
        return await self.loop.run_in_executor(self._search_pool, call)

    def seek(self, slices: Sequence[FileSlice]) -> Future[None]:
        """Have these bytes in the page cache, or the error that whoever reads them meets as well."""
        return self._seek_pool.submit(prefetch, slices)

    async def load(self, module: str) -> ModuleType:
        """Code that is needed from now on: it is loaded on a thread, as that takes long."""
        return await self._logs.on_thread(import_module, module)

    def close(self) -> None:
        """No more work on threads; what is under way ends for nobody."""
        for pool in (self._records_pool, self._search_pool, self._seek_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    @property
    def reads_carefully(self) -> bool:
        """Return whether the disk has failed while a response was being sent, less than a minute ago.

        The connection is lost then, as the head of the response was out. Until it is over, fetches have
        their bytes in hand before they answer, so that only the partition that cannot be read is refused.
        """
        return self.loop.time() < self._careful_until

    def read_carefully(self) -> None:
        """The disk did not give what was being sent."""
        self._careful_until = self.loop.time() + CAREFUL_S

    def log_refusal(
        self,
        api: str,
        context: RequestContext,
        topic: object,
        partition: int,
        error: RequestError,
        *,
        is_passing: bool = False,
    ) -> None:
        """Say who was refused what and why; so many lines per interval, as peers can cause any number of
        them. `is_passing`: it is so for a moment whenever metadata changes, and buries no other line.
        """
        limited, level = (self._passing, logging.INFO) if is_passing else (self._refusals, logging.WARNING)
        limited.log(
            level,
            "%s of %s to %s-%d refused with %s: %s",
            api, context, printable(topic), partition, error.code.name, printable(error),
        )  # fmt: skip

    def log_storage_error(self, api: str, topic: object, partition: int, error: Exception) -> None:
        """Say that the disk or the object store kept a request from being served."""
        self._storage_errors.log(
            logging.ERROR, "%s of %s-%d: %s", api, printable(topic), partition, printable(error, 1024)
        )
