"""Fetch: records of both tiers; those of segment files are sent without a copy.

A fetch reads its partitions under one byte budget (`serving/fetch_read.py`): all that it names, in its order,
or those of its session that may have changed (`partition/fetch_sessions.py`, KIP-227), or those of many that
have changed since the connection's last fetch (`serving/implicit_fetch.py`). If it finds less than the client
wants, it waits and reads again (`serving/fetch_operation.py`).

A fetch that waits only for bytes is answered as soon as another request follows on its connection.

A fetch does not wait for the bucket if the hot tier has enough: the download that it started continues into
the cache, where a later fetch finds it. A fetch that has no other records waits up to
``remote.fetch.max.wait.ms``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Hashable, Iterable
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.network.request import RequestContext, Response
from service.partition.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    PartitionRead,
    SessionPartition,
    can_be_remembered,
    next_epoch,
)
from service.partition.partition import Partition
from service.replication.leader import ReplicaSession
from service.serving.fetch_answers import (
    TopicResults,
    down_converted,
    may_replicate,
    missing_topic_error,
    note_name,
    refusal,
    refuse_replica,
    refused_session,
)
from service.serving.fetch_operation import FIRST_VERSION_WITH_STORAGE_ERRORS, FetchOperation
from service.serving.fetch_read import FetchRead, InlineSmallSlices, PendingReads
from service.serving.implicit_fetch import ImplicitFetch, RecalledFetch
from service.serving.ordinary_fetch import respond
from service.serving.request_host import Broker
from service.wire.fetch import FetchPartitionResult, FetchRequestView
from service.wire.produce import TopicKey

FULL_FETCH_EPOCHS: Final = (INITIAL_EPOCH, FINAL_EPOCH)
FIRST_VERSION_WITH_SESSIONS: Final = 7
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
PARTITIONS_AT_A_TIME: Final = 400
"""Partitions without records that one step answers."""
WITH_RECORDS: Final = 15
"""Partitions without records that take as long as one with records."""


def handle(
    broker: Broker, context: RequestContext, fetch: FetchRequestView | RecalledFetch
) -> Response | Awaitable[Response]:
    """Respond at once if there is enough to send, else wait for bytes, the bucket or the deadline."""
    if isinstance(fetch, RecalledFetch):
        return ImplicitFetch(broker, context, fetch).begin()
    if fetch.replica_id >= 0 and broker.authorizer is not None and not may_replicate(broker, context):
        return refuse_replica(context, fetch)
    if fetch.session_epoch in FULL_FETCH_EPOCHS:
        if fetch.session_id != NO_SESSION:
            broker.fetch_sessions.close(fetch.session_id)
        plan = broker.fetch_plans.find(context.connection_id)
        if plan is not None and plan.is_tried:
            plan.is_tried = False  # with the same result as here
        elif (ordinary := respond(broker, context, fetch)) is not None:
            return ordinary
        wants_session = (
            fetch.session_epoch == INITIAL_EPOCH and context.api_version >= FIRST_VERSION_WITH_SESSIONS
        )
        return FullFetch(broker, context, fetch, wants_session=wants_session).begin()
    try:
        session = broker.fetch_sessions.resume(
            broker.clock.monotonic_ms(),
            fetch.session_id,
            fetch.session_epoch,
            context.api_version,
            fetch.topics,
            fetch.forgotten,
        )
    except RequestError as e:
        return refused_session(context, e.code)
    if session is not None and session.replica is not None and session.replica_id == fetch.replica_id:
        session.fetched(fetch.replica_epoch, broker.clock.monotonic_ms())
    if session is None:
        return FullFetch(broker, context, fetch, wants_session=False).begin()
    return _IncrementalFetch(broker, context, fetch, session).begin()


class FullFetch(FetchOperation):
    """Fetch of all partitions that the request names; creates a session if the client wants one."""

    __slots__ = ("_looked_under", "_session_id", "_topics", "_wants_session")

    def __init__(
        self, broker: Broker, context: RequestContext, fetch: FetchRequestView, *, wants_session: bool
    ) -> None:
        super().__init__(broker, context, fetch)
        self._wants_session = wants_session
        if wants_session and fetch.replica_id >= 0:
            self._replica = ReplicaSession(broker.clock.monotonic_ms())
        self._session_id = NO_SESSION
        self._topics: list[TopicResults] = []
        self._looked_under: tuple[object, object] | None = None

    def _partition_count(self) -> int:
        return sum([len(partitions) for _, partitions in self._fetch.topics])

    def _has_known_partition(self) -> bool:
        return bool(self._pass.partitions)

    def _watched_keys(self) -> Iterable[Hashable]:
        found = self._pass
        return [_key(found, one) for one in found.partitions if one not in found.held_back]

    def _freeable(self) -> Iterable[list[Any]]:
        return [*super()._freeable(), *[answers for _, answers in self._topics]]

    def _drop_results(self) -> None:
        self._topics = []

    def _read_partitions(self, started: PendingReads) -> Steps[None]:
        found = self._new_pass(started)
        topics: list[TopicResults] = []
        authorizer, purgatory = self._broker.authorizer, self._broker.timers.purgatory
        if authorizer is not None:
            self._looked_under = self._context.session.principal, authorizer.version
        for topic, partitions in self._fetch.topics:
            answers: list[FetchPartitionResult] = []
            for wanted in partitions:
                yield
                partition, answer = found.read_partition(topic, wanted)
                answers.append(answer)
                if self._early is not None and partition is not None and partition not in found.held_back:
                    purgatory.watch_also(self._early, _key(found, partition))
            topics.append((topic, answers))
        self._pass, self._topics = found, topics

    def _create_session(self) -> Steps[None]:
        """Create a session, if the cache of sessions has room."""
        fetch, broker = self._fetch, self._broker
        if not self._wants_session or not can_be_remembered(fetch.topics):
            return
        now_ms = broker.clock.monotonic_ms()
        named: dict[TopicKey, set[int]] = {}
        for topic, partitions in fetch.topics:
            of_topic = named.setdefault(topic, set())
            for at in range(0, len(partitions), PARTITIONS_AT_A_TIME):
                yield
                of_topic.update([one.partition for one in partitions[at : at + PARTITIONS_AT_A_TIME]])
        session = broker.fetch_sessions.open(
            now_ms,
            privileged=_is_follower(broker, fetch.replica_id),
            uses_topic_ids=self._context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS,
            size=sum(map(len, named.values())),
        )
        if session is None:
            return
        session.looked_under = self._looked_under
        session.is_committed = self._pass.is_committed
        if self._replica is not None:
            session.replica_id, session.replica_epoch = fetch.replica_id, fetch.replica_epoch
            session.replica = self._replica
            session.forgets = partial(_forget_replica, broker, fetch.replica_id, self._replica)
        try:
            for (topic, wanted), (_, answers) in zip(fetch.topics, self._topics, strict=True):
                for one, answer in zip(wanted, answers, strict=True):
                    yield
                    partition = None
                    if answer.error_code == ErrorCode.none:
                        partition = broker.replicas.get_by(topic, one.partition)
                    added = session.add(topic, one)
                    note_name(broker, added)
                    session.note_sent(PartitionRead(added, partition, answer))
            broker.fetch_sessions.used(session, now_ms)
            self._session_id = session.id
        finally:
            if self._session_id == NO_SESSION:  # cancelled: the peer has left
                broker.fetch_sessions.close(session.id)

    def _respond(self) -> Steps[Response]:
        inline, left = InlineSmallSlices(self._broker), PARTITIONS_AT_A_TIME
        for topic, answers in self._topics:
            for n, answer in enumerate(answers):
                left -= 1
                if answer.records:
                    answers[n] = inline.apply(topic, answer)
                    left -= WITH_RECORDS
                if left < 0:
                    yield
                    left = PARTITIONS_AT_A_TIME
        topics = self._topics
        if self._context.api_version < FIRST_VERSION_WITH_STORAGE_ERRORS:
            topics = [(topic, list(map(down_converted, answers))) for topic, answers in topics]
        return (yield from self._encode(topics, self._session_id))


class _IncrementalFetch(FetchOperation):
    """Fetch of the partitions of a session that may have changed."""

    __slots__ = ("_principal", "_reads", "_session")

    def __init__(
        self, broker: Broker, context: RequestContext, fetch: FetchRequestView, session: FetchSession
    ) -> None:
        super().__init__(broker, context, fetch)
        self._session = session
        self._principal = context.session.principal
        self._replica = session.replica if session.replica_id == fetch.replica_id else None
        self._reads: list[PartitionRead] = []

    def _partition_count(self) -> int:
        return len(self._session.partitions if self._looks_again() else self._session.dirty)

    def _looks_again(self) -> bool:
        """Return whether all partitions are to be looked at, as the client may see other parts of them than
        at the last look: at another isolation level, under other ACLs, or as it is another client."""
        authorizer = self._broker.authorizer
        if self._replica is not None:
            return False
        if self._session.is_committed is not self._fetch.reads_committed:
            return True
        if authorizer is None:
            return False
        under = self._session.looked_under
        return under is None or under[1] is not authorizer.version or under[0] != self._principal

    def _mark_all(self) -> Steps[None]:
        """Mark all partitions of the session dirty, for this client, these ACLs and this isolation level."""
        authorizer, session = self._broker.authorizer, self._session
        under = None if authorizer is None else (self._principal, authorizer.version)
        for n, one in enumerate(tuple(session.partitions.values())):
            if not n % PARTITIONS_AT_A_TIME:
                yield
            if session.partitions.get((one.topic, one.asked.partition)) is one:
                session.dirty[one] = None
        session.looked_under, session.is_committed = under, self._fetch.reads_committed

    def _has_known_partition(self) -> bool:
        return len(self._session.partitions) > self._pass.unknown

    def _watched_keys(self) -> Iterable[Hashable]:
        self._session.watch_for(self._reads)
        return (self._session,)

    def _early_keys(self) -> Iterable[Hashable]:
        return (self._session,)

    def _drop_results(self) -> None:
        self._reads = []

    def _answered_partitions(self) -> int:
        return sum(read.needs_response for read in self._reads)

    def _session_number(self) -> int:
        return self._session.id

    def _is_overtaken(self) -> bool:
        return self._session.epoch != next_epoch(self._fetch.session_epoch)

    def _read_partitions(self, started: PendingReads) -> Steps[None]:
        session = self._session
        if self._looks_again():
            yield from self._mark_all()
        session.patrol()
        found = self._new_pass(started)
        reads: list[PartitionRead] = []
        named: set[tuple[TopicKey, int]] = set()
        room = max(found.room, 1)  # the first batch is sent even if the client's limit is 0
        if found.is_replica:
            named = {(topic, wanted.partition) for topic, some in self._fetch.topics for wanted in some}
        for one in tuple(session.dirty):
            if found.size >= room:
                if not found.is_replica or self._wait is not None:
                    break  # the others come in the next fetches of the session
                # Offsets that a replica's first pass reports are recorded without delay.
                if (one.topic, one.asked.partition) not in named:
                    continue
            yield
            if one not in session.dirty:
                continue  # forgotten meanwhile
            is_named = (one.topic, one.asked.partition) in named
            partition, answer = found.read_partition(one.topic, one.asked, is_named=is_named)
            note_name(self._broker, one)
            if answer.error_code == ErrorCode.unknown_topic_id and one.name is not None:
                error = missing_topic_error(self._broker, self._context, one.name)
                answer = answer._replace(error_code=error)
            one.is_held_back = bool(found.held_back) and partition in found.held_back
            read = PartitionRead(one, partition, answer)
            session.note_read(read)
            if self._early is not None:
                session.watch_for((read,))
            reads.append(read)
        self._pass, self._reads = found, reads

    def _respond(self) -> Steps[Response]:
        session = self._session
        if self._is_overtaken():
            return refusal(self._context, ErrorCode.invalid_fetch_session_epoch, session.id)
        topics: list[TopicResults] = []
        inline, left = InlineSmallSlices(self._broker), PARTITIONS_AT_A_TIME
        for read in self._reads:
            left -= 1
            if not read.needs_response:
                continue
            topic, answer = read.of.topic, read.result
            if answer.records:
                answer = inline.apply(topic, answer)
                left -= WITH_RECORDS
            session.note_sent(read)
            if left < 0:
                yield
                left = PARTITIONS_AT_A_TIME
            if topics and topics[-1][0] == topic:
                topics[-1][1].append(answer)
            else:
                topics.append((topic, [answer]))
        return (yield from self._encode(topics, session.id))


def _key(found: FetchRead, partition: Partition) -> Hashable:
    """Return the key of the events by which the fetch may see more of the partition."""
    if found.is_replica:
        return partition.growth
    return partition.stable if found.is_committed else partition


def _forget_replica(broker: Broker, replica_id: int, session: ReplicaSession, one: SessionPartition) -> None:
    """Note that a replica's session no longer has the partition."""
    partition = broker.replicas.get_by(one.topic, one.asked.partition)
    if partition is not None and partition.leading is not None:
        partition.leading.detach(replica_id, session)


def _is_follower(broker: Broker, replica_id: int) -> bool:
    """Return whether another broker of this cluster fetches: its sessions have priority over consumers'."""
    return replica_id >= 0 and replica_id != broker.config.node_id and replica_id in broker.image.brokers
