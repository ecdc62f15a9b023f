"""One pass over the partitions of a fetch, under one byte budget over both tiers.

Hot bytes are slices of segment files; cold bytes come from the remote reader's cache, or are being downloaded
into it. Only the started downloads and seeks are kept from one pass to the next.

Other replicas get records of the local tier only, up to the log end offset; their fetch offsets are recorded
on the way (`Partition.judge_replica`).
"""

from __future__ import annotations

import asyncio
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
from service.network.request_meter import RequestMeter
from service.network.sender import PIECE_BYTES, SMALL_SLICE_BYTES
from service.partition.partition import Partition
from service.partition.traffic import TopicTraffic
from service.partition.unified_log import MOST_ABORTED, NOTHING, LogRead, PendingRead
from service.replication.replica_fetch import ReplicaFetch, judge_topic
from service.replication.selectors import ReplicaView, in_sync_with
from service.security.operations import AclOperation, AclResourceType
from service.serving.metadata_cache import NO_BROKER
from service.serving.request_host import Broker
from service.wire.fetch import FetchPartition, FetchPartitionResult, FetchRequestView, RecordsPart
from service.wire.produce import TopicKey

if TYPE_CHECKING:
    from service.remote.reading.download_manager import ResponseHold
    from service.replication.leader import ReplicaSession
    from service.replication.selectors import Selector
    from service.security.authorizer import Authorizer

FIRST_VERSION_WITH_RACKS: Final = 11
"""Consumers send their rack, may be redirected to a near replica, and read from any replica (KIP-392)."""
FIRST_VERSION_WITH_LEADERS: Final = 16
"""A response to a fetch of the wrong broker, or with an old epoch, names the leader (KIP-951)."""
_NOT_LEADER: Final = frozenset({ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch})
_READ: Final = AclOperation.READ
_TOPIC: Final = AclResourceType.TOPIC
INLINE_BYTES: Final = PIECE_BYTES
"""Bytes of small slices to read before a response begins: the sender would join them anyway."""
LEAST_COLD_BYTES: Final = 64 << 10
"""Least room of a quota for a read from the bucket: whoever asks for less may get a whole batch."""
CAREFUL_BYTES: Final = 1 << 20
"""Most bytes of a response while `Broker.reads_carefully`: all of them are read before it begins."""
_UNKNOWN: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.topic_authorization_failed,
    }
)
"""Errors that are no reason to respond before other partitions have records, as in Kafka."""


class Seek(NamedTuple):
    """A prefetch of the pages that an offset lookup needs; `number` counts the prefetches of one lookup."""

    future: Future[None]
    number: int


PendingReads: TypeAlias = "dict[tuple[TopicKey, int, int], PendingRead | Seek]"
"""Reads and seeks, by topic, partition and offset."""


