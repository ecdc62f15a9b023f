"""Implicit fetch sessions, for clients that have none: each of their fetches names every partition again. [P]

librdkafka and aiokafka answer each response with a full fetch, which differs from the one before in a few
offsets, and in the order of its partitions. An implicit session keeps, for one connection, each partition's
part of the last request and of a response as bytes. It watches its partitions as a fetch session does: those
that neither a request nor an event has changed are *clean*, and their bytes are the response. The others are
dirty, and are read.

A partition becomes clean only where its client is at the end of what it may see and no error is told. What a
response says of a clean partition changes with an event: on the partition (high watermark, last stable and
start offset, leader epoch, role), in the registry (`version`: a removed or failed one), of the ACLs, or with
the isolation level. After the latter three, all are dirty.

It is no fetch session of KIP-227: it has no id, no client knows of it, and it may be dropped between two
requests. None is evicted for another unless idle for `EVICTION_MS`: with more clients than there is room for,
some have sessions, and the others are served by plain full fetches.

Owned by the event loop. Times are monotonic milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from service.base.purgatory import ENOUGH, Purgatory
from service.base.steps import Steps
from service.partition.fetch_sessions import (
    EVICTION_MS,
    NO_SESSION,
    FetchSession,
    PartitionRead,
    SessionPartition,
    WatchedPartition,
)
from service.wire.fetch import FetchPartition, encode_without_records
from service.wire.produce import TopicKey

AT_A_TIME: Final = 200
"""Partitions that one step forgets."""


class ImplicitPartition(SessionPartition):
    """One partition of an implicit session."""

    __slots__ = ("answer", "row")

    session: ImplicitSession

    def __init__(self, session: ImplicitSession, topic: TopicKey, asked: FetchPartition, row: bytes) -> None:
        super().__init__(session, topic, asked)
        self.row = row
        """its bytes in the last request"""
        self.answer = b""
        """its bytes in a response; none while it is not clean and was read"""

    def happened(self, key: Hashable, amount: int) -> bool:
        """Mark the partition dirty. At isolation level READ_COMMITTED a higher high watermark alone is no
        news to wait for, but it is in the response."""
        session = self.session
        session.dirty[self] = None
        if session.is_committed and key is self.watched and amount < ENOUGH:
            amount = 0
        session.purgatory.happened(session, amount)
        return not session.purgatory.is_watched(session)

    def watch(self, partition: WatchedPartition) -> None:
        """Watch all that a response says of `partition`."""
        session = self.session
        if session.is_closed:
            return
        keys = (partition, partition.stable) if session.is_committed else (partition,)
        if self._keys is not None:
            if self._keys == keys:
                return
            session.purgatory.forget(self)
        self.watched = partition
        session.purgatory.watch(self, keys)


class ImplicitSession(FetchSession):
    """Partitions of the last full fetch of one connection. A key of the purgatory, as `FetchSession`."""

    __slots__ = ("is_closed", "registry_version", "rows", "version")

    def __init__(self, purgatory: Purgatory, version: int, now_ms: int) -> None:
        super().__init__(purgatory, NO_SESSION, False, False, now_ms)
        self.version = version
        """of the API: rows have its format"""
        self.rows: dict[TopicKey, dict[bytes, ImplicitPartition]] = {}
        """partitions of each topic, by their bytes in the last request"""
        self.registry_version = -1
        """of the partitions of this node, when all were read or marked dirty"""
        self.is_closed = False

    def name(self, topic: TopicKey, asked: FetchPartition, row: bytes) -> ImplicitPartition | None:
        """Note a row of a request that differs from those of the last; None if the partition is new."""
        one = self.partitions.get((topic, asked.partition))
        if one is None:
            return None
        assert isinstance(one, ImplicitPartition)
        rows = self.rows[topic]
        del rows[one.row]
        rows[row] = one
        one.row, one.asked = row, asked
        self.dirty[one] = None
        return one

    def include(self, topic: TopicKey, asked: FetchPartition, row: bytes) -> ImplicitPartition:
        """Add a partition, dirty."""
        one = ImplicitPartition(self, topic, asked, row)
        self.partitions[topic, asked.partition] = self.rows.setdefault(topic, {})[row] = one
        self.dirty[one] = None
        return one

    def exclude(self, one: SessionPartition) -> None:
        """Remove a partition."""
        assert isinstance(one, ImplicitPartition)
        rows = self.rows[one.topic]
        del rows[one.row], self.partitions[one.topic, one.asked.partition]
        if not rows:
            del self.rows[one.topic]
        self.dirty.pop(one, None)
        self.purgatory.forget(one)

    def note_result(self, read: PartitionRead) -> bool:
        """Return whether a partition is clean after it was read: then its response is kept, and it is watched
        from now on."""
        of, result = read.of, read.result
        assert isinstance(of, ImplicitPartition)
        of.answer = b""
        if read.partition is None:
            self.purgatory.forget(of)  # the client may not learn what becomes of it
            return False
        if (
            self.is_closed
            or not read.is_caught_up
            or result.preferred_read_replica >= 0
            or of.asked.last_fetched_epoch >= 0  # may diverge when the log's epochs change
        ):
            return False
        of.answer = encode_without_records(self.version, result)
        of.watch(read.partition)
        self.dirty.pop(of, None)
        return True


class ImplicitSessions:
    """All implicit sessions of a node, by connection: it owns their memory."""

    def __init__(
        self, purgatory: Purgatory, most_partitions: int, later: Callable[[Steps[None]], object]
    ) -> None:
        """`later` runs steps to their end, in later turns."""
        self._purgatory = purgatory
        self._most_partitions = most_partitions
        self._later = later
        self._sessions: dict[int, ImplicitSession] = {}
        """by the connection's id; least recently used first"""
        self.partition_count = 0
        """partitions in memory, with those of closed sessions until they are freed"""

    def __len__(self) -> int:
        return len(self._sessions)

    def use(
        self, connection_id: int, version: int, most_partitions: int, now_ms: int
    ) -> ImplicitSession | None:
        """Return the session of a connection for a request of this version of the API, which names so many
        partitions at most. None if there is no room for a new one."""
        session = self._sessions.get(connection_id)
        if session is None or session.version != version:
            self.close(connection_id)
            if not self._has_room(most_partitions, now_ms):
                return None
            session = ImplicitSession(self._purgatory, version, now_ms)
        self._sessions.pop(connection_id, None)
        self._sessions[connection_id] = session
        session.last_used_ms = now_ms
        return session

    def _has_room(self, partitions: int, now_ms: int) -> bool:
        if self.partition_count + partitions <= self._most_partitions:
            return True
        for connection_id, oldest in self._sessions.items():
            if now_ms - oldest.last_used_ms > EVICTION_MS:
                self.close(connection_id)  # the next request finds room
            break
        return False

    def include(
        self, session: ImplicitSession, topic: TopicKey, asked: FetchPartition, row: bytes
    ) -> ImplicitPartition | None:
        """Add a partition to a session; return None if there is no room for it, or the session is closed."""
        if self.partition_count >= self._most_partitions or session.is_closed:
            return None
        self.partition_count += 1
        return session.include(topic, asked, row)

    def exclude(self, session: ImplicitSession, one: SessionPartition) -> None:
        """Remove a partition from a session."""
        session.exclude(one)
        self.partition_count -= 1

    def close(self, connection_id: int) -> None:
        """Drop the session of a connection, if it has one. A fetch that waits on it is answered."""
        session = self._sessions.pop(connection_id, None)
        if session is None:
            return
        session.is_closed = True
        self._purgatory.happened(session)
        self._later(self._free(session))

    def _free(self, session: ImplicitSession) -> Steps[None]:
        for n, one in enumerate(tuple(session.partitions.values())):
            if not n % AT_A_TIME:
                yield
            self.exclude(session, one)
