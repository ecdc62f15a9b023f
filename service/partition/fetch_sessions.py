"""Fetch sessions, in which clients with many partitions send only what changes. [P]

A session remembers each partition's last request and response, and watches it: an append marks the partition
*dirty*, and an incremental fetch reads dirty partitions only. The others have nothing new. A partition is
marked once until it is read, so a session that is no longer used costs appends nothing.

Dirty partitions are read in the order in which they became dirty, and those that gave records go to the end:
under one byte budget each gets its turn.

A replica's session watches appends, a consumer's session watches commits: of records, or at isolation level
READ_COMMITTED of transactions. Where a client changes its level, each partition is read, and watched anew.

A patrol finds changes that are not signalled (a disk that fails): each fetch checks a few other partitions.

Rules of who gets a session and whose is evicted for it, epochs and errors: KIP-227, Kafka ``FetchSession``,
``FetchManager``, ``FetchSessionCacheShard``. Beside Kafka's limit on sessions there is one on their
partitions, which take the memory: about 700 bytes each.

Owned by the event loop. Times are monotonic milliseconds.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.purgatory import ENOUGH, Operation, Purgatory
from service.replication.leader import LeaderState, ReplicaSession
from service.wire.fetch import FetchPartition, FetchPartitionResult
from service.wire.produce import TopicKey

NO_SESSION: Final = 0
FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
EVICTION_MS: Final = 120_000
"""Idle time after which a session may be evicted for any other."""
MOST_NAME_LENGTH: Final = 249
"""Longest topic name; a session does not remember longer ones."""
PATROLLED: Final = 8
"""Partitions that each fetch checks for changes that were not signalled."""
_FIRST_WITH_IDS: Final = 13
_LAST_EPOCH: Final = 2**31 - 1


class Evictor(Enum):
    """Sessions for which a session may be evicted."""

    NONE = "none"
    PRIVILEGED = "sessions of followers"
    ANY = "any session"


class WatchedPartition(Protocol):
    """Interface of a partition to sessions."""

    high_watermark: int
    growth: object
    stable: object
    leading: LeaderState | None

    @property
    def last_stable_offset(self) -> int: ...

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def is_offline(self) -> bool: ...

    def __hash__(self) -> int: ...


def next_epoch(epoch: int) -> int:
    """Return the epoch of a session's next request, as clients count it (Kafka ``FetchMetadata.nextEpoch``).

    After the last 31-bit number comes 1, as 0 begins a session; a negative epoch stays `FINAL_EPOCH`.
    """
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == _LAST_EPOCH else epoch + 1


class SessionPartition(Operation):
    """One partition of a session: its last request and response (Kafka ``CachedPartition``)."""

    __slots__ = (
        "asked", "high_watermark", "is_held_back", "log_start_offset", "name", "session", "topic", "watched",
    )  # fmt: skip

    def __init__(self, session: FetchSession, topic: TopicKey, asked: FetchPartition) -> None:
        super().__init__()
        self.session = session
        self.topic = topic
        self.asked = asked
        self.name: str | None = None
        """of a topic requested by id, once it is known"""
        self.high_watermark = -1
        self.log_start_offset = -1
        self.is_held_back = False
        """a quota keeps it from being sent: more bytes do not wake the fetch"""
        self.watched: WatchedPartition | None = None

    def happened(self, key: Hashable, amount: int) -> bool:
        """Mark the partition dirty. One event suffices, unless a waiting fetch counts bytes."""
        session = self.session
        session.dirty[self] = None
        session.purgatory.happened(session, 0 if self.is_held_back and amount < ENOUGH else amount)
        return not session.purgatory.is_watched(session)

    def completed(self, *, expired: bool) -> None:
        """Do nothing: the partition is dirty, and watched again after it is read."""

    def watch(self, partition: WatchedPartition) -> None:
        """Watch `partition`, instead of the one watched before."""
        session = self.session
        key: Hashable = partition
        if session.replica is not None:
            key = partition.growth
        elif session.is_committed:
            key = partition.stable
        if self._keys is not None:
            if self._keys[0] is key:
                return
            session.purgatory.forget(self)
        self.watched = partition
        session.purgatory.watch(self, (key,))

    @property
    def may_have_changed(self) -> bool:
        """The partition has to be read although no change was signalled."""
        watched, session = self.watched, self.session
        if watched is None or watched.is_offline or watched.start_offset != self.log_start_offset:
            return True
        if session.replica is None or watched.leading is None:
            return False
        return watched.leading.is_left_to(session.replica_id, session.replica)


class PartitionRead(NamedTuple):
    """Result of reading one partition of a session; `partition` is None after an error."""

    of: SessionPartition
    partition: WatchedPartition | None
    result: FetchPartitionResult

    @property
    def is_caught_up(self) -> bool:
        """The client is at the end of what it may see: a replica of the log, a consumer at the high
        watermark or, of committed transactions, at the last stable offset."""
        if self.partition is None or self.result.records or self.result.diverging_epoch is not None:
            return False
        session = self.of.session
        if session.replica is not None:
            end = self.partition.end_offset
        else:
            end = self.result.last_stable_offset if session.is_committed else self.result.high_watermark
        return self.of.asked.fetch_offset == end

    @property
    def is_current(self) -> bool:
        """The partition's end, as its consumer sees it, has not moved since it was read."""
        assert self.partition is not None
        if self.of.session.is_committed:
            return self.partition.last_stable_offset == self.result.last_stable_offset
        return self.partition.high_watermark == self.result.high_watermark

    @property
    def needs_response(self) -> bool:
        """The client needs this response (Kafka ``CachedPartition.maybeUpdateResponseData``)."""
        of, result = self.of, self.result
        return (
            bool(result.records)
            or result.error_code != ErrorCode.none
            or result.high_watermark != of.high_watermark
            or result.log_start_offset != of.log_start_offset
            or result.diverging_epoch is not None
            or result.preferred_read_replica >= 0
        )