class FetchRead:
    """Results of one pass so far. The caller calls `read_partition` for one partition after the other."""

    __slots__ = (
        "_aborted", "_allowed", "_allowed_under", "_authorizer", "_broker", "_cold_bytes", "_cold_size",
        "_context", "_errors", "_fetch", "_hot_reads", "_is_first", "_meter", "_session", "_started",
        "_throttled_size", "_traffic", "_version", "cold_throttle_ms", "held_back", "holds", "is_committed",
        "is_final", "is_replica", "leaders", "needs_restore", "partitions", "pending", "room", "size",
        "unknown",
    )  # fmt: skip

    def __init__(
        self,
        broker: Broker,
        context: RequestContext,
        fetch: FetchRequestView,
        started: PendingReads,
        session: ReplicaSession | None = None,
        *,
        is_first: bool = True,
    ) -> None:
        """Begin a pass. `started`: pending reads of the pass before, which must not be started twice.
        `session`: of a replica's fetch, if it has one. `is_first`: only the first pass of a fetch records a
        replica's offsets.
        """
        self._broker = broker
        self._authorizer = broker.authorizer if fetch.replica_id < 0 else None
        self._allowed: str | None = None
        """the last topic that the client may read"""
        self._allowed_under: object = None
        """the ACLs by which it may"""
        self._context = context
        self._version = context.api_version
        self._fetch = fetch
        self.is_replica = fetch.replica_id >= 0
        self.is_committed = fetch.reads_committed
        self._session = session
        self._is_first = is_first
        self._started = started
        self._cold_bytes = sys.maxsize
        self._cold_size = 0
        self._hot_reads = 0
        self._aborted = 0
        self._errors: dict[ErrorCode, int] = {}
        self.room = min(fetch.max_bytes, broker.config.fetch_max_bytes)
        if broker.reads_carefully:
            self.room = min(self.room, CAREFUL_BYTES)
        self._meter = context.meter
        if self._meter is not None:
            self.room = self._meter.most_fetched(self.room)
        self.cold_throttle_ms = 0
        """how long the client's quota has no room for what is in the bucket"""
        self.size = 0
        """bytes found"""
        self.holds: list[ResponseHold] = []
        """holds on the memory of cold bytes"""
        self.is_final = False
        """whether a result has an error or a diverging epoch, which the client must get now"""
        self.leaders: dict[int, None] | None = None
        """ids of the leaders that results name"""
        self.needs_restore = False
        """whether requested records are in an archive storage class, unreadable until they are restored"""
        self.unknown = 0
        """partitions with an error of `_UNKNOWN`"""
        self.partitions: list[Partition] = []
        self.held_back: dict[Partition, None] = {}
        """partitions that send no more now, as the replica is throttled"""
        self._throttled_size = 0
        self._traffic: list[tuple[TopicTraffic, int, int]] = []
        """bytes and records found for consumers, of each topic"""
        self.pending: PendingReads = {}
        """downloads and seeks that the pass lacks"""

    def read_partition(
        self, topic: TopicKey, request: FetchPartition, *, is_named: bool = True
    ) -> tuple[Partition | None, FetchPartitionResult]:
        """Return the result of one partition, and the partition itself unless the result is an error.
        `is_named`: the fetch names the partition; otherwise `request` is the session's last one.
        """
        broker = self._broker
        try:
            partition = self._find(topic, request.partition)
            if self.is_replica:
                diverging, read = self._read_for_replica(partition, topic, request, is_named)
            else:
                if broker.replica_selector is not None and self._version >= FIRST_VERSION_WITH_RACKS:
                    preferred = self._preferred_replica(
                        broker.replica_selector, partition, request.fetch_offset
                    )
                    if preferred != NO_BROKER:
                        return partition, self._redirect(partition, request, preferred)
                diverging = self._diverging(partition, request)
                read = NOTHING if diverging is not None else self._read(partition, topic, request)
        except RequestError as e:
            return None, self._refused(topic, request, e)
        except DataAsleep:
            # No records come before they are restored: the client fetches again later, as at the log's end.
            self.needs_restore = True
            read, diverging = NOTHING, None
        except (StorageError, CorruptionError) as e:
            self.is_final = True
            code = storage_code(broker, topic, request.partition, e)
            self._errors[code] = self._errors.get(code, 0) + 1
            return None, FetchPartitionResult(request.partition, code)
        self.partitions.append(partition)
        self._aborted += len(read.aborted)
        if read.pending is not None:
            self.pending[topic, request.partition, request.fetch_offset] = read.pending
        if read.size and not self.is_replica:
            self._traffic.append((partition.traffic, read.size, read.next_offset - request.fetch_offset))
        self.size += read.size
        if read.hold is not None:
            self.holds.append(read.hold)
            self._cold_size += read.size
            self._cold_bytes = min(self._cold_bytes - read.size, read.hold.left)
        elif read.size:
            self._hot_reads += 1
        if diverging is not None:
            self.is_final = True
        high_watermark = partition.high_watermark  # read last: this very fetch may have moved it
        return partition, FetchPartitionResult(
            request.partition,
            ErrorCode.none,
            high_watermark,
            partition.last_stable_offset,
            partition.unified.start_offset,
            read.parts,
            read.aborted if self.is_committed else None,
            diverging_epoch=diverging,
        )

    def _find(self, topic: TopicKey, index: int) -> Partition:
        """Return the partition. Raises `RequestError` TOPIC_AUTHORIZATION_FAILED for a topic that the client
        may not read, whether it is here or not; an unknown id has no name to ask about."""
        broker, authorizer = self._broker, self._authorizer
        if authorizer is None:
            return broker.replicas.find(topic, index)
        try:
            partition = broker.replicas.find(topic, index)
        except (RequestError, StorageError):
            if (name := broker.name_of(topic)) is not None:
                self._check_allowed(authorizer, name)
            raise
        # A pass takes several turns: what is appended after a revocation is not read by the rest of it.
        if partition.tip.topic != self._allowed or authorizer.version is not self._allowed_under:
            self._check_allowed(authorizer, partition.tip.topic)
        return partition

    def _check_allowed(self, authorizer: Authorizer, topic: str) -> None:
        context = self._context
        if not authorizer.allows(context.session, _READ, _TOPIC, topic, api=context.api_key):
            raise RequestError(ErrorCode.topic_authorization_failed)
        self._allowed, self._allowed_under = topic, authorizer.version

    def _refused(self, topic: TopicKey, request: FetchPartition, error: RequestError) -> FetchPartitionResult:
        broker, code = self._broker, error.code
        high_watermark = start_offset = NO_OFFSET
        if self.is_replica:
            code = self._topic_error(topic, request, code)
            broker.log_refusal(
                "Fetch",
                self._context,
                topic,
                request.partition,
                RequestError(code, error.message or ""),
            )
            partition = broker.replicas.get_by(topic, request.partition)
            if code is ErrorCode.offset_moved_to_tiered_storage and partition is not None:
                # The follower continues after the archive by these (Kafka `handleOffsetOutOfRangeError`).
                high_watermark, start_offset = partition.high_watermark, partition.start_offset
        if code in _UNKNOWN:
            self.unknown += 1
        else:
            self.is_final = True
        self._errors[code] = self._errors.get(code, 0) + 1
        leader = None
        if code in _NOT_LEADER and self._version >= FIRST_VERSION_WITH_LEADERS:
            leader = broker.current_leader(topic, request.partition)
        if leader is not None:
            self.leaders = self.leaders or {}
            self.leaders[leader[0]] = None
        return FetchPartitionResult(
            request.partition,
            code,
            high_watermark,
            NO_OFFSET,
            start_offset,
            aborted=() if code in _UNKNOWN else None,
            current_leader=leader,
        )

    def _topic_error(self, topic: TopicKey, request: FetchPartition, code: ErrorCode) -> ErrorCode:
        """Return INCONSISTENT_TOPIC_ID if this node has a partition of an older topic of that name, else
        `code`.
        """
        if code is not ErrorCode.not_leader_or_follower or not isinstance(topic, UUID):
            return code
        known = self._broker.image.topic(topic)
        if known is None or self._broker.replicas.get(topic, request.partition) is not None:
            return code
        here = self._broker.replicas.get_by(known.name, request.partition)
        error = judge_topic(topic, topic, None if here is None else here.tip.topic_id)
        return code if error is ErrorCode.none else error

    def _read_for_replica(
        self, partition: Partition, topic: TopicKey, request: FetchPartition, is_named: bool
    ) -> tuple[tuple[int, int] | None, LogRead]:
        fetch = self._fetch
        says = ReplicaFetch(
            fetch.replica_id,
            fetch.replica_epoch,
            _leader_epoch(request),
            request.fetch_offset,
            request.last_fetched_epoch,
            request.log_start_offset,
        )
        diverging = partition.judge_replica(says, self._session, is_first=self._is_first, is_named=is_named)
        if diverging is not None:
            return diverging, NOTHING
        throttle = self._broker.leader_throttle
        counts = throttle is not None and throttle.covers(partition.tip)
        if counts and self._is_throttled(partition, request.fetch_offset):
            self.held_back[partition] = None
            return None, NOTHING
        limit = max(min(request.max_bytes, self.room - self.size), 0)
        is_first = self.size == 0
        if self._must_seek(partition, topic, request, partition.end_offset):
            return None, NOTHING
        end_offset = partition.end_offset
        read = partition.unified.read(request.fetch_offset, limit, end_offset, min_one=is_first, cold_bytes=0)
        if not is_first and read.size > limit:
            return None, NOTHING
        if counts:
            self._throttled_size += read.size
        return None, read

    def _is_throttled(self, partition: Partition, offset: int) -> bool:
        """Return whether the replica lacks records but the leader throttle's quota is exceeded. In-sync
        replicas are never throttled (Kafka `ReplicaManager.shouldLeaderThrottle`).
        """
        broker, leading = self._broker, partition.leading
        if leading is None or self._fetch.replica_id in leading.shape.isr or offset >= partition.end_offset:
            return False
        assert broker.leader_throttle is not None
        return broker.leader_throttle.quota.is_exceeded(broker.clock.monotonic_ms())

    def drop_pending(self) -> None:
        """Forget the pending reads of this pass and of the one before: the fetch no longer waits for them."""
        self.pending = self._started = {}

    @property
    def futures(self) -> Iterator[Future[Any] | asyncio.Future[Any]]:
        """Return the futures of the pending reads: when one is done, the fetch reads again."""
        return (one.future if isinstance(one, Seek) else one for one in self.pending.values())

    @property
    def is_remote(self) -> bool:
        """Return whether the fetch waits for a download from the bucket."""
        return any(isinstance(one, Future) for one in self.pending.values())

    @property
    def is_looking_up(self) -> bool:
        """Return whether the fetch waits for aborted transactions of records that were found."""
        return any(isinstance(one, asyncio.Future) for one in self.pending.values())

    def record_metrics(self) -> None:
        """Add this pass to the metrics and to the throttle's quota: the response consists of its results."""
        metrics = self._broker.metrics
        if self.is_replica:
            metrics.replica_bytes += self.size
            throttle = self._broker.leader_throttle
            if throttle is not None and self._throttled_size:
                throttle.quota.record(self._throttled_size, self._broker.clock.monotonic_ms())
        else:
            metrics.hot_reads += self._hot_reads
            metrics.hot_bytes += self.size - self._cold_size
            for traffic, size, count in self._traffic:
                traffic.fetched_bytes += size
                traffic.fetched_records += count
        metrics.cold_reads += len(self.holds)
        metrics.cold_bytes += self._cold_size
        for code, count in self._errors.items():
            metrics.error("FETCH", code, count)

    def _preferred_replica(self, select: Selector, partition: Partition, offset: int) -> int:
        """Return the broker from which the consumer should fetch; `NO_BROKER` if that is this one (Kafka
        `ReplicaManager.findPreferredReadReplica`).
        """
        broker, leading = self._broker, partition.leading
        followers = [] if leading is None else in_sync_with(leading, offset)
        if not followers:
            return NO_BROKER
        known = broker.cluster.view_for(self._context.listener).by_id
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
        return NO_BROKER if chosen == own else chosen

    def _redirect(
        self, partition: Partition, request: FetchPartition, preferred: int
    ) -> FetchPartitionResult:
        """Return a result without records, which names the preferred read replica and is sent at once."""
        partition.check_epoch(_leader_epoch(request))
        self.is_final = True
        self.partitions.append(partition)
        return FetchPartitionResult(
            request.partition,
            ErrorCode.none,
            partition.high_watermark,
            partition.last_stable_offset,
            partition.start_offset,
            preferred_read_replica=preferred,
        )

    def _diverging(self, partition: Partition, request: FetchPartition) -> tuple[int, int] | None:
        """Return the epoch and end offset at which the client's log diverges, or None (KIP-595)."""
        needs_leader = self._version < FIRST_VERSION_WITH_RACKS
        partition.check_epoch(_leader_epoch(request), needs_leader=needs_leader)
        if request.last_fetched_epoch <= NO_LEADER_EPOCH:
            return None
        if partition.archive.loads_to is not None and partition.archive.is_loading(request.fetch_offset):
            return None  # where the epoch ends is not known yet
        epoch, end_offset = partition.unified.end_offset_of_epoch(request.last_fetched_epoch)
        if epoch == NO_LEADER_EPOCH:
            raise RequestError(
                ErrorCode.offset_out_of_range,
                f"this log has no epoch at or below the last fetched epoch {request.last_fetched_epoch}",
            )
        if request.fetch_offset < partition.start_offset:
            raise RequestError(
                ErrorCode.offset_out_of_range,
                f"offset {request.fetch_offset} is below the log start offset {partition.start_offset}",
            )
        if epoch < request.last_fetched_epoch or end_offset < request.fetch_offset:
            return epoch, end_offset
        return None

    def _read(self, partition: Partition, topic: TopicKey, request: FetchPartition) -> LogRead:
        if self._aborted >= MOST_ABORTED and self.size:
            return NOTHING  # the client fetches again, as where the byte budget is used up
        if partition.archive.loads_to is not None and partition.archive.is_loading(request.fetch_offset):
            return NOTHING
        if partition.log.has_erased_records():
            return NOTHING  # the client fetches again
        limit = max(min(request.max_bytes, self.room - self.size), 0)
        is_first = self.size == 0
        started = None
        if self._started:
            started = self._started.get((topic, request.partition, request.fetch_offset))
        if started is None or isinstance(started, Seek):
            end_offset = partition.last_stable_offset if self.is_committed else partition.high_watermark
            if self._must_seek(partition, topic, request, end_offset):
                return NOTHING
            if self._meter is not None and self._is_beyond_quota(
                self._meter, partition, request.fetch_offset, limit
            ):
                return NOTHING
            read = partition.unified.read(
                request.fetch_offset,
                limit,
                end_offset,
                min_one=is_first,
                cold_bytes=self._cold_bytes,
                is_committed=self.is_committed,
            )
        elif self._cold_bytes <= 0:
            read = NOTHING
        else:
            read = partition.unified.ready(started) if started.done() else LogRead((), 0, started)
        # A remote read returns at least one whole batch, which may exceed the rest of the budget.
        if is_first or read.size <= limit:
            return read
        if read.hold is not None:
            read.hold.release()
        return NOTHING

    def _is_beyond_quota(self, meter: RequestMeter, partition: Partition, offset: int, limit: int) -> bool:
        """Return whether the records are in the bucket and the client's quota has no room for them now: its
        response would be throttled, so nothing is downloaded."""
        if offset >= partition.unified.local_start_offset:
            return False
        wanted = min(self.room, max(limit, LEAST_COLD_BYTES))
        throttle_ms = meter.fetch_throttle_ms(wanted)
        self.cold_throttle_ms = max(self.cold_throttle_ms, throttle_ms)
        return throttle_ms > 0

    def _must_seek(self, partition: Partition, topic: TopicKey, request: FetchPartition, end: int) -> bool:
        """Return whether the fetch waits for a prefetch of the pages that the lookup of an offset below `end`
        needs. A thread prefetches at most `MOST_PREFETCHES` times; after that the loop itself reads.
        """
        if request.fetch_offset >= end or (self.size and self.room <= self.size):
            return False
        key = topic, request.partition, request.fetch_offset
        before = self._started.get(key)
        number = 1
        if isinstance(before, Seek):
            if not before.future.done():
                self.pending[key] = before
                return True
            number = before.number + 1
            if number > MOST_PREFETCHES:
                return False
        if missing := partition.unified.missing_pages(request.fetch_offset):
            self.pending[key] = Seek(self._broker.seek(missing), number)
        return bool(missing)


