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

librdkafka names partitions in the same order each time, and begins with another one. So each topic's rows are
kept as one piece of bytes, too, in the order of a request (`RowOrder`), as are the clean responses: a request
that agrees with it for a hundred partitions is compared in one step. It exists once two requests have named
the same partitions of the topic; whatever it does not have is looked up row by row.

It is no fetch session of KIP-227: it has no id, no client knows of it, and it may be dropped between two
requests. None is evicted for another unless idle for `EVICTION_MS`: with more clients than there is room for,
some have sessions, and the others are served by plain full fetches.

Owned by the event loop. Times are monotonic milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
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
_MOST_IN_ORDER: Final = 20_000
"""Partitions of a topic whose order is made in one step: it takes some milliseconds."""


class ImplicitPartition(SessionPartition):
    """One partition of an implicit session."""

    __slots__ = ("answer", "place", "row")

    session: ImplicitSession

    def __init__(self, session: ImplicitSession, topic: TopicKey, asked: FetchPartition, row: bytes) -> None:
        super().__init__(session, topic, asked)
        self.row = row
        """its bytes in the last request"""
        self.answer = b""
        """its bytes in a response; none while it is not clean and was read"""
        self.place = -1
        """in the order of its topic, if that has it"""

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


class RowOrder:
    """Partitions of a topic in the order of a request, their rows in the last request, and their responses.

    Places are indexes in this order; a *span* is a pair of them.
    """

    __slots__ = ("_answer_bytes", "_answers", "_row_bytes", "_rows", "blank", "partitions")

    def __init__(self, partitions: Sequence[ImplicitPartition]) -> None:
        self.partitions = list(partitions)
        self._rows = bytearray().join(one.row for one in partitions)
        self._row_bytes = len(self._rows) // len(self.partitions)
        self._answers: bytearray | None = None
        self._answer_bytes = 0
        self.blank: set[ImplicitPartition] = set()
        """partitions without a response; kept only after `can_join`"""
        for place, one in enumerate(self.partitions):
            one.place = place

    def has(self, one: ImplicitPartition) -> bool:
        return 0 <= one.place < len(self.partitions) and self.partitions[one.place] is one

    def common(self, place: int, rows: bytes, at: int) -> int:
        """Return how many rows, from number `at` of `rows` on, are those from `place` on."""
        size, start, own = self._row_bytes, at * self._row_bytes, place * self._row_bytes
        low, high = 0, min(len(self.partitions) - place, len(rows) // size - at)
        middle = high
        while low < high:
            piece = slice(start + low * size, start + middle * size)
            if rows[piece] == self._rows[own + low * size : own + middle * size]:
                low = middle
            else:
                high = middle - 1
            middle = (low + high + 1) // 2
        return low

    def set_row(self, one: ImplicitPartition) -> None:
        if self.has(one):
            self._rows[one.place * self._row_bytes : (one.place + 1) * self._row_bytes] = one.row

    def set_answer(self, one: ImplicitPartition) -> None:
        """Keep the response of a partition among the others', or note that it has none."""
        if self._answers is None or not self.has(one):
            return
        if not one.answer:
            self.blank.add(one)
        elif len(one.answer) != self._answer_bytes:
            self._answers = None
        else:
            self.blank.discard(one)
            self._answers[one.place * self._answer_bytes : (one.place + 1) * self._answer_bytes] = one.answer

    def can_join(self) -> bool:
        """Return whether responses are kept in one piece: all that are there have one size."""
        if self._answers is not None:
            return True
        sizes = {len(one.answer) for one in self.partitions} - {0}
        if len(sizes) != 1:
            return False
        (self._answer_bytes,) = sizes
        nothing = bytes(self._answer_bytes)
        self._answers = bytearray().join(one.answer or nothing for one in self.partitions)
        self.blank = {one for one in self.partitions if not one.answer}
        return True

    def joined(self, start: int, stop: int) -> bytes:
        """Return the responses of a span, after `can_join`; none of it is blank."""
        assert self._answers is not None
        return bytes(self._answers[start * self._answer_bytes : stop * self._answer_bytes])

    def among(self, some: Iterable[SessionPartition], start: int, stop: int) -> list[ImplicitPartition]:
        """Return those of `some` that are in a span, in its order."""
        places = [one.place for one in some if isinstance(one, ImplicitPartition) and self.has(one)]
        return [self.partitions[place] for place in sorted(places) if start <= place < stop]


class ImplicitSession(FetchSession):
    """Partitions of the last full fetch of one connection. A key of the purgatory, as `FetchSession`."""

    __slots__ = ("is_closed", "orders", "registry_version", "rows", "unsettled", "version")

    def __init__(self, purgatory: Purgatory, version: int, now_ms: int) -> None:
        super().__init__(purgatory, NO_SESSION, False, False, now_ms)
        self.version = version
        """of the API: rows have its format"""
        self.rows: dict[TopicKey, dict[bytes, ImplicitPartition]] = {}
        """partitions of each topic, by their bytes in the last request"""
        self.orders: dict[TopicKey, RowOrder] = {}
        self.unsettled: set[TopicKey] = set()
        """topics that have got or lost partitions since the last request"""
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
        if (order := self.orders.get(topic)) is not None:
            order.set_row(one)
        self.dirty[one] = None
        return one

    def include(self, topic: TopicKey, asked: FetchPartition, row: bytes) -> ImplicitPartition:
        """Add a partition, dirty."""
        one = ImplicitPartition(self, topic, asked, row)
        self.partitions[topic, asked.partition] = self.rows.setdefault(topic, {})[row] = one
        self._unsettle(topic)
        self.dirty[one] = None
        return one

    def _unsettle(self, topic: TopicKey) -> None:
        self.orders.pop(topic, None)
        self.unsettled.add(topic)

    def settle(self, topic: TopicKey, named: Sequence[ImplicitPartition]) -> None:
        """Keep the order of a topic, which has none, from its second request with the same partitions on."""
        if topic in self.unsettled:
            self.unsettled.discard(topic)
        elif len(named) <= _MOST_IN_ORDER:
            self.orders[topic] = RowOrder(named)

    def exclude(self, one: SessionPartition) -> None:
        """Remove a partition."""
        assert isinstance(one, ImplicitPartition)
        rows = self.rows[one.topic]
        del rows[one.row], self.partitions[one.topic, one.asked.partition]
        self._unsettle(one.topic)
        if not rows:
            del self.rows[one.topic]
            self.unsettled.discard(one.topic)
        self.dirty.pop(one, None)
        self.purgatory.forget(one)

    def note_result(self, read: PartitionRead) -> bool:
        """Return whether a partition is clean after it was read: then its response is kept, and it is watched
        from now on."""
        is_clean = self._note_result(read)
        if (order := self.orders.get(read.of.topic)) is not None:
            assert isinstance(read.of, ImplicitPartition)
            order.set_answer(read.of)
        return is_clean

    def _note_result(self, read: PartitionRead) -> bool:
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
