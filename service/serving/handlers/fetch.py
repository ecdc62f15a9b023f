"""Fetch: records of both tiers; those of segment files are sent without a copy.

A fetch reads its partitions under one byte budget (`serving/fetch_read.py`): all that it names, in its order,
or those of its session that may have changed (`partition/fetch_sessions.py`, KIP-227). If it finds less than
the client wants, it waits and reads again from the start; it keeps no records meanwhile. It waits as an
operation of the purgatory and as a future, without a task.

A fetch that waits only for bytes is answered as soon as another request follows on its connection.

A fetch does not wait for the bucket if the hot tier has enough: the download that it started continues into
the cache, where a later fetch finds it. A fetch that has no other records waits up to
``remote.fetch.max.wait.ms``.

A fetch of many partitions reads them in slices, in a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Hashable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import Slice, free_in_slices
from service.base.steps import Steps, at_once
from service.network.request import RequestContext, Response
from service.network.sender import Part
from service.partition.delayed_fetch import DelayedFetch
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
from service.replication.leader import ReplicaSession
from service.serving.fetch_answers import (
    TopicResults,
    down_converted,
    may_replicate,
    missing_topic_error,
    note_name,
    refuse_replica,
)
from service.serving.fetch_read import FetchRead, InlineSmallSlices, PendingReads
from service.serving.request_host import Broker
from service.wire.fetch import (
    FetchPartitionResult,
    FetchRequestView,
    encode_fetch_response,
    encode_fetch_response_in_steps,
)
from service.wire.produce import TopicKey

if TYPE_CHECKING:
    from service.remote.reading.download_manager import ResponseHold

FULL_FETCH_EPOCHS: Final = (INITIAL_EPOCH, FINAL_EPOCH)
MOST_AT_ONCE: Final = 250
"""Most partitions that are read in one turn of the loop, without a task."""
FIRST_VERSION_WITH_STORAGE_ERRORS: Final = 6
FIRST_VERSION_WITH_SESSIONS: Final = 7
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
PARTITIONS_AT_A_TIME: Final = 400
"""Partitions without records that one step answers."""
WITH_RECORDS: Final = 15
"""Partitions without records that take as long as one with records."""


def handle(
    broker: Broker, context: RequestContext, fetch: FetchRequestView
) -> Response | Awaitable[Response]:
    """Respond at once if there is enough to send, else wait for bytes, the bucket or the deadline."""
    if fetch.replica_id >= 0 and broker.authorizer is not None and not may_replicate(broker, context):
        return refuse_replica(context, fetch)
    if fetch.session_epoch in FULL_FETCH_EPOCHS:
        if fetch.session_id != NO_SESSION:
            broker.fetch_sessions.close(fetch.session_id)
        wants_session = (
            fetch.session_epoch == INITIAL_EPOCH and context.api_version >= FIRST_VERSION_WITH_SESSIONS
        )
        return _FullFetch(broker, context, fetch, wants_session=wants_session).begin()
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
        return _refusal(context, e.code)
    if session is not None and session.replica is not None and session.replica_id == fetch.replica_id:
        session.fetched(fetch.replica_epoch, broker.clock.monotonic_ms())
    if session is None:
        return _FullFetch(broker, context, fetch, wants_session=False).begin()
    return _IncrementalFetch(broker, context, fetch, session).begin()


def _refusal(context: RequestContext, error: ErrorCode, session_id: int = NO_SESSION) -> Response:
    parts = encode_fetch_response(
        context.api_version, context.correlation_id, (), error_code=error, session_id=session_id
    )
    return Response(cast("list[Part]", parts))


def _release(holds: list[ResponseHold]) -> None:
    """Release the memory of a response's cold bytes."""
    for hold in holds:
        hold.release()