def storage_code(broker: Broker, topic: TopicKey, index: int, error: Exception) -> ErrorCode:
    """Log `error`, and return CORRUPT_MESSAGE for bytes that failed their checksum, else KAFKA_STORAGE_ERROR,
    which clients retry.
    """
    broker.log_storage_error("Fetch", topic, index, error)
    if isinstance(error, CorruptionError):
        return ErrorCode.corrupt_message
    return ErrorCode.kafka_storage_error


class InlineSmallSlices:
    """Replaces slices of files by their bytes, if the slices are small or the disk has failed lately.

    Bytes of segment files are sent by ``sendfile`` after the head of the response, when a read error can no
    longer be reported. So small slices are read before and, for a while after a failure, all slices.
    """

    __slots__ = ("_broker", "_largest", "_room")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._largest, self._room = SMALL_SLICE_BYTES, INLINE_BYTES
        if broker.reads_carefully:
            self._largest = self._room = sys.maxsize

    def apply(self, topic: TopicKey, answer: FetchPartitionResult) -> FetchPartitionResult:
        """Return `answer`, which has records, with small slices as bytes, or an error if a read fails."""
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


def _leader_epoch(request: FetchPartition) -> int:
    """Return a fetch's leader epoch; any negative one means none (Kafka `FetchRequest.optionalEpoch`)."""
    return max(request.current_leader_epoch, NO_LEADER_EPOCH)
