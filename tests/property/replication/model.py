"""Models of disks and of the controller, for the world of replicas."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.types import TopicIdPartition
from service.metadata.controller.partition_change import (
    Election,
    ElectionRules,
    PartitionTarget,
    change_partition,
)
from service.metadata.image import PartitionImage
from service.metadata.topics_delta import changed_partition
from service.replication.leader import Accepted, BrokerStatus, IsrProposal

Record = tuple[int, int]
"""(leader epoch, value)"""


_AS_IT_IS = PartitionTarget()


class Violation(Exception):
    """A promise was broken."""


class Batch(NamedTuple):
    base_offset: int
    records: tuple[Record, ...]

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.records)

    @property
    def partition_leader_epoch(self) -> int:
        return self.records[0][0]


class ModelLog:
    """One replica's log. What is beyond `durable` may be lost with a crash."""

    def __init__(self) -> None:
        self.base = 0
        self.records: list[Record] = []
        self.epochs: list[tuple[int, int]] = []
        self.log_start_offset = 0
        self.high_watermark = 0
        self.durable = 0
        self.checkpointed_mark = 0

    @property
    def log_end_offset(self) -> int:
        return self.base + len(self.records)

    @property
    def local_log_start_offset(self) -> int:
        return max(self.base, self.log_start_offset)

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else -1

    def end_offset_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        if leader_epoch < 0 or not self.epochs:
            return -1, -1
        if leader_epoch == self.epochs[-1][0]:
            return leader_epoch, self.log_end_offset
        higher = next((i for i, one in enumerate(self.epochs) if one[0] > leader_epoch), None)
        if higher is None:
            return -1, -1
        return (self.epochs[higher - 1][0] if higher else leader_epoch), self.epochs[higher][1]

    def at(self, offset: int) -> Record | None:
        """None where it is not, or no more, here."""
        return self.records[offset - self.base] if self.base <= offset < self.log_end_offset else None

    def read(self, offset: int, count: int) -> list[Batch]:
        """Batches are of one epoch, and have up to three records."""
        first = max(offset - self.base, 0)
        records = self.records[first : first + count]
        return list(_batches(self.base + first, records))

    def note_epoch(self, epoch: int, start: int) -> None:
        if self.epochs and self.epochs[-1][0] >= epoch:
            return
        self.epochs = [one for one in self.epochs if one[1] < start] + [(epoch, start)]

    def append(self, epoch: int, values: list[int]) -> None:
        self.note_epoch(epoch, self.log_end_offset)
        self.records += [(epoch, value) for value in values]

    def append_batch(self, batch: Batch) -> None:
        assert batch.base_offset == self.log_end_offset
        self.append(batch.partition_leader_epoch, [value for _, value in batch.records])

    def truncate(self, offset: int) -> None:
        if offset < self.base:
            self.restart(offset, [])
            return
        del self.records[offset - self.base :]
        self.epochs = [one for one in self.epochs if one[1] < offset]
        self._cut_marks(offset)

    def restart(self, offset: int, epochs: list[tuple[int, int]]) -> None:
        self.base, self.records = offset, []
        self.epochs = [one for one in epochs if one[1] < offset]
        self.log_start_offset = min(self.log_start_offset, offset)
        self.durable = offset
        self._cut_marks(offset)

    def _cut_marks(self, end: int) -> None:
        self.durable = min(self.durable, end)
        self.high_watermark = min(self.high_watermark, end)
        self.checkpointed_mark = min(self.checkpointed_mark, end)
        self.log_start_offset = min(self.log_start_offset, end)

    def release(self, offset: int) -> None:
        """Local records below `offset` go, as they are archived."""
        if offset > self.base:
            del self.records[: offset - self.base]
            self.base = offset
            self.durable = max(self.durable, offset)

    def flush(self) -> None:
        self.durable = self.log_end_offset

    def crash(self, lost_from: int | None) -> bool:
        """The process ends; records from `lost_from` on are lost. Whether any were."""
        end = self.log_end_offset
        if lost_from is not None and self.durable <= lost_from < end:
            del self.records[lost_from - self.base :]
        end_now = self.log_end_offset
        self.epochs = [one for one in self.epochs if one[1] < end_now]
        self.log_start_offset = min(self.log_start_offset, end_now)
        mark = max(self.checkpointed_mark, self.log_start_offset, self.base)
        self.high_watermark = min(mark, end_now)
        self.durable = end_now
        return end_now < end


