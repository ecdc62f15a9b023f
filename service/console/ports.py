"""Ports through which the listener reads a node: counters and parts of the rooms below.

`node/node_parts.py` has a class of this shape, which the command line passes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from service.base.metrics import HistogramSnapshot
from service.base.node_identity import NodeIdentity
from service.base.steps import Steps
from service.base.turns import TurnTimes
from service.coordinator.metrics import RuntimeMetrics
from service.groups.lag import LagReport
from service.groups.metrics import GroupMetrics
from service.health.readiness import NodeHealth
from service.hot.manager import LogManager
from service.metadata.publisher import Publisher
from service.network.metrics import NetworkMetrics
from service.network.request_meter import RequestQuotas
from service.partition.fetch_sessions import FetchSessions
from service.partition.implicit_sessions import ImplicitSessions
from service.partition.metrics import ServingMetrics
from service.partition.partition import Partition
from service.partition.traffic import TopicTraffic
from service.remote.metrics import StoreMetrics, TailLoadMetrics
from service.remote.reading.reader import RemoteReader
from service.replication.metrics import ReplicationMetrics
from service.tiering.metrics import TieringMetrics

if TYPE_CHECKING:
    from service.network.tls.node_tls import NodeTls
    from service.security.authorizer import Authorizer


class ObservedColdTier(Protocol):
    """The cold tier of a node that has one."""

    @property
    def reader(self) -> RemoteReader: ...
    @property
    def metrics(self) -> Mapping[str, StoreMetrics]:
        """Metrics by purpose of the store's client."""

    @property
    def tiering(self) -> TieringMetrics | None: ...
    @property
    def tail_loads(self) -> TailLoadMetrics: ...


class CoordinatedGroups(Protocol):
    """The groups that a node coordinates."""

    @property
    def metrics(self) -> GroupMetrics: ...
    @property
    def runtime_metrics(self) -> RuntimeMetrics: ...
    def partition_states(self) -> Mapping[str, int]:
        """Number of partitions of `__consumer_offsets` led here, by state."""

    def offset_count(self) -> int:
        """Number of committed offsets."""

    def census(self) -> Steps[Mapping[tuple[str, str], int]]:
        """Number of groups by protocol and state."""

    async def lag(self) -> LagReport:
        """Lag of the groups, measured now."""


class ObservedTransactions(Protocol):
    """Figures of the transactions that a node coordinates, and of its questions to other coordinators."""

    @property
    def loads(self) -> HistogramSnapshot:
        """Load times of partitions of `__transaction_state`."""

    @property
    def ids(self) -> int: ...
    @property
    def open(self) -> int: ...
    @property
    def oldest_s(self) -> float: ...
    @property
    def ends(self) -> HistogramSnapshot:
        """Times from a decision to its completion."""

    @property
    def timeouts(self) -> int: ...
    @property
    def markers_waiting(self) -> int: ...
    @property
    def markers_without_leader(self) -> int: ...
    @property
    def marker_requests(self) -> int: ...
    @property
    def marker_retries(self) -> int: ...
    @property
    def markers_refused(self) -> int: ...
    @property
    def completions_to_retry(self) -> int: ...
    @property
    def verifications(self) -> HistogramSnapshot:
        """Times from a question to its answer."""

    @property
    def verification_requests(self) -> int: ...
    @property
    def verification_failures(self) -> int: ...


class ObservedNode(Protocol):
    """A node, from before its start until after its end; parts that do not exist are None."""

    @property
    def identity(self) -> NodeIdentity: ...

    @property
    def turns(self) -> TurnTimes: ...
    @property
    def network(self) -> NetworkMetrics: ...
    @property
    def quotas(self) -> Sequence[RequestQuotas]: ...
    @property
    def serving(self) -> ServingMetrics | None: ...
    @property
    def fetch_sessions(self) -> FetchSessions | None: ...
    @property
    def implicit_sessions(self) -> ImplicitSessions | None: ...
    @property
    def authorizer(self) -> Authorizer | None: ...
    @property
    def logs(self) -> LogManager | None: ...
    @property
    def metadata(self) -> Publisher | None: ...
    @property
    def tls(self) -> NodeTls | None: ...
    @property
    def cold(self) -> ObservedColdTier | None: ...
    @property
    def groups(self) -> CoordinatedGroups | None: ...
    def transactions(self, now_ms: int) -> ObservedTransactions | None:
        """Return the figures of this moment; `now_ms` is the wall clock."""

    @property
    def transaction_max_timeout_ms(self) -> int:
        """Longest timeout that a transactional producer may ask for."""

    def traffic(self) -> Mapping[str, TopicTraffic]:
        """Counters of clients' traffic by topic, of those that have any."""

    def partitions(self) -> Sequence[Partition]:
        """Return the open partitions, as a copy; the log of one may have failed since."""

    def closed_count(self) -> int:
        """Number of partitions of this node that could not be opened, or were taken offline."""

    def replica_counts(self) -> Steps[tuple[Mapping[str, int], Mapping[int, int]]]:
        """Number of partitions with several replicas: `led` and `followed` here; of the led ones
        `under_replicated`, `under_min_isr` and `at_min_isr`; and `resting`, whose disk has no room. Then, by
        broker, the records that it lacks at most, of a partition led here."""

    def replicated(self) -> ReplicationMetrics:
        """Counters of this node's replicas."""

    def throttled_bytes(self) -> Mapping[str, int]:
        """Bytes for throttled replicas: sent as `leader`, and fetched as `follower`."""

    def connections(self) -> Mapping[str, int]:
        """Number of open connections by listener."""

    def memory(self) -> Mapping[str, int]:
        """Bytes of memory by owner."""

    def health(self, now_ms: int) -> NodeHealth:
        """Return the findings about this node and its cluster; `now_ms` is the wall clock."""
