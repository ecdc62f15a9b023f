"""Parts of one node as far as they exist, and its figures: what metrics, health and the loop's watch read.

`node` adds each part when it has made it; before its start a node has none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from service.base.node_identity import NodeIdentity
from service.base.steps import Steps
from service.base.turns import TurnTimes
from service.health.findings import Finding
from service.health.judge import judge
from service.health.readiness import NodeHealth
from service.health.sightings import Sightings
from service.health.wholeness import lacks
from service.hot.manager import LogManager
from service.metadata.publisher import Publisher
from service.network.metrics import NetworkMetrics
from service.network.request_meter import RequestQuotas
from service.network.server import Server
from service.node.broker_listeners import BrokerListeners
from service.node.health import ObservedParts, facts_of, parts_of
from service.node.supervisor import Supervisor
from service.partition.fetch_sessions import FetchSessions
from service.partition.implicit_sessions import ImplicitSessions
from service.partition.metrics import ServingMetrics
from service.partition.partition import Partition
from service.partition.traffic import TopicTraffic
from service.replication.metrics import ReplicationMetrics
from service.serving.control_plane import ControlPlane
from service.serving.group_coordinators import GroupCoordinators
from service.serving.request_host import Broker
from service.serving.transaction_figures import TransactionFigures

if TYPE_CHECKING:
    from service.network.jwks.key_sets import KeySets
    from service.network.tls.node_tls import NodeTls
    from service.node.cold_tier import ColdTier
    from service.replicas.replica_manager import ReplicaManager
    from service.security.authorizer import Authorizer

_REPLICA_COUNTS: Final = (
    "led", "followed", "under_replicated", "under_min_isr", "at_min_isr", "resting",
)  # fmt: skip
TOLD_AGE_MS: Final = 500
_MAX_TIMEOUT: Final = "transaction.max.timeout.ms"


class NodeParts:
    """Parts of one node (`ObservedNode` of the console)."""

    def __init__(
        self,
        supervisor: Supervisor,
        turns: TurnTimes,
        *,
        is_broker: bool,
        node_id: int,
        session_ms: int,
        rack: str = "",
    ) -> None:
        self.identity = NodeIdentity(node_id, "", rack)
        self.turns = turns
        self.network = NetworkMetrics()
        self.logs: LogManager | None = None
        self.plane: ControlPlane | None = None
        self.metadata: Publisher | None = None
        self.listeners = BrokerListeners()
        self.tls: NodeTls | None = None
        self.key_sets: KeySets | None = None
        self.cold: ColdTier | None = None
        self.replication: ReplicaManager | None = None
        self.broker: Broker | None = None
        self.authorizer: Authorizer | None = None
        self.is_serving = False
        self._supervisor = supervisor
        self._is_broker = is_broker
        self._node_id = node_id
        self._session_ms = session_ms
        self._sightings = Sightings()
        self._told: tuple[Finding, ...] = ()
        self._told_ms = -TOLD_AGE_MS

    # -- listeners

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first listener."""
        first = self.listening[0]
        return first.host, first.port

    @property
    def listening(self) -> Sequence[Server]:
        """The broker's listeners, then the controller's."""
        of_controller = () if self.plane is None else self.plane.servers
        return (*self.listeners.servers, *of_controller)

    def connections(self) -> Mapping[str, int]:
        """Return the number of open connections by listener."""
        return {server.listener: server.connection_count for server in self.listening}

    def name_of(self, task: asyncio.Task[Any]) -> str:
        """Return the purpose of `task`: the request that it answers, or its name."""
        descriptions = (server.client_of(task) for server in self.listening)
        client = next((one for one in descriptions if one is not None), None)
        if client is not None:
            return client
        name = task.get_name()
        if name.startswith("Task-"):
            # A task that a handler has made. Its request is not known, but few are under way.
            at_work = islice((one for server in self.listening for one in server.being_answered()), 3)
            name = ", perhaps for ".join((name, *at_work))
        return name

    # -- partitions and groups

    def partitions(self) -> Sequence[Partition]:
        """Return the open partitions."""
        return () if self.broker is None else tuple(self.broker.replicas)

    def traffic(self) -> Mapping[str, TopicTraffic]:
        """Return the counters of clients' traffic by topic."""
        return {} if self.broker is None else self.broker.replicas.traffic.counters()

    def closed_count(self) -> int:
        """Return the number of partitions that could not be opened, or were taken offline."""
        return 0 if self.broker is None else self.broker.replicas.closed_count

    @property
    def transaction_max_timeout_ms(self) -> int:
        """Longest timeout that a transactional producer may ask for; 0 before the broker starts."""
        return 0 if self.broker is None else cast("int", self.broker.config.transactions[_MAX_TIMEOUT])

    @property
    def quotas(self) -> Sequence[RequestQuotas]:
        """Quotas of clients, the broker's and the controller's."""
        of_broker = () if self.broker is None else (self.broker.quotas,)
        return (*of_broker, *(() if self.plane is None else self.plane.quotas))

    @property
    def serving(self) -> ServingMetrics | None:
        """Counters of produce and fetch."""
        return None if self.broker is None else self.broker.metrics

    @property
    def fetch_sessions(self) -> FetchSessions | None:
        """Cache of fetch sessions."""
        return None if self.broker is None else self.broker.fetch_sessions

    @property
    def implicit_sessions(self) -> ImplicitSessions | None:
        """Implicit sessions of clients that have no fetch session."""
        return None if self.broker is None else self.broker.implicit_sessions

    @property
    def groups(self) -> GroupCoordinators | None:
        """Groups that this node coordinates."""
        return None if self.broker is None else self.broker.groups

    def transactions(self, now_ms: int) -> TransactionFigures | None:
        """Return the figures of transactions at this moment."""
        if self.broker is None or self.broker.transactions is None:
            return None
        return self.broker.transactions.figures(now_ms)

    def is_loading(self) -> bool:
        """Return whether a coordinator reads its log."""
        broker = self.broker
        if broker is None:
            return False
        of_transactions = broker.transactions is not None and broker.transactions.runtime.is_loading
        return broker.groups.runtime.is_loading or of_transactions

    # -- replication

    def replica_counts(self) -> Steps[tuple[Mapping[str, int], Mapping[int, int]]]:
        """Count the partitions with several replicas: led and followed here, and those with a problem. The
        second mapping has the records that each other broker lacks at most, of a partition led here."""
        if self.replication is None:
            return dict.fromkeys(_REPLICA_COUNTS, 0), {}
        found = (yield from self.replication.counts())._asdict()
        lags = found.pop("lags")
        return found, lags

    def replicated(self) -> ReplicationMetrics:
        """Return the counters of this node's replicas."""
        return ReplicationMetrics() if self.replication is None else self.replication.metrics

    def throttled_bytes(self) -> Mapping[str, int]:
        """Return the bytes for throttled replicas: sent as `leader`, and fetched as `follower`."""
        if self.replication is None:
            return {"leader": 0, "follower": 0}
        leader, follower = self.replication.leader_throttle, self.replication.follower_throttle
        return {"leader": leader.quota.recorded, "follower": follower.quota.recorded}

    # -- the process

    def memory(self) -> Mapping[str, int]:
        """Return the bytes of memory by owner."""
        held = {"requests": sum(server.request_memory_bytes for server in self.listening)}
        if self.cold is not None:
            downloads = self.cold.reader.stats().downloads
            held["cold_cache"] = downloads.cached_bytes
            held["cold_downloads"] = downloads.in_flight_bytes
            held["cold_metadata"] = downloads.metadata_bytes
            held["cold_answers"] = downloads.sending_bytes
        return held

    def health(self, now_ms: int) -> NodeHealth:
        """Return the findings about all parts; `now_ms` is the wall clock."""
        parts = self._observed()
        found = judge(facts_of(parts), now_ms)
        return NodeHealth(parts_of(parts), self._sightings.dated(found, now_ms))

    def lacks(self) -> list[str]:
        """Return what the cluster lacks before another node may be stopped, in words."""
        return list(lacks(facts_of(self._observed())))

    def _observed(self) -> ObservedParts:
        return ObservedParts(
            self._node_id,
            self._session_ms,
            self._is_broker,
            self.is_serving,
            self._supervisor.failure,
            self.broker,
            self.logs,
            self.cold,
            self.tls,
            self.key_sets,
            self.metadata,
        )

    def told(self, now_ms: int) -> Sequence[Finding]:
        """Return the findings for clients, who may ask often: at most `TOLD_AGE_MS` old."""
        if not 0 <= now_ms - self._told_ms < TOLD_AGE_MS:
            self._told, self._told_ms = self.health(now_ms).findings, now_ms
        return self._told
