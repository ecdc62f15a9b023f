"""Leaders for tests, and fetches of their followers. Broker 1 leads."""

from __future__ import annotations

from typing import Any

from service.replication.leader import (
    BrokerStatus,
    LeaderSettings,
    Leadership,
    LeaderState,
    ReplicaSession,
)
from service.replication.replica_fetch import FetchVerdict, ReplicaFetch

LAG_MS = 30_000
SETTLE_MS = 2_000
NOW_MS = 1_000_000


class Log:
    """Offsets and epochs, without records."""

    def __init__(self, end: int = 0, epochs: tuple[tuple[int, int], ...] = ((1, 0),), start: int = 0) -> None:
        self.log_start_offset = start
        self.local_log_start_offset = start
        self.log_end_offset = end
        self.high_watermark = 0
        self.epochs = list(epochs)

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else -1

    def end_offset_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        known = [(epoch, start) for epoch, start in self.epochs if epoch <= leader_epoch]
        later = [start for epoch, start in self.epochs if epoch > leader_epoch]
        if self.latest_epoch == leader_epoch:
            return leader_epoch, self.log_end_offset
        if not later:
            return -1, -1
        return (known[-1][0] if known else leader_epoch), later[0]


class Cluster:
    """A leader, with brokers of epochs 101, 102 …"""

    def __init__(
        self,
        isr: tuple[int, ...] = (1, 2, 3),
        replicas: tuple[int, ...] = (1, 2, 3),
        *,
        log: Log | None = None,
        min_isr: int = 2,
        high_watermark: int = 0,
    ) -> None:
        self.brokers = {one: BrokerStatus(100 + one, is_active=True) for one in replicas}
        self.log = log or Log()
        self.now_ms = NOW_MS
        self.shape = Leadership(5, 50, replicas, isr)
        self.log.epochs.append((5, self.log.log_end_offset))
        self.leader = LeaderState(
            1,
            LeaderSettings(LAG_MS, SETTLE_MS),
            self.brokers,
            self.log,
            self.shape,
            high_watermark=high_watermark,
            min_insync_replicas=min_isr,
            now_ms=self.now_ms,
        )

    def append(self, count: int = 10) -> int:
        self.log.log_end_offset += count
        return self.leader.appended(self.now_ms)

    def asks(
        self, replica: int, offset: int, *, broker_epoch: int | None = None, last_epoch: int = -1
    ) -> ReplicaFetch:
        epoch = 100 + replica if broker_epoch is None else broker_epoch
        return ReplicaFetch(replica, epoch, self.leader.shape.leader_epoch, offset, last_epoch)

    def fetch(
        self,
        replica: int,
        offset: int,
        *,
        session: ReplicaSession | None = None,
        broker_epoch: int | None = None,
    ) -> tuple[FetchVerdict, int]:
        return self.leader.fetched(
            self.asks(replica, offset, broker_epoch=broker_epoch), session, self.now_ms
        )

    def image(self, *isr: int, **changes: Any) -> int:
        shape = self.leader.shape
        new = shape._replace(partition_epoch=shape.partition_epoch + 1, isr=isr)
        return self.leader.image(new._replace(**changes), self.now_ms)