class _Fetch:
    """One fetch, until its response is sent."""

    __slots__ = (
        "_broker",
        "_context",
        "_deadline",
        "_fetch",
        "_future",
        "_is_reading",
        "_pass",
        "_replica",
        "_task",
        "_wait",
        "_waiting_since",
    )

    def __init__(self, broker: Broker, context: RequestContext, fetch: FetchRequestView) -> None:
        self._broker = broker
        self._context = context
        self._fetch = fetch
        self._pass: FetchRead
        self._replica: ReplicaSession | None = None
        self._future: asyncio.Future[Response] | None = None
        self._task: asyncio.Task[None] | None = None
        self._wait: DelayedFetch | None = None
        self._deadline = 0.0
        self._is_reading = False
        self._waiting_since: float | None = None

    def begin(self) -> Response | Awaitable[Response]:
        if self._partition_count() > MOST_AT_ONCE:
            self._future = self._new_future()
            self._start_task()
            return self._future
        for _ in self._read_partitions({}):
            pass
        if self._is_enough():
            return self._answer()
        self._future = self._new_future()
        self._wait_first()
        return self._future

    # differences of full and incremental fetches

    def _partition_count(self) -> int:
        """Return the number of partitions to read."""
        raise NotImplementedError

    def _read_partitions(self, started: PendingReads) -> Steps[None]:
        """Make one pass over the partitions. Each step yields its cost in µs before it works.

        `started`: pending reads of the pass before.
        """
        raise NotImplementedError

    def _create_session(self) -> Steps[None]:
        """Create the session that later fetches use, before the response. Steps yield their cost in µs."""
        yield from ()

    def _has_known_partition(self) -> bool:
        """Return whether there is a partition that may have records in time."""
        raise NotImplementedError

    def _watched_keys(self) -> Iterable[Hashable]:
        """Return the purgatory keys whose events may end the wait."""
        raise NotImplementedError

    def _freeable(self) -> Iterable[list[Any]]:
        """Return the long lists of a fetch that has ended, to be freed in slices."""
        return [partitions for _, partitions in self._fetch.topics]

    def _drop_results(self) -> None:
        """Drop the results of the last pass."""
        raise NotImplementedError

    def _respond(self) -> Steps[Response]:
        """Return the response, in steps."""
        raise NotImplementedError

    def _answer(self) -> Response:
        for _ in self._create_session():
            pass
        return at_once(self._respond())

    # waiting

    def _is_enough(self) -> bool:
        fetch, found = self._fetch, self._pass
        least = min(fetch.min_bytes, found.room)
        if found.is_final or found.size >= max(least, 1):
            return True
        if found.needs_restore:
            return False  # waits even if `max_wait_ms` is 0: the client would fetch again at once
        return not found.pending and (
            fetch.max_wait_ms <= 0 or not self._has_known_partition() or found.size >= least
        )

    def _new_future(self) -> asyncio.Future[Response]:
        future: asyncio.Future[Response] = self._broker.loop.create_future()
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: asyncio.Future[Response]) -> None:
        """Clean up: the response is ready, or the peer has left."""
        self._end_wait()
        if self._wait is not None:
            self._broker.timers.purgatory.forget(self._wait)
        if self._task is not None:
            self._task.cancel()
        self._forget_wait()
        if self._partition_count() > MOST_AT_ONCE:
            free_in_slices(self._freeable())

    def _forget_wait(self) -> None:
        """Drop the references between the wait and its downloads. Otherwise downloads that were too late for
        this fetch would keep their memory until the garbage collector runs.
        """
        self._context.hurry = None
        if self._wait is not None:
            self._wait = None
            self._pass.drop_pending()

    def _new_pass(self, started: PendingReads) -> FetchRead:
        is_first = self._wait is None
        return FetchRead(self._broker, self._context, self._fetch, started, self._replica, is_first=is_first)

    def _wait_first(self) -> None:
        fetch, is_read = self._fetch, bool(self._pass.pending) or self._pass.needs_restore
        wait_ms = self._broker.config.remote_fetch_max_wait_ms if is_read else fetch.max_wait_ms
        self._deadline = self._broker.loop.time() + wait_ms / 1000
        self._context.cancel_on_disconnect = True
        self._context.hurry = self._hurry
        self._sleep(wait_ms / 1000)

    def _hurry(self) -> None:
        """Respond now, unless the fetch waits for a download or a seek, which ends soon by itself."""
        if not self._is_reading:
            self._deadline = self._broker.loop.time()
            if self._wait is not None:
                self._wait.end()

    def _sleep(self, timeout_s: float) -> None:
        broker, found = self._broker, self._pass
        least = max(min(self._fetch.min_bytes, found.room), 1)
        timers = broker.timers
        wait = DelayedFetch(broker.loop, timers.purgatory, max(least - found.size, 1), self._read_again)
        watched: Iterable[Hashable] = self._watched_keys()
        throttle = broker.leader_throttle
        if found.held_back and throttle is not None:
            # Read again when the quota allows more, and when the quota changes.
            now_ms, watched = broker.clock.monotonic_ms(), (*watched, throttle)
            timeout_s = min(timeout_s, max(throttle.quota.free_ms(now_ms) - now_ms, 1) / 1000)
        timers.watch(wait, watched, timeout_s)
        for future in found.futures:
            future.add_done_callback(wait.end_threadsafe)
        self._wait, self._is_reading = wait, bool(found.pending)
        self._waiting_since = broker.loop.time()
        broker.metrics.waiting += 1
        # The results are read again later: a long wait keeps no memory.
        self._drop_results()
        _release(found.holds)
        found.holds.clear()

    def _end_wait(self) -> None:
        """Add the wait that has ended to the metrics. Further calls do nothing."""
        since = self._waiting_since
        if since is None:
            return
        self._waiting_since = None
        metrics = self._broker.metrics
        metrics.waiting -= 1
        waits = metrics.wait
        if self._is_reading:
            waits = metrics.cold_wait if self._pass.is_remote else metrics.seek_wait
        waits.observe(self._broker.loop.time() - since)

    def _read_again(self) -> None:
        self._end_wait()
        future = self._future
        assert future is not None
        if future.done():
            return
        try:
            if self._partition_count() > MOST_AT_ONCE:
                self._start_task()
                return
            for _ in self._read_partitions(self._pass.pending):
                pass
            if self._is_time_to_answer():
                response = self._answer()
                future.remove_done_callback(self._ended)  # all is cleaned up already
                self._forget_wait()
                future.set_result(response)
        except Exception as e:
            future.set_exception(e)

    def _is_time_to_answer(self) -> bool:
        """Return whether to respond after a pass; otherwise begin to wait again."""
        wait = self._wait
        if self._is_enough() or (wait is not None and wait.was_changed):
            return True
        if wait is None:
            self._wait_first()
            return False
        left_s = self._deadline - self._broker.loop.time()
        if left_s <= 0 or (self._is_reading and self._pass.size):
            return True
        self._sleep(left_s)
        return False

    def _start_task(self) -> None:
        started = self._pass.pending if self._wait is not None else {}
        # The log of long turns shows the task's name.
        self._task = self._broker.loop.create_task(self._run(started), name=f"fetch of {self._context}")

    async def _run(self, started: PendingReads) -> None:
        future, piece = self._future, Slice()
        assert future is not None
        try:
            await piece.go_on(self._read_partitions(started))
            # If the peer has left in this very turn, this task is not cancelled yet.
            if not future.done() and self._is_time_to_answer():
                await piece.go_on(self._create_session())
                response = await piece.go_on(self._respond())
                if not future.done():
                    future.set_result(response)
        except Exception as e:
            if future.done():
                raise
            future.set_exception(e)
        finally:
            self._task = None

    def _encode(self, topics: list[TopicResults], session_id: int) -> Steps[Response]:
        broker, context, found = self._broker, self._context, self._pass
        holds = found.holds
        found.record_metrics()
        if context.api_version < FIRST_VERSION_WITH_STORAGE_ERRORS:
            topics = [(topic, list(map(down_converted, answers))) for topic, answers in topics]
        endpoints = broker.node_endpoints(context.listener, found.leaders) if found.leaders else ()
        parts = yield from encode_fetch_response_in_steps(
            context.api_version,
            context.correlation_id,
            topics,
            session_id=session_id,
            endpoints=endpoints,
        )
        on_done = partial(_release, holds) if holds else None
        return Response(cast("list[Part]", parts), on_done, broker.note_send_failure)


