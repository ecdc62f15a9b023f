"""A partition that broker 1 leads with replicas on 2 and 3, and what happens to it, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from service.base.purgatory import Operation, Purgatory
from service.base.types import TopicIdPartition
from service.partition.partition import Partition
from service.partition.unified_log import LogRead
from service.replication.leader import BrokerStatus, LeaderSettings, Leadership, LeaderState
from service.replication.replica_fetch import ReplicaFetch
from tests.unit.hot.logs import START_MS, batch, open_log

EPOCH = 3
LAG_MS = 30_000
BROKER_EPOCH = 100


class Event(NamedTuple):
    key: str
    amount: int


class _Noting(Operation):
    def __init__(self, name: str, events: list[Event]) -> None:
        super().__init__()
        self._name, self._events = name, events

    def happened(self, key: object, amount: int) -> bool:
        self._events.append(Event(self._name, amount))
        return False


class Led:
    """The partition, and notes of all that was told of it."""

    def __init__(
        self,
        directory: Path,
        *,
        isr: tuple[int, ...] = (1, 2, 3),
        replicas: tuple[int, ...] = (1, 2, 3),
        min_isr: int = 2,
        records: int = 0,
        high_watermark: int = 0,
    ) -> None:
        self.log = open_log(directory)
        self.purgatory = Purgatory(0)
        self.partition = Partition(
            self.log.tip, self.log, None, EPOCH - 1, 1, 1 << 20, self.purgatory,
            is_leader=False, high_watermark=high_watermark,
        )  # fmt: skip
        if records:
            self.log.append(batch(records), EPOCH - 1, START_MS)
            self.partition.set_follower_high_watermark(high_watermark)
        self.brokers = {one: BrokerStatus(BROKER_EPOCH + one, is_active=True) for one in replicas}
        self.shape = Leadership(EPOCH, 30, replicas, isr)
        self.min_isr = min_isr
        self.events: list[Event] = []
        self.proposals: list[TopicIdPartition] = []
        self.marks: list[int] = []
        self.partition.on_proposal = self.proposals.append
        self.partition.listen(self.marks.append)
        for name, key in (("seen", self.partition), ("growth", self.partition.growth)):
            self.purgatory.watch(_Noting(name, self.events), (key,))
        self.leading = self.made(self.shape)
        self.partition.lead(EPOCH, self.leading)

    @property
    def now_ms(self) -> int:
        return self.log.state.world.clock.monotonic_ms()

    def made(self, shape: Leadership) -> LeaderState:
        self.log.appender.note_leader_epoch(shape.leader_epoch)
        return LeaderState(
            1, LeaderSettings(LAG_MS), self.brokers, self.log, shape,
            high_watermark=self.partition.high_watermark, min_insync_replicas=self.min_isr,
            now_ms=self.now_ms,
        )  # fmt: skip

    def append(self, count: int = 1) -> int:
        """The bytes of it."""
        made = batch(count)
        self.partition.append(made, START_MS)
        return len(made.data)

    def read(self) -> LogRead:
        """What a consumer may see."""
        return self.partition.unified.read(0, 1 << 20, self.partition.high_watermark, min_one=True)

    def fetch(self, broker_id: int, offset: int) -> ErrorCode:
        epoch = self.leading.shape.leader_epoch
        asked = ReplicaFetch(broker_id, BROKER_EPOCH + broker_id, epoch, offset, -1, 0)
        verdict, what = self.leading.fetched(asked, None, self.now_ms)
        self.partition.happened(what)
        return verdict.error

    def told(self) -> list[Event]:
        told = list(self.events)
        self.events.clear()
        return told
