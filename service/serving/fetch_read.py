"""One look at the partitions of a fetch: what answers them, under one byte budget over both tiers.

Hot bytes are slices of segment files; cold bytes come from the remote reader's cache, or are on their way
there. Nothing is kept from one pass to the next but the downloads that were started.

Other replicas get what lies in the local tier, up to the log's end; what they say of themselves is taken note
of on the way (`Partition.judge_replica`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, DataAsleep, RequestError, StorageError
from service.base.types import NO_LEADER_EPOCH, NO_OFFSET
from service.hot.files import FileSlice
from service.hot.lookup_prefetch import MOST_PREFETCHES
from service.network.request import RequestContext
from service.network.sender import PIECE_BYTES, SMALL_SLICE_BYTES
from service.partition.partition import Partition
from service.partition.unified_log import NOTHING, LogRead
from service.replication.replica_fetch import ReplicaFetch, judge_topic
from service.replication.selectors import ReplicaView
from service.serving.metadata_cache import NOBODY
from service.serving.request_host import Broker
from service.wire.fetch import FetchPartition, FetchPartitionResult, FetchRequestView, RecordsPart
from service.wire.produce import TopicKey

if TYPE_CHECKING:
    from service.remote.reading.download_manager import ResponseHold
    from service.remote.reading.reader import RemoteRead
    from service.replication.leader import ReplicaSession
    from service.replication.selectors import Selector

FIRST_VERSION_WITH_RACKS: Final = 11
"""Consumers say where they are, may be sent to a replica that is near, and read from any (KIP-392)."""
FIRST_VERSION_WITH_LEADERS: Final = 16
"""Who asks the wrong broker, or believes in an old epoch, is told who leads (KIP-951)."""
_ELSEWHERE: Final = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})
READ_COMMITTED: Final = 1
IN_HAND_BYTES: Final = PIECE_BYTES
"""Bytes of small slices that are read before a response is begun: those that the sender would join anyway."""
CAREFUL_BYTES: Final = 1 << 20
"""Most bytes of a response while all of them are read before."""
_NOBODYS: Final = frozenset({ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id})
_PASSING: Final = _NOBODYS | {
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.inconsistent_topic_id,
}
"""Refusals of followers while topics are made or led anew: one of the two brokers knows of it first."""


class Seek(NamedTuple):
    """Bytes are being brought from the disk's device by which an offset is found."""

    future: Future[None]
    number: int


Awaited: TypeAlias = "dict[tuple[TopicKey, int, int], Future[RemoteRead] | Seek]"
"""Downloads and seeks, by topic, partition and offset."""