class _FullFetch(_Fetch):
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
        if not found.is_replica:
            return found.partitions
        return [one.growth for one in found.partitions if one not in found.held_back]

    def _freeable(self) -> Iterable[list[Any]]:
        return [*super()._freeable(), *[answers for _, answers in self._topics]]

    def _drop_results(self) -> None:
        self._topics = []

    def _read_partitions(self, started: PendingReads) -> Steps[None]:
        found = self._new_pass(started)
        topics: list[TopicResults] = []
        authorizer = self._broker.authorizer
        if authorizer is not None:
            self._looked_under = self._context.session.principal, authorizer.version
        for topic, partitions in self._fetch.topics:
            answers: list[FetchPartitionResult] = []
            for wanted in partitions:
                yield
                answers.append(found.read_partition(topic, wanted)[1])
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
        return (yield from self._encode(self._topics, self._session_id))


class _IncrementalFetch(_Fetch):
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
        """Return whether all partitions are to be looked at, as the client may have other rights to them than
        at the last look: under other ACLs, or as it is another client."""
        authorizer = self._broker.authorizer
        if authorizer is None or self._replica is not None:
            return False
        under = self._session.looked_under
        return under is None or under[1] is not authorizer.version or under[0] != self._principal

    def _mark_all(self) -> Steps[None]:
        """Mark all partitions of the session dirty, for this client and these ACLs."""
        authorizer, session = self._broker.authorizer, self._session
        assert authorizer is not None
        under = self._principal, authorizer.version
        for n, one in enumerate(tuple(session.partitions.values())):
            if not n % PARTITIONS_AT_A_TIME:
                yield
            if session.partitions.get((one.topic, one.asked.partition)) is one:
                session.dirty[one] = None
        session.looked_under = under

    def _has_known_partition(self) -> bool:
        return len(self._session.partitions) > self._pass.unknown

    def _watched_keys(self) -> Iterable[Hashable]:
        self._session.watch_for(self._reads)
        return (self._session,)

    def _drop_results(self) -> None:
        self._reads = []

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
            reads.append(read)
        self._pass, self._reads = found, reads

    def _respond(self) -> Steps[Response]:
        session = self._session
        if session.epoch != next_epoch(self._fetch.session_epoch):
            # The client has sent a further fetch of this session, over another connection.
            return _refusal(self._context, ErrorCode.invalid_fetch_session_epoch, session.id)
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


def _forget_replica(broker: Broker, replica_id: int, session: ReplicaSession, one: SessionPartition) -> None:
    """Note that a replica's session no longer has the partition."""
    partition = broker.replicas.get_by(one.topic, one.asked.partition)
    if partition is not None and partition.leading is not None:
        partition.leading.detach(replica_id, session)


def _is_follower(broker: Broker, replica_id: int) -> bool:
    """Return whether another broker of this cluster fetches: its sessions have priority over consumers'."""
    return replica_id >= 0 and replica_id != broker.config.node_id and replica_id in broker.image.brokers
