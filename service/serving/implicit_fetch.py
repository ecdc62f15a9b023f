"""A full fetch by what it has in common with the last one of its connection, which has no fetch session.

`recall` compares the partitions of a request, as bytes, with those that the connection's implicit session
remembers (`partition/implicit_sessions.py`). The fetch then reads only what the request or an event has
changed; the response has all partitions, the others as the bytes of an earlier response. It is the response
that a plain full fetch would give, byte for byte.

A request that is not like that (few partitions, a replica's, a wish for a session, the same partition twice,
tagged fields, no room) is parsed and handled as a plain full fetch.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from service.base.steps import Steps
from service.network.request import RequestContext, Response
from service.partition.fetch_sessions import (
    NO_SESSION,
    PartitionRead,
    SessionPartition,
    can_be_remembered,
)
from service.partition.implicit_sessions import ImplicitPartition, ImplicitSession
from service.serving.fetch_answers import down_converted
from service.serving.fetch_operation import FIRST_VERSION_WITH_STORAGE_ERRORS, FetchOperation
from service.serving.fetch_read import (
    FIRST_VERSION_WITH_RACKS,
    FetchRead,
    InlineSmallSlices,
    PendingReads,
    reads_committed,
)
from service.serving.request_host import Broker
from service.wire.api import RequestHeader
from service.wire.fetch import EncodedResults, FetchPartitionResult, FetchRequestView, row_bytes
from service.wire.fetch_rows import FetchRows, UnusualRows, parse_row
from service.wire.produce import TopicKey

AT_A_TIME: Final = 1000
"""Partitions that one step compares, or whose bytes it gathers."""
LIKE_ONE_READ: Final = 40
"""Clean partitions that take as long as one that is read."""
_NEW_AT_A_TIME: Final = 50

OrderedRows = list[tuple[TopicKey, list[ImplicitPartition]]]
"""topics and partitions in the order of a request"""


class RecalledFetch(NamedTuple):
    """A full fetch: its head (`fetch`, without topics), and its partitions as those of its session."""

    fetch: FetchRequestView
    session: ImplicitSession
    topics: OrderedRows
    total: int


def recall(
    broker: Broker, context: RequestContext, header: RequestHeader, frame: memoryview
) -> Steps[RecalledFetch | None]:
    """Return the request by the implicit session of its connection, which has it as its last from now on.
    Returns None, without a session, for one that has to be parsed as a whole."""
    try:
        if broker.replica_selector is not None and header.api_version >= FIRST_VERSION_WITH_RACKS:
            raise UnusualRows  # where a consumer should fetch changes without an event
        return (yield from _recalled(broker, context, FetchRows(header.api_version, frame, header.body)))
    except UnusualRows:
        broker.implicit_sessions.close(context.connection_id)
        return None


def _recalled(broker: Broker, context: RequestContext, rows: FetchRows) -> Steps[RecalledFetch]:
    if context.has_left or not rows.is_without_session:
        raise UnusualRows
    sessions, version = broker.implicit_sessions, rows.version
    each = struct.Struct(f"{row_bytes(version)}s")
    now_ms = broker.clock.monotonic_ms()
    session = sessions.use(context.connection_id, version, rows.bytes_left // each.size, now_ms)
    if session is None:
        raise UnusualRows
    topics: OrderedRows = []
    named: set[ImplicitPartition] = set()
    count = 0
    for _ in range(rows.topics):
        topic, data = rows.next_topic()
        if not can_be_remembered([(topic, None)]):
            raise UnusualRows
        of_topic: list[ImplicitPartition] = []
        for at in range(0, len(data), AT_A_TIME * each.size):
            yield
            piece = data[at : at + AT_A_TIME * each.size]
            known = session.rows.get(topic, {}).get
            found = [known(row) for (row,) in each.iter_unpack(piece)]
            if None in found:
                yield from _name(broker, session, topic, piece, found)
            of_topic += cast("list[ImplicitPartition]", found)
        count += len(of_topic)
        named.update(of_topic)
        topics.append((topic, of_topic))
    fetch = rows.end()
    if len(named) != count:
        raise UnusualRows  # a partition is named twice
    if len(session.partitions) > count:
        yield from _exclude_others(broker, session, named)
    if session.is_closed:
        raise UnusualRows  # the connection has ended meanwhile
    return RecalledFetch(fetch, session, topics, count)


def _name(
    broker: Broker,
    session: ImplicitSession,
    topic: TopicKey,
    rows: memoryview,
    found: list[ImplicitPartition | None],
) -> Steps[None]:
    """Put the partitions of those `rows` that are new, or have changed, into `found`."""
    size, changed = len(rows) // len(found), 0
    for n, known in enumerate(found):
        if known is not None:
            continue
        if not changed % _NEW_AT_A_TIME:
            yield
        changed += 1
        row = bytes(rows[n * size : (n + 1) * size])
        asked = parse_row(session.version, row)
        one = session.name(topic, asked, row)
        if one is None:
            one = broker.implicit_sessions.include(session, topic, asked, row)
        if one is None:
            raise UnusualRows
        found[n] = one


def _exclude_others(broker: Broker, session: ImplicitSession, named: set[ImplicitPartition]) -> Steps[None]:
    """Remove the partitions that the request does not name."""
    others = [one for one in session.partitions.values() if one not in named]
    for n, one in enumerate(others):
        if not n % _NEW_AT_A_TIME:
            yield
            if session.is_closed:
                return
        broker.implicit_sessions.exclude(session, one)


class ImplicitFetch(FetchOperation):
    """Fetch of all partitions of an implicit session, of which it reads those that are dirty."""

    __slots__ = ("_count", "_reads", "_session", "_topics")

    def __init__(self, broker: Broker, context: RequestContext, recalled: RecalledFetch) -> None:
        super().__init__(broker, context, recalled.fetch)
        self._session, self._topics, self._count = recalled.session, recalled.topics, recalled.total
        self._reads: list[PartitionRead] = []

    def _partition_count(self) -> int:
        """Return about how many partitions take as long to read as this fetch."""
        if self._session.is_closed or self._looks_again():
            return self._count
        return len(self._session.dirty) + self._count // LIKE_ONE_READ

    def _answered_partitions(self) -> int:
        return self._count

    def _looks_again(self) -> bool:
        """Return whether all partitions are to be read, as the client may see other parts of them than at the
        last look: at another isolation level, under other ACLs, or as one of them is gone or has failed."""
        broker, session = self._broker, self._session
        if session.registry_version != broker.replicas.version or session.is_committed is not reads_committed(
            self._fetch
        ):
            return True
        authorizer, under = broker.authorizer, session.looked_under
        if authorizer is None or under is None:
            return (authorizer is None) is not (under is None)
        return under[1] is not authorizer.version or under[0] != self._context.session.principal

    def _mark_all(self) -> Steps[None]:
        session, authorizer = self._session, self._broker.authorizer
        session.registry_version = self._broker.replicas.version
        session.is_committed = reads_committed(self._fetch)
        session.looked_under = None
        if authorizer is not None:
            session.looked_under = self._context.session.principal, authorizer.version
        for _, partitions in self._topics:
            for at in range(0, len(partitions), AT_A_TIME):
                yield
                session.dirty.update(dict.fromkeys(partitions[at : at + AT_A_TIME]))

    def _has_known_partition(self) -> bool:
        return self._count > self._pass.unknown

    def _watched_keys(self) -> Iterable[Hashable]:
        self._session.watch_for(self._reads)
        return (self._session,)

    def _early_keys(self) -> Iterable[Hashable]:
        return (self._session,)

    def _freeable(self) -> Iterable[list[Any]]:
        return [partitions for _, partitions in self._topics]

    def _drop_results(self) -> None:
        self._reads = []

    def _read_partitions(self, started: PendingReads) -> Steps[None]:
        session = self._session
        if self._looks_again():
            yield from self._mark_all()
        found = self._new_pass(started)
        reads: list[PartitionRead] = []
        for _, partitions in self._topics:
            for at in range(0, len(partitions), AT_A_TIME):
                if not session.dirty and not session.is_closed:
                    continue
                yield
                dirty, some = session.dirty, partitions[at : at + AT_A_TIME]
                # A closed session forgets what is dirty, and watches nothing.
                for one in some if session.is_closed else list(filter(dirty.__contains__, some)):
                    yield
                    self._read_one(found, one, reads)
        self._pass, self._reads = found, reads

    def _read_one(self, found: FetchRead, one: SessionPartition, reads: list[PartitionRead]) -> None:
        partition, result = found.read_partition(one.topic, one.asked)
        read = PartitionRead(one, partition, result)
        if not self._session.note_result(read):
            if self._early is not None:
                self._session.watch_for((read,))
            reads.append(read)

    def _respond(self) -> Steps[Response]:
        inline = InlineSmallSlices(self._broker)
        unlike: dict[object, FetchPartitionResult] = {}
        for of, _, result in self._reads:
            yield
            unlike[of] = inline.apply(of.topic, result) if result.records else result
        if self._context.api_version < FIRST_VERSION_WITH_STORAGE_ERRORS:
            unlike = {of: down_converted(result) for of, result in unlike.items()}
        topics: list[tuple[TopicKey, EncodedResults]] = []
        for topic, partitions in self._topics:
            results = EncodedResults()
            for at in range(0, len(partitions), AT_A_TIME):
                yield
                some = partitions[at : at + AT_A_TIME]
                _add_results(results, some, unlike)
            topics.append((topic, results))
        return (yield from self._encode(topics, NO_SESSION))


def _add_results(
    results: EncodedResults,
    partitions: Sequence[ImplicitPartition],
    unlike: Mapping[object, FetchPartitionResult],
) -> None:
    """Add the results of partitions: those of clean ones as they are encoded already."""
    answers, start = [one.answer for one in partitions], 0
    for _ in range(answers.count(b"")):
        stop = answers.index(b"", start)
        results.add(b"".join(answers[start:stop]), stop - start)
        results.add(unlike[partitions[stop]], 1)
        start = stop + 1
    results.add(b"".join(answers[start:]), len(answers) - start)
