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
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

from service.base.steps import Steps
from service.network.request import RequestContext, Response
from service.partition.fetch_sessions import (
    NO_SESSION,
    PartitionRead,
    SessionPartition,
    can_be_remembered,
)
from service.partition.implicit_sessions import ImplicitPartition, ImplicitSession, RowOrder
from service.serving.fetch_answers import down_converted
from service.serving.fetch_operation import FIRST_VERSION_WITH_STORAGE_ERRORS, FetchOperation
from service.serving.fetch_read import FIRST_VERSION_WITH_RACKS, FetchRead, InlineSmallSlices, PendingReads
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

_MOST_SPANS: Final = 16
"""Spans that are looked for in `AT_A_TIME` rows: with more, looking rows up one by one takes less time."""
_FEW: Final = 64
"""Partitions that are sorted by their places sooner than all of a topic are gone through."""


class NamedTopic(NamedTuple):
    """A topic's partitions in the order of a request, and where they are in the order of their session:
    `spans` has all of them, or there is no `order`."""

    topic: TopicKey
    partitions: list[ImplicitPartition]
    order: RowOrder | None
    spans: list[tuple[int, int]]


class RecalledFetch(NamedTuple):
    """A full fetch: its head (`fetch`, without topics), and its partitions as those of its session."""

    fetch: FetchRequestView
    session: ImplicitSession
    topics: list[NamedTopic]
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
    size = row_bytes(version)
    now_ms = broker.clock.monotonic_ms()
    session = sessions.use(context.connection_id, version, rows.bytes_left // size, now_ms)
    if session is None:
        raise UnusualRows
    topics: list[NamedTopic] = []
    for _ in range(rows.topics):
        topic, data = rows.next_topic()
        if not can_be_remembered([(topic, None)]):
            raise UnusualRows
        found = NamedTopic(topic, [], session.orders.get(topic), [])
        is_whole = True
        for at in range(0, len(data), AT_A_TIME * size):
            yield
            piece = bytes(data[at : at + AT_A_TIME * size])
            position = yield from _find_spans(broker, session, found, piece, size)
            if position < len(piece):
                is_whole = False
                found.partitions.extend(
                    (yield from _find_rows(broker, session, topic, piece[position:], size))
                )
        topics.append(found if is_whole else found._replace(order=None))
    fetch = rows.end()
    count = sum([len(one.partitions) for one in topics])
    named: set[ImplicitPartition] = set()
    has_others = len(session.partitions) > count
    if has_others or any(one.order is None for one in topics):
        named = yield from _named(topics)
        is_one_twice = len(named) < count
    else:
        is_one_twice = _overlap(topics)
    if is_one_twice:
        raise UnusualRows
    if has_others:
        yield from _exclude_others(broker, session, named)
    if session.is_closed:
        raise UnusualRows  # the connection has ended meanwhile
    yield from _settle(session, topics)
    return RecalledFetch(fetch, session, topics, count)


def _find_spans(
    broker: Broker, session: ImplicitSession, found: NamedTopic, piece: bytes, size: int
) -> Steps[int]:
    """Add the partitions of the first rows to `found`, as spans of the session's order. Returns the position
    of the first row that was not looked for, or is not in that order."""
    order, topic, count = found.order, found.topic, len(piece) // size
    if order is None:
        return 0
    known, at = session.rows.get(topic, {}).get, 0
    for _ in range(_MOST_SPANS):
        if at == count:
            break
        row = piece[at * size : (at + 1) * size]
        one = known(row)
        if one is None:
            named: list[ImplicitPartition | None] = [None]
            yield from _name(broker, session, topic, memoryview(row), named)
            (one,) = named
        if one is None or session.orders.get(topic) is not order or not order.has(one):
            break
        found.spans.append((one.place, one.place + order.common(one.place, piece, at)))
        start, stop = found.spans[-1]
        found.partitions.extend(order.partitions[start:stop])
        at += stop - start
    return at * size


def _find_rows(
    broker: Broker, session: ImplicitSession, topic: TopicKey, piece: bytes, size: int
) -> Steps[list[ImplicitPartition]]:
    """Return the partitions of rows, which are looked up one by one."""
    known = session.rows.get(topic, {}).get
    found = [known(row) for (row,) in struct.iter_unpack(f"{size}s", piece)]
    if None in found:
        yield from _name(broker, session, topic, memoryview(piece), found)
    return cast("list[ImplicitPartition]", found)


def _named(topics: Sequence[NamedTopic]) -> Steps[set[ImplicitPartition]]:
    named: set[ImplicitPartition] = set()
    for one in topics:
        for at in range(0, len(one.partitions), AT_A_TIME):
            yield
            named.update(one.partitions[at : at + AT_A_TIME])
    return named


def _overlap(topics: Sequence[NamedTopic]) -> bool:
    """Return whether two spans have a partition in common."""
    spans: dict[TopicKey, list[tuple[int, int]]] = {}
    for one in topics:
        spans.setdefault(one.topic, []).extend(one.spans)
    return any(before[1] > after[0] for found in spans.values() for before, after in pairwise(sorted(found)))


def _settle(session: ImplicitSession, topics: Sequence[NamedTopic]) -> Steps[None]:
    """Keep the order of topics that have none."""
    new: dict[TopicKey, list[ImplicitPartition]] = {}
    for one in topics:
        if one.topic not in session.orders:
            new.setdefault(one.topic, []).extend(one.partitions)
    for topic, named in new.items():
        yield
        if session.is_closed:
            return
        session.settle(topic, named)


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
        if (
            session.registry_version != broker.replicas.version
            or session.is_committed is not self._fetch.reads_committed
        ):
            return True
        authorizer, under = broker.authorizer, session.looked_under
        if authorizer is None or under is None:
            return (authorizer is None) is not (under is None)
        return under[1] is not authorizer.version or under[0] != self._context.session.principal

    def _mark_all(self) -> Steps[None]:
        session, authorizer = self._session, self._broker.authorizer
        session.registry_version = self._broker.replicas.version
        session.is_committed = self._fetch.reads_committed
        session.looked_under = None
        if authorizer is not None:
            session.looked_under = self._context.session.principal, authorizer.version
        for _, partitions, *_ in self._topics:
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
        return [one.partitions for one in self._topics]

    def _drop_results(self) -> None:
        self._reads = []

    def _read_partitions(self, started: PendingReads) -> Steps[None]:
        session = self._session
        if self._looks_again():
            yield from self._mark_all()
        found = self._new_pass(started)
        reads: list[PartitionRead] = []
        for of in self._topics:
            order, partitions = of.order, of.partitions
            is_few = len(session.dirty) <= _FEW and not session.is_closed
            if order is not None and session.orders.get(of.topic) is order and is_few:
                yield
                for one in [one for span in of.spans for one in order.among(session.dirty, *span)]:
                    yield
                    self._read_one(found, one, reads)
                continue
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
        for named in self._topics:
            topic, partitions, results = named.topic, named.partitions, EncodedResults()
            topics.append((topic, results))
            if _add_spans(results, named, self._session, unlike):
                yield
                continue
            for at in range(0, len(partitions), AT_A_TIME):
                yield
                some = partitions[at : at + AT_A_TIME]
                _add_results(results, some, unlike)
        return (yield from self._encode(topics, NO_SESSION))


def _add_spans(
    results: EncodedResults,
    of: NamedTopic,
    session: ImplicitSession,
    unlike: Mapping[object, FetchPartitionResult],
) -> bool:
    """Add a topic's results by spans of clean partitions; return False where that cannot be done."""
    order = of.order
    if order is None or session.orders.get(of.topic) is not order:
        return False
    if not order.can_join() or len(order.blank) > _FEW:
        return False
    for start, stop in of.spans:
        for one in order.among(order.blank, start, stop):
            results.add(order.joined(start, one.place), one.place - start)
            results.add(unlike[one], 1)
            start = one.place + 1
        results.add(order.joined(start, stop), stop - start)
    return True


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
