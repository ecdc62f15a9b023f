"""What is looked at of a node: counters and parts of the rooms below.

`node/node.py` has a class of this shape, which the command line hands over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from service.base.health import Check
from service.base.steps import Steps
from service.base.turns import TurnTimes
from service.coordinator.metrics import RuntimeMetrics
from service.groups.metrics import GroupMetrics
from service.hot.manager import LogManager
from service.metadata.publisher import Publisher
from service.network.metrics import NetworkMetrics
from service.partition.metrics import ServingMetrics
from service.partition.partition import Partition
from service.remote.metrics import StoreMetrics
from service.remote.reading.reader import RemoteReader
from service.replication.metrics import ReplicationMetrics
from service.tiering.metrics import TieringMetrics


class Cold(Protocol):
    """The cold tier of a node that has one."""

    @property
    def reader(self) -> RemoteReader: ...
    @property
    def metrics(self) -> Mapping[str, StoreMetrics]:
        """Of each client of the store, by what it is for."""

    @property
    def tiering(self) -> TieringMetrics | None: ...


class Groups(Protocol):
    """The groups that a node coordinates."""

    @property
    def metrics(self) -> GroupMetrics: ...
    @property
    def runtime_metrics(self) -> RuntimeMetrics: ...
    def partition_states(self) -> Mapping[str, int]:
        """How many partitions of their topic are led here, by what is true of them."""

    def offset_count(self) -> int:
        """Positions that are committed."""

    def census(self) -> Steps[Mapping[tuple[str, str], int]]:
        """Groups by protocol and state."""


class Watched(Protocol):
    """A node, from before it starts until it has ended; parts that are not there yet are None."""

    @property
    def turns(self) -> TurnTimes: ...
    @property
    def network(self) -> NetworkMetrics: ...
    @property
    def serving(self) -> ServingMetrics | None: ...
    @property
    def logs(self) -> LogManager | None: ...
    @property
    def metadata(self) -> Publisher | None: ...
    @property
    def cold(self) -> Cold | None: ...
    @property
    def groups(self) -> Groups | None: ...
    def partitions(self) -> Sequence[Partition]:
        """Those that are open, as a list of the moment; the log of one may have failed since."""

    def closed_count(self) -> int:
        """Partitions of this node that could not be opened, or were taken offline."""

    def replica_counts(self) -> Mapping[str, int]:
        """Partitions of several replicas: `led` and `followed` here, of the first `under_replicated` and
        `under_min_isr`, and `resting` where a disk has no room."""

    def replicated(self) -> ReplicationMetrics:
        """What its replicas have counted."""

    def throttled_bytes(self) -> Mapping[str, int]:
        """Of replicas that are throttled: what was sent as `leader`, and taken as `follower`."""

    def connections(self) -> Mapping[str, int]:
        """Open connections by listener."""

    def memory(self) -> Mapping[str, int]:
        """Bytes held, by who holds them."""

    def health(self) -> Sequence[Check]: ...