class FetchSession:
    """Partitions of one client. A key of the purgatory: its waiting fetch gets events on it."""

    __slots__ = (
        "_patrol", "created_ms", "dirty", "epoch", "evictable_by", "forgets", "id", "is_committed",
        "last_used_ms", "looked_under", "partitions", "privileged", "purgatory", "replica", "replica_epoch",
        "replica_id", "size", "uses_topic_ids",
    )  # fmt: skip

    def __init__(
        self, purgatory: Purgatory, number: int, privileged: bool, uses_topic_ids: bool, now_ms: int
    ) -> None:
        self.purgatory = purgatory
        self.id = number
        self.privileged = privileged
        self.uses_topic_ids = uses_topic_ids
        self.is_committed = False
        """its client reads committed transactions only"""
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.partitions: dict[tuple[TopicKey, int], SessionPartition] = {}
        self.dirty: dict[SessionPartition, None] = {}
        self.size = 0
        """partitions that the cache has counted for it"""
        self.evictable_by = Evictor.NONE
        self.looked_under: tuple[object, object] | None = None
        """the client and the ACLs under which all partitions were looked at or marked dirty"""
        self.replica_id = self.replica_epoch = -1
        self.replica: ReplicaSession | None = None
        """of a replica's session: its fetches confirm the offsets that it has reported"""
        self.forgets: Callable[[SessionPartition], None] | None = None
        """called with each partition that leaves the session"""
        self._patrol: Iterator[SessionPartition] = iter(())

    def add(self, topic: TopicKey, asked: FetchPartition) -> SessionPartition:
        """Add a partition, or update its request, and mark it dirty."""
        one = self.partitions.get((topic, asked.partition))
        if one is None:
            one = self.partitions[topic, asked.partition] = SessionPartition(self, topic, asked)
        else:
            before, one.asked = one.asked, asked
            epochs = before.current_leader_epoch, asked.current_leader_epoch
            if epochs[0] != epochs[1] or asked.fetch_offset < before.fetch_offset:
                # A follower discards a response that does not match its log, with its high watermark.
                one.high_watermark = one.log_start_offset = -1
        self.dirty[one] = None
        return one

    def update(
        self,
        topics: Sequence[tuple[TopicKey, Sequence[FetchPartition]]],
        forgotten: Sequence[tuple[TopicKey, Sequence[int]]],
    ) -> None:
        """Apply the changes of a request."""
        for topic, partitions in topics:
            for asked in partitions:
                self.add(topic, asked)
        for topic, indexes in forgotten:
            for index in indexes:
                known = self.partitions.pop((topic, index), None)
                if known is not None:
                    self.purgatory.forget(known)
                    self.dirty.pop(known, None)
                    if self.forgets is not None:
                        self.forgets(known)

    def fetched(self, broker_epoch: int, now_ms: int) -> None:
        """Note a fetch of the session's replica. If its broker has registered again since the last, all
        partitions are marked dirty, so that their offsets count for the new registration."""
        assert self.replica is not None
        self.replica.last_fetch_ms = now_ms
        if broker_epoch != self.replica_epoch:
            self.replica_epoch = broker_epoch
            self.dirty.update(dict.fromkeys(self.partitions.values()))

    def patrol(self) -> None:
        """Mark those of the next few partitions that have changed without a signal."""
        for _ in range(min(PATROLLED, len(self.partitions))):
            one = next(self._patrol, None)
            if one is None:
                self._patrol = iter(tuple(self.partitions.values()))
                one = next(self._patrol)
            if (
                one not in self.dirty
                and self.partitions.get((one.topic, one.asked.partition)) is one
                and one.may_have_changed
            ):
                self.dirty[one] = None

    def note_read(self, read: PartitionRead) -> None:
        """Watch a partition that needs no response."""
        if read.partition is not None and read.is_caught_up and not read.needs_response:
            read.of.watch(read.partition)
            self.dirty.pop(read.of, None)

    def watch_for(self, reads: Iterable[PartitionRead]) -> None:
        """Watch the dirty partitions that a fetch has read, as it begins to wait: they count bytes, too."""
        for read in reads:
            if read.partition is not None and read.of in self.dirty:
                read.of.watch(read.partition)

    def note_sent(self, read: PartitionRead) -> None:
        """Note a partition's response as it is sent, and watch the partition if there is no more to send."""
        of, result, partition = read.of, read.result, read.partition
        if of not in self.dirty:
            return  # forgotten meanwhile
        if partition is None:
            # Send it again after the error has gone.
            of.high_watermark, of.log_start_offset = -1, result.log_start_offset
            return
        of.high_watermark, of.log_start_offset = result.high_watermark, result.log_start_offset
        if result.records:
            del self.dirty[of]
            self.dirty[of] = None
        elif read.is_caught_up and read.is_current:
            of.watch(partition)
            del self.dirty[of]

    def close(self) -> None:
        """Stop watching, and wake a waiting fetch."""
        for one in self.partitions.values():
            self.purgatory.forget(one)
            if self.forgets is not None:
                self.forgets(one)
        self.purgatory.happened(self, ENOUGH)