class Pass:
    """What has been found so far. `look` is called for one partition after the other."""

    __slots__ = (
        "_broker", "_cold_bytes", "_cold_size", "_context", "_errors", "_fetch", "_hot_reads", "_is_first",
        "_session", "_started", "_throttled_size", "_version", "awaited", "held_back", "holds", "is_asleep",
        "is_final", "is_replica", "leaders", "partitions", "room", "size", "unknown",
    )  # fmt: skip

    def __init__(
        self,
        broker: Broker,
        context: RequestContext,
        fetch: FetchRequestView,
        started: Awaited,
        session: ReplicaSession | None = None,
        *,
        is_first: bool = True,
    ) -> None:
        """`started` is what an earlier pass waits for, so that nothing is asked for twice. A replica's fetch
        may have a `session`; what it says counts when it `is_first` looked at."""
        self._broker = broker
        self._context = context
        self._version = context.api_version
        self._fetch = fetch
        self.is_replica = fetch.replica_id >= 0
        self._session = session
        self._is_first = is_first
        self._started = started
        self._cold_bytes = sys.maxsize
        self._cold_size = 0
        self._hot_reads = 0
        self._errors: dict[ErrorCode, int] = {}
        self.room = min(fetch.max_bytes, broker.config.fetch_max_bytes)
        if broker.reads_carefully:
            self.room = min(self.room, CAREFUL_BYTES)
        self.size = 0
        """bytes found"""
        self.holds: list[ResponseHold] = []
        """memory that the cold bytes among them keep from being freed"""
        self.is_final = False
        """An error or a diverging epoch is among the answers: the client must see it now."""
        self.leaders: dict[int, None] | None = None
        """brokers that answers tell of, as they lead"""
        self.is_asleep = False
        """Records that are asked for lie in an archive class, where they cannot be read."""
        self.unknown = 0
        """partitions that nobody here knows; they are no reason to answer before others have something"""
        self.partitions: list[Partition] = []
        self.held_back: dict[Partition, None] = {}
        """those among them of which more cannot be sent now, as the replica is throttled"""
        self._throttled_size = 0
        self.awaited: Awaited = {}
        """what the pass is short of"""

    def look(
        self, topic: TopicKey, asked: FetchPartition, *, is_named: bool = True
    ) -> tuple[Partition | None, FetchPartitionResult]:
        """The answer for one partition, and the partition where it is no error. `is_named`: the request says
        what is asked of it; else its session did."""
        broker = self._broker
        try:
            partition = broker.replicas.find(topic, asked.partition)
            if self.is_replica:
                diverging, read = self._look_for_replica(partition, topic, asked, is_named)
            else:
                if broker.replica_selector is not None and self._version >= FIRST_VERSION_WITH_RACKS:
                    preferred = self._preferred(broker.replica_selector, partition, asked.fetch_offset)
                    if preferred != NOBODY:
                        return partition, self._sent_away(partition, asked, preferred)
                diverging = self._diverging(partition, asked)
                read = NOTHING if diverging is not None else self._read(partition, topic, asked)
        except RequestError as e:
            return None, self._refused(topic, asked, e)
        except DataAsleep:
            # Nothing comes before somebody restores it: the client asks again later, as at the log's end.
            self.is_asleep = True
            read, diverging = NOTHING, None
        except (StorageError, CorruptionError) as e:
            self.is_final = True
            code = storage_code(broker, topic, asked.partition, e)
            self._errors[code] = self._errors.get(code, 0) + 1
            return None, FetchPartitionResult(asked.partition, code)
        self.partitions.append(partition)
        if read.pending is not None:
            self.awaited[topic, asked.partition, asked.fetch_offset] = read.pending
        self.size += read.size
        if read.hold is not None:
            self.holds.append(read.hold)
            self._cold_size += read.size
            self._cold_bytes = min(self._cold_bytes - read.size, read.hold.left)
        elif read.size:
            self._hot_reads += 1
        if diverging is not None:
            self.is_final = True
        high_watermark = partition.high_watermark  # which this very fetch may have moved
        return partition, FetchPartitionResult(
            asked.partition,
            ErrorCode.none,
            high_watermark,
            partition.last_stable_offset,
            partition.unified.start_offset,
            read.parts,
            () if self._fetch.isolation_level == READ_COMMITTED else None,
            diverging_epoch=diverging,
        )

    def _refused(self, topic: TopicKey, asked: FetchPartition, error: RequestError) -> FetchPartitionResult:
        broker, code = self._broker, error.code
        high_watermark = start_offset = NO_OFFSET
        if self.is_replica:
            code = self._judge_topic(topic, asked, code)
            broker.log_refusal(
                "Fetch",
                self._context,
                topic,
                asked.partition,
                RequestError(code, error.message or ""),
                is_passing=code in _PASSING,
            )
            partition = broker.replicas.get_by(topic, asked.partition)
            if code is ErrorCode.offset_moved_to_tiered_storage and partition is not None:
                # By these it knows of the archive what it has to (Kafka `handleOffsetOutOfRangeError`).
                high_watermark, start_offset = partition.high_watermark, partition.start_offset
        if code in _NOBODYS:
            self.unknown += 1
        else:
            self.is_final = True
        self._errors[code] = self._errors.get(code, 0) + 1
        leader = None
        if code in _ELSEWHERE and self._version >= FIRST_VERSION_WITH_LEADERS:
            leader = broker.current_leader(topic, asked.partition)
        if leader is not None:
            self.leaders = self.leaders or {}
            self.leaders[leader[0]] = None
        return FetchPartitionResult(
            asked.partition, code, high_watermark, NO_OFFSET, start_offset, current_leader=leader
        )

    def _judge_topic(self, topic: TopicKey, asked: FetchPartition, code: ErrorCode) -> ErrorCode:
        """INCONSISTENT_TOPIC_ID where the partition that is here is of an older topic of the same name."""
        if code is not ErrorCode.not_leader_or_follower or not isinstance(topic, UUID):
            return code
        known = self._broker.image.topic(topic)
        if known is None or self._broker.replicas.get(topic, asked.partition) is not None:
            return code
        here = self._broker.replicas.get_by(known.name, asked.partition)
        error = judge_topic(topic, topic, None if here is None else here.tip.topic_id)
        return code if error is ErrorCode.none else error

    def _look_for_replica(
        self, partition: Partition, topic: TopicKey, asked: FetchPartition, is_named: bool
    ) -> tuple[tuple[int, int] | None, LogRead]:
        fetch = self._fetch
        says = ReplicaFetch(
            fetch.replica_id,
            fetch.replica_epoch,
            _leader_epoch(asked),
            asked.fetch_offset,
            asked.last_fetched_epoch,
            asked.log_start_offset,
        )
        diverging = partition.judge_replica(says, self._session, is_first=self._is_first, is_named=is_named)
        if diverging is not None:
            return diverging, NOTHING
        throttle = self._broker.leader_throttle
        counts = throttle is not None and throttle.covers(partition.tip)
        if counts and self._must_wait(partition, asked.fetch_offset):
            self.held_back[partition] = None
            return None, NOTHING
        limit = max(min(asked.max_bytes, self.room - self.size), 0)
        is_first = self.size == 0
        if self._must_seek(partition, topic, asked, partition.end_offset):
            return None, NOTHING
        read = partition.read_as_replica(asked.fetch_offset, limit, min_one=is_first)
        if not is_first and read.size > limit:
            return None, NOTHING
        if counts:
            self._throttled_size += read.size
        return None, read

    def _must_wait(self, partition: Partition, offset: int) -> bool:
        """Return whether there is something for a replica that is throttled, but the quota is exceeded. Those
        in sync never wait (Kafka `ReplicaManager.shouldLeaderThrottle`)."""
        broker, leading = self._broker, partition.leading
        if leading is None or self._fetch.replica_id in leading.shape.isr or offset >= partition.end_offset:
            return False
        assert broker.leader_throttle is not None
        return broker.leader_throttle.quota.is_exceeded(broker.clock.monotonic_ms())

    def forget_awaited(self) -> None:
        """Of this pass and of the one before: nobody here waits for it."""
        self.awaited = self._started = {}

    @property
    def futures(self) -> Iterator[Future[Any]]:
        """Each is done when there is a reason to look again."""
        return (one.future if isinstance(one, Seek) else one for one in self.awaited.values())

    @property
    def is_remote(self) -> bool:
        """Return whether the bucket is waited for."""
        return any(not isinstance(one, Seek) for one in self.awaited.values())

    def count(self) -> None:
        """This pass is what is answered: count what it found."""
        metrics = self._broker.metrics
        if self.is_replica:
            metrics.replica_bytes += self.size
            throttle = self._broker.leader_throttle
            if throttle is not None and self._throttled_size:
                throttle.quota.record(self._throttled_size, self._broker.clock.monotonic_ms())
        else:
            metrics.hot_reads += self._hot_reads
            metrics.hot_bytes += self.size - self._cold_size
        metrics.cold_reads += len(self.holds)
        metrics.cold_bytes += self._cold_size
        for code, count in self._errors.items():
            metrics.error("FETCH", code, count)

    def _preferred(self, select: Selector, partition: Partition, offset: int) -> int:
        """The broker that the consumer had better ask, `NOBODY` where that is this one (Kafka
        `ReplicaManager.findPreferredReadReplica`)."""
        broker = self._broker
        followers = partition.candidates(offset)
        if not followers:
            return NOBODY
        known = broker.cluster.seen_by(self._context.listener).by_id
        now_ms, end, own = broker.clock.monotonic_ms(), partition.end_offset, broker.config.node_id
        here = known.get(own)
        leader = ReplicaView(own, None if here is None else here.rack, end, 0)
        candidates = [leader]
        for one in followers:
            reached = known.get(one.broker_id)
            if reached is not None:
                behind_ms = now_ms - one.last_caught_up_ms(end)
                candidates.append(ReplicaView(one.broker_id, reached.rack, one.end_offset, behind_ms))
        chosen = select(self._fetch.rack_id, leader, candidates).broker_id
        return NOBODY if chosen == own else chosen

    def _sent_away(self, partition: Partition, asked: FetchPartition, preferred: int) -> FetchPartitionResult:
        """The consumer gets nothing here, and is told at once where to go."""
        partition.check_epoch(_leader_epoch(asked))
        self.is_final = True
        self.partitions.append(partition)
        return FetchPartitionResult(
            asked.partition,
            ErrorCode.none,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.start_offset,
            preferred_read_replica=preferred,
        )

    def _diverging(self, partition: Partition, asked: FetchPartition) -> tuple[int, int] | None:
        """(epoch, end offset) where the client's log left ours, None where it did not (KIP-595)."""
        needs_leader = self._version < FIRST_VERSION_WITH_RACKS
        partition.check_epoch(_leader_epoch(asked), needs_leader=needs_leader)
        if asked.last_fetched_epoch <= NO_LEADER_EPOCH:
            return None
        epoch, end_offset = partition.unified.end_offset_of_epoch(asked.last_fetched_epoch)
        if epoch == NO_LEADER_EPOCH:
            raise RequestError(
                ErrorCode.offset_out_of_range, "no epoch at or below the last fetched one is known"
            )
        if asked.fetch_offset < partition.start_offset:
            raise RequestError(
                ErrorCode.offset_out_of_range,
                f"{asked.fetch_offset} lies below the start, {partition.start_offset}",
            )
        if epoch < asked.last_fetched_epoch or end_offset < asked.fetch_offset:
            return epoch, end_offset
        return None

    def _read(self, partition: Partition, topic: TopicKey, asked: FetchPartition) -> LogRead:
        limit = max(min(asked.max_bytes, self.room - self.size), 0)
        is_first = self.size == 0
        started = None
        if self._started:
            started = self._started.get((topic, asked.partition, asked.fetch_offset))
        if started is None or isinstance(started, Seek):
            if self._must_seek(partition, topic, asked, partition.high_watermark):
                return NOTHING
            read = partition.read(asked.fetch_offset, limit, min_one=is_first, cold_bytes=self._cold_bytes)
        elif self._cold_bytes <= 0:
            read = NOTHING
        else:
            read = partition.unified.ready(started) if started.done() else LogRead((), 0, started)
        # A remote read brings whole batches, at least one: it may be more than is left of the budget.
        return read if is_first or read.size <= limit else NOTHING

    def _must_seek(self, partition: Partition, topic: TopicKey, asked: FetchPartition, end: int) -> bool:
        """Return whether the disk's device has to be asked where the offset is, if it lies before `end`. A
        thread does that; what is not here then, the loop reads."""
        if asked.fetch_offset >= end or (self.size and self.room <= self.size):
            return False
        key = topic, asked.partition, asked.fetch_offset
        before = self._started.get(key)
        number = 1
        if isinstance(before, Seek):
            if not before.future.done():
                self.awaited[key] = before
                return True
            number = before.number + 1
            if number > MOST_PREFETCHES:
                return False
        if missing := partition.unified.missing_pages(asked.fetch_offset):
            self.awaited[key] = Seek(self._broker.seek(missing), number)
        return bool(missing)