def _batches(base: int, records: list[Record]) -> Iterator[Batch]:
    for _, run in groupby(records, key=lambda record: record[0]):
        rest = list(run)
        while rest:
            taken, rest = rest[:3], rest[3:]
            yield Batch(base, tuple(taken))
            base += len(taken)


class Image(NamedTuple):
    brokers: dict[int, BrokerStatus]
    partitions: dict[TopicIdPartition, PartitionImage]


def tip_of(number: int) -> TopicIdPartition:
    return TopicIdPartition(UUID(int=number + 1), f"t{number}", 0)


class ModelController:
    """Who is registered, fenced, in sync and leading, decided by the controller's own machine."""

    def __init__(
        self, replicas: dict[TopicIdPartition, tuple[int, ...]], min_isr: dict[TopicIdPartition, int]
    ):
        self.brokers: dict[int, BrokerStatus] = {}
        self.min_isr = min_isr
        self.partitions = {
            tip: PartitionImage(those, those, those[0], 0, 0, tuple(UUID(int=1) for _ in those))
            for tip, those in replicas.items()
        }
        self.images: list[Image] = []
        self._epochs = 100
        self.unclean_elections = 0

    def publish(self) -> None:
        self.images.append(Image(dict(self.brokers), dict(self.partitions)))

    def _may_lead(self, broker_id: int) -> bool:
        known = self.brokers.get(broker_id)
        return known is not None and known.is_active

    def change(
        self, tip: TopicIdPartition, election: Election = Election.ONLINE, wanted: PartitionTarget = _AS_IT_IS
    ) -> None:
        state = self.partitions[tip]
        least = min(self.min_isr[tip], len(state.replicas))
        rules = ElectionRules(least, is_elr_enabled=True)
        record = change_partition(
            tip.topic_id, 0, state, rules, self._may_lead, election=election, wanted=wanted
        )
        if record is not None:
            self.partitions[tip] = new = changed_partition(state, record)
            self.unclean_elections += new.leader_recovery_state == 1 and state.leader_recovery_state == 0

    def register(self, broker_id: int, *, is_clean: bool) -> int:
        """A process starts; it is fenced until it has caught up."""
        self._epochs += 1
        self.brokers[broker_id] = BrokerStatus(self._epochs, is_active=False, is_fenced=True)
        for tip in self.partitions:
            self._leave(tip, broker_id, () if is_clean else (broker_id,))
        self.publish()
        return self._epochs

    def fence(self, broker_id: int) -> None:
        """It is silent, or shuts down."""
        self.brokers[broker_id] = self.brokers[broker_id]._replace(is_active=False)
        for tip in self.partitions:
            self._leave(tip, broker_id, ())
        self.publish()

    def _leave(self, tip: TopicIdPartition, broker_id: int, unclean: tuple[int, ...]) -> None:
        state = self.partitions[tip]
        if broker_id in state.isr or broker_id in unclean:
            isr = tuple(one for one in state.isr if one != broker_id)
            self.change(tip, wanted=PartitionTarget(isr=isr, unclean=unclean))

    def unfence(self, broker_id: int) -> None:
        self.brokers[broker_id] = self.brokers[broker_id]._replace(is_active=True, is_fenced=False)
        for tip, state in self.partitions.items():
            if not state.has_leader:
                self.change(tip)
        self.publish()

    def alter(
        self, broker_id: int, broker_epoch: int, tip: TopicIdPartition, proposal: IsrProposal
    ) -> ErrorCode | Accepted:
        """AlterPartition, in the order of `isr_control`; the broker's epoch was looked at."""
        state = self.partitions[tip]
        if proposal.leader_epoch > state.leader_epoch or proposal.partition_epoch > state.partition_epoch:
            return ErrorCode.not_controller
        if proposal.leader_epoch < state.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        if broker_id != state.leader:
            return ErrorCode.invalid_request
        if proposal.partition_epoch < state.partition_epoch:
            return ErrorCode.invalid_update_version
        isr = tuple(member.broker_id for member in proposal.isr)
        if not isr or not set(isr) <= set(state.replicas) or state.leader not in isr:
            return ErrorCode.invalid_request
        for member in proposal.isr:
            known = self.brokers.get(member.broker_id)
            if known is None or not known.is_active or member.broker_epoch not in (-1, known.epoch):
                return ErrorCode.ineligible_replica
        self.change(tip, wanted=PartitionTarget(isr=isr, recovery=0))
        new = self.partitions[tip]
        self.publish()
        if new.leader != broker_id:
            return ErrorCode.new_leader_elected
        return Accepted(new.leader_epoch, new.partition_epoch)