_Worth = tuple[bool, int, int]
"""(privileged, partitions, id): sorted by value, the least first"""


class FetchSessions:
    """All sessions of a node."""

    def __init__(
        self,
        purgatory: Purgatory,
        most_sessions: int,
        most_partitions: int,
        draw: Callable[[int, int], int],
    ) -> None:
        """`draw(a, b)` returns a random number from `a` to `b`, both included."""
        self._purgatory = purgatory
        self._most_sessions = most_sessions
        self._most_partitions = most_partitions
        self._draw = draw
        self._sessions: dict[int, FetchSession] = {}
        """least recently used first"""
        self._evictable_by_all: list[_Worth] = []
        self._evictable_by_privileged: list[_Worth] = []
        self.partition_count = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, now_ms: int, *, privileged: bool, uses_topic_ids: bool, size: int) -> FetchSession | None:
        """Open a session with room for `size` partitions, which the caller adds before it calls `used`.
        Returns None if there is no room: the client continues with full fetches."""
        if self._most_sessions <= 0 or size > self._most_partitions:
            return None
        while (
            len(self._sessions) >= self._most_sessions or self.partition_count + size > self._most_partitions
        ):
            if not self._evict(now_ms, (privileged, size, 0)):
                return None
        number = NO_SESSION
        while number == NO_SESSION or number in self._sessions:
            number = self._draw(1, _LAST_EPOCH)
        session = FetchSession(self._purgatory, number, privileged, uses_topic_ids, now_ms)
        self._sessions[number] = session
        self._rank(session, size, Evictor.NONE)
        return session

    def resume(
        self,
        now_ms: int,
        number: int,
        epoch: int,
        version: int,
        topics: Sequence[tuple[TopicKey, Sequence[FetchPartition]]],
        forgotten: Sequence[tuple[TopicKey, Sequence[int]]],
    ) -> FetchSession | None:
        """Return the session of an incremental fetch, after the request's changes; None if that has ended it,
        as it has no partitions left.

        Raises `RequestError` FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH or
        FETCH_SESSION_TOPIC_ID_ERROR.
        """
        session = self._sessions.get(number)
        if session is None:
            raise RequestError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            raise RequestError(ErrorCode.invalid_fetch_session_epoch)
        if session.uses_topic_ids != (version >= _FIRST_WITH_IDS):
            raise RequestError(ErrorCode.fetch_session_topic_id_error)
        if not self._has_room(session, topics):
            self.close(number)
            raise RequestError(ErrorCode.fetch_session_id_not_found)
        session.update(topics, forgotten)
        if not session.partitions:
            self.close(number)
            return None
        self.used(session, now_ms)
        session.epoch = next_epoch(session.epoch)
        return session

    def used(self, session: FetchSession, now_ms: int) -> None:
        """Note that the session is used, and its present size."""
        if self._sessions.pop(session.id, None) is not session:
            return
        self._sessions[session.id] = session
        session.last_used_ms = now_ms
        size = len(session.partitions)
        if now_ms - session.created_ms > EVICTION_MS:
            evictable_by = Evictor.ANY
        else:
            evictable_by = Evictor.NONE if session.privileged else Evictor.PRIVILEGED
        if size != session.size or evictable_by is not session.evictable_by:
            self._rank(session, size, evictable_by)

    def close(self, number: int) -> bool:
        """End a session; returns False if there is none of that number."""
        session = self._sessions.pop(number, None)
        if session is None:
            return False
        self._rank(session, 0, Evictor.NONE)
        session.close()
        return True

    def _evict(self, now_ms: int, newcomer: _Worth) -> bool:
        """End one session for a new one: an idle one, else one of less value."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.last_used_ms > EVICTION_MS:
            victim = oldest.id
        else:
            privileged = newcomer[0]
            evictable = self._evictable_by_privileged if privileged else self._evictable_by_all
            if not evictable or newcomer < evictable[0]:
                return False
            victim = evictable[0][2]
        self.evictions += 1
        return self.close(victim)

    def _rank(self, session: FetchSession, size: int, evictable_by: Evictor) -> None:
        """Count a session's partitions, and note by whom it may be evicted."""
        for keys in self._ranks(session.evictable_by):
            del keys[bisect.bisect_left(keys, (session.privileged, session.size, session.id))]
        self.partition_count += size - session.size
        session.size, session.evictable_by = size, evictable_by
        for keys in self._ranks(evictable_by):
            bisect.insort(keys, (session.privileged, size, session.id))

    def _ranks(self, evictable_by: Evictor) -> tuple[list[_Worth], ...]:
        if evictable_by is Evictor.NONE:
            return ()
        if evictable_by is Evictor.PRIVILEGED:
            return (self._evictable_by_privileged,)
        return self._evictable_by_privileged, self._evictable_by_all

    def _has_room(
        self, session: FetchSession, topics: Sequence[tuple[TopicKey, Sequence[FetchPartition]]]
    ) -> bool:
        if not can_be_remembered(topics):
            return False
        room = self._most_partitions - self.partition_count
        if sum(len(partitions) for _, partitions in topics) <= room:
            return True
        known = session.partitions
        return sum((topic, one.partition) not in known for topic, asked in topics for one in asked) <= room


def can_be_remembered(topics: Iterable[tuple[TopicKey, object]]) -> bool:
    """Return whether all of these can be topic names or ids."""
    return all(isinstance(topic, UUID) or len(topic) <= MOST_NAME_LENGTH for topic, _ in topics)