def storage_code(broker: Broker, topic: TopicKey, index: int, error: Exception) -> ErrorCode:
    """CORRUPT_MESSAGE for bytes that failed their checksum, else KAFKA_STORAGE_ERROR, which clients retry."""
    broker.log_storage_error("Fetch", topic, index, error)
    if isinstance(error, CorruptionError):
        return ErrorCode.corrupt_message
    return ErrorCode.kafka_storage_error


class InHand:
    """Replaces slices of files by their bytes, as far as they are small or the disk is not to be trusted.

    Bytes of segment files go out by ``sendfile`` after the head of the response, when nobody can be told any
    more that the disk does not give them. So small ones are read before, and for a while after a failure all.
    """

    __slots__ = ("_broker", "_largest", "_room")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._largest, self._room = SMALL_SLICE_BYTES, IN_HAND_BYTES
        if broker.reads_carefully:
            self._largest = self._room = sys.maxsize

    def take(self, topic: TopicKey, answer: FetchPartitionResult) -> FetchPartitionResult:
        """`answer`, which has records, with what could be read; or with the error instead."""
        for part in answer.records:
            if isinstance(part, FileSlice) and part.size <= self._largest:
                break
        else:
            return answer
        parts: list[RecordsPart] = []
        try:
            for part in answer.records:
                if isinstance(part, FileSlice) and part.size <= min(self._largest, self._room):
                    self._room -= part.size
                    parts.append(part.read())
                else:
                    parts.append(part)
        except StorageError as e:
            code = storage_code(self._broker, topic, answer.partition, e)
            self._broker.metrics.error("FETCH", code)
            return FetchPartitionResult(answer.partition, code)
        return answer._replace(records=parts)


def _leader_epoch(asked: FetchPartition) -> int:
    """Of a fetch any epoch below zero says none (Kafka `FetchRequest.optionalEpoch`)."""
    return max(asked.current_leader_epoch, NO_LEADER_EPOCH)
