"""Fetch: records of any tier, without copying those that lie in segment files.

A fetch goes through its partitions under one byte budget (`serving/fetch_read.py`): all that are named, in
the order asked, or those of its session that may have changed (`partition/fetch_sessions.py`, KIP-227). When
that brings less than the client wants, the fetch waits and is read again from the start: nothing is held
meanwhile. It waits as an operation of the purgatory and as a future, without a task of its own.

A fetch that waits for bytes alone is answered as soon as another request waits behind it on its connection.

A fetch never waits for the bucket when the hot tier has enough for it: the download it started goes on into
the cache and a later fetch finds it there. A fetch that has nothing else waits up to
``remote.fetch.max.wait.ms``.

Many partitions are gone through in slices, as a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Hashable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

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
from service.serving.fetch_read import Awaited, InHand, Pass
from service.serving.request_host import Broker
from service.wire.fetch import (
    FetchPartitionResult,
    FetchRequestView,
    encode_fetch_response,
    encode_fetch_response_in_steps,
)
from service.wire.produce import TopicKey

if TYPE_CHECKING:
    from service.remote.reading.download import ResponseHold

FULL_FETCH_EPOCHS: Final = (INITIAL_EPOCH, FINAL_EPOCH)
MOST_AT_ONCE: Final = 250
"""Partitions that are looked at in one turn of the loop."""
FIRST_VERSION_WITH_STORAGE_ERRORS: Final = 6
FIRST_VERSION_WITH_SESSIONS: Final = 7
FIRST_VERSION_WITH_TOPIC_IDS: Final = 13
LOOK_US: Final = 8
TAKEN_AT_A_TIME: Final = 400
"""µs of taking in hand what was found; a partition with records is as much as `TAKEN_IS` without."""
TAKEN_IS: Final = 15
REMEMBER_US: Final = 4

AnsweredTopic = tuple[TopicKey, list[FetchPartitionResult]]


def handle(
    broker: Broker, context: RequestContext, fetch: FetchRequestView
) -> Response | Awaitable[Response]:
    """Answer at once when there is enough to say, else wait for bytes, the bucket or the deadline."""
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
    """The cold bytes of a response are out."""
    for hold in holds:
        hold.release()


class _Fetching:
    """One fetch until it is answered."""

    __slots__ = (
        "_asleep_since",
        "_broker",
        "_context",
        "_deadline",
        "_fetch",
        "_future",
        "_pass",
        "_reads_come",
        "_replica",
        "_task",
        "_wait",
    )

    def __init__(self, broker: Broker, context: RequestContext, fetch: FetchRequestView) -> None:
        self._broker = broker
        self._context = context
        self._fetch = fetch
        self._pass: Pass
        self._replica: ReplicaSession | None = None
        self._future: asyncio.Future[Response] | None = None
        self._task: asyncio.Task[None] | None = None
        self._wait: DelayedFetch | None = None
        self._deadline = 0.0
        self._reads_come = False
        self._asleep_since: float | None = None

    def begin(self) -> Response | Awaitable[Response]:
        if self._length() > MOST_AT_ONCE:
            self._future = self._promise()
            self._read_at_length()
            return self._future
        for _ in self._look({}):
            pass
        if self._is_enough():
            return self._answer()
        self._future = self._promise()
        self._wait_first()
        return self._future

    # what a full and an incremental fetch do differently

    def _length(self) -> int:
        """Partitions to look at."""
        raise NotImplementedError

    def _look(self, started: Awaited) -> Generator[int, None, None]:
        """One pass over them, as steps that tell their work (µs) before it is done.

        `started` are downloads of an earlier pass.
        """
        raise NotImplementedError

    def _remember(self) -> Generator[int, None, None]:
        """What is to be noted for the fetches that follow, before the answer; steps as those of `_look`."""
        yield from ()

    def _has_known(self) -> bool:
        """Return whether there is a partition that could have something in time."""
        raise NotImplementedError

    def _watched(self) -> Iterable[Hashable]:
        """Keys on which something may happen that the fetch waits for."""
        raise NotImplementedError

    def _read(self) -> Iterable[list[Any]]:
        """Return what nobody needs any more when a long fetch is over."""
        return [partitions for _, partitions in self._fetch.topics]

    def _let_go(self) -> None:
        """Keep nothing of what the last pass has found."""
        raise NotImplementedError

    def _respond(self) -> Steps[Response]:
        """The response, in steps."""
        raise NotImplementedError

    def _answer(self) -> Response:
        for _ in self._remember():
            pass
        return at_once(self._respond())

    # waiting

    def _is_enough(self) -> bool:
        fetch, found = self._fetch, self._pass
        least = min(fetch.min_bytes, found.room)
        if found.is_final or found.size >= max(least, 1):
            return True
        if found.is_asleep:
            return False  # nor is it answered at once to who would not wait
        return not found.awaited and (fetch.max_wait_ms <= 0 or not self._has_known() or found.size >= least)

    def _promise(self) -> asyncio.Future[Response]:
        future: asyncio.Future[Response] = self._broker.loop.create_future()
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: asyncio.Future[Response]) -> None:
        """Answered, or the peer has left."""
        self._awake()
        if self._wait is not None:
            self._broker.timers.purgatory.forget(self._wait)
        if self._task is not None:
            self._task.cancel()
        self._forget()
        if self._length() > MOST_AT_ONCE:
            free_in_slices(self._read())

    def _forget(self) -> None:
        """It is over. Downloads that came too late for it are others' memory, and must not wait for the
        collector: they know the wait, which knows this fetch."""
        self._context.hurry = None
        if self._wait is not None:
            self._wait = None
            self._pass.forget_awaited()

    def _new_pass(self, started: Awaited) -> Pass:
        is_first = self._wait is None
        return Pass(self._broker, self._context, self._fetch, started, self._replica, is_first=is_first)

    def _wait_first(self) -> None:
        fetch, is_read = self._fetch, bool(self._pass.awaited) or self._pass.is_asleep
        wait_ms = self._broker.config.remote_fetch_max_wait_ms if is_read else fetch.max_wait_ms
        self._deadline = self._broker.loop.time() + wait_ms / 1000
        self._context.cancel_on_disconnect = True
        self._context.hurry = self._hurry
        self._sleep(wait_ms / 1000)

    def _hurry(self) -> None:
        """What the bucket or a disk's device is asked for comes soon; for all else nobody has to wait."""
        if not self._reads_come:
            self._deadline = self._broker.loop.time()
            if self._wait is not None:
                self._wait.end()

    def _sleep(self, timeout_s: float) -> None:
        broker, found = self._broker, self._pass
        least = max(min(self._fetch.min_bytes, found.room), 1)
        timers = broker.timers
        wait = DelayedFetch(broker.loop, timers.purgatory, max(least - found.size, 1), self._woken)
        watched: Iterable[Hashable] = self._watched()
        throttle = broker.leader_throttle
        if found.held_back and throttle is not None:
            # Looked at again when the quota allows more, and when it is another.
            now_ms, watched = broker.clock.monotonic_ms(), (*watched, throttle)
            timeout_s = min(timeout_s, max(throttle.quota.free_ms(now_ms) - now_ms, 1) / 1000)
        timers.watch(wait, watched, timeout_s)
        for future in found.futures:
            future.add_done_callback(wait.end_threadsafe)
        self._wait, self._reads_come = wait, bool(found.awaited)
        self._asleep_since = broker.loop.time()
        broker.metrics.waiting += 1
        # What was found is read again: a fetch that waits long keeps no memory from others.
        self._let_go()
        _release(found.holds)
        found.holds.clear()

    def _awake(self) -> None:
        """Count a wait that is over; called again, it does nothing."""
        since = self._asleep_since
        if since is None:
            return
        self._asleep_since = None
        metrics = self._broker.metrics
        metrics.waiting -= 1
        waits = metrics.wait
        if self._reads_come:
            waits = metrics.cold_wait if self._pass.is_remote else metrics.seek_wait
        waits.observe(self._broker.loop.time() - since)

    def _woken(self) -> None:
        self._awake()
        future = self._future
        assert future is not None
        if future.done():
            return
        try:
            if self._length() > MOST_AT_ONCE:
                self._read_at_length()
                return
            for _ in self._look(self._pass.awaited):
                pass
            if self._is_time_to_answer():
                response = self._answer()
                future.remove_done_callback(self._ended)  # it has nothing to end
                self._forget()
                future.set_result(response)
        except Exception as e:
            future.set_exception(e)

    def _is_time_to_answer(self) -> bool:
        """After a pass. If not, the fetch waits on."""
        wait = self._wait
        if self._is_enough() or (wait is not None and wait.was_changed):
            return True
        if wait is None:
            self._wait_first()
            return False
        left_s = self._deadline - self._broker.loop.time()
        if left_s <= 0 or (self._reads_come and self._pass.size):
            return True
        self._sleep(left_s)
        return False

    def _read_at_length(self) -> None:
        started = self._pass.awaited if self._wait is not None else {}
        # With the name a long turn of it is told by.
        self._task = self._broker.loop.create_task(
            self._go_through(started), name=f"fetch of {self._context}"
        )

    async def _go_through(self, started: Awaited) -> None:
        future, piece = self._future, Slice()
        assert future is not None
        try:
            await piece.go_on(self._look(started))
            # A peer that left in this very turn has not had this task cancelled yet.
            if not future.done() and self._is_time_to_answer():
                await piece.go_on(self._remember())
                response = await piece.go_on(self._respond())
                if not future.done():
                    future.set_result(response)
        except Exception as e:
            if future.done():
                raise
            future.set_exception(e)
        finally:
            self._task = None

    def _encoded(self, topics: list[AnsweredTopic], session_id: int) -> Steps[Response]:
        broker, context, found = self._broker, self._context, self._pass
        holds = found.holds
        found.count()
        if context.api_version < FIRST_VERSION_WITH_STORAGE_ERRORS:
            topics = [(topic, list(map(_as_once_said, answers))) for topic, answers in topics]
        endpoints = broker.node_endpoints(context.listener, found.leaders) if found.leaders else ()
        parts = yield from encode_fetch_response_in_steps(
            context.api_version,
            context.correlation_id,
            topics,
            session_id=session_id,
            endpoints=endpoints,
        )
        on_done = partial(_release, holds) if holds else None
        return Response(cast("list[Part]", parts), on_done, broker.read_carefully)


class _FullFetch(_Fetching):
    """All partitions that the request names; begins a session where the client wants one."""

    __slots__ = ("_session_id", "_topics", "_wants_session")

    def __init__(
        self, broker: Broker, context: RequestContext, fetch: FetchRequestView, *, wants_session: bool
    ) -> None:
        super().__init__(broker, context, fetch)
        self._wants_session = wants_session
        if wants_session and fetch.replica_id >= 0:
            self._replica = ReplicaSession(broker.clock.monotonic_ms())
        self._session_id = NO_SESSION
        self._topics: list[AnsweredTopic] = []

    def _length(self) -> int:
        return sum([len(partitions) for _, partitions in self._fetch.topics])

    def _has_known(self) -> bool:
        return bool(self._pass.partitions)

    def _watched(self) -> Iterable[Hashable]:
        found = self._pass
        if not found.is_replica:
            return found.partitions
        return [one.growth for one in found.partitions if one not in found.held_back]

    def _read(self) -> Iterable[list[Any]]:
        return [*super()._read(), *[answers for _, answers in self._topics]]

    def _let_go(self) -> None:
        self._topics = []

    def _look(self, started: Awaited) -> Generator[int, None, None]:
        found = self._new_pass(started)
        topics: list[AnsweredTopic] = []
        for topic, partitions in self._fetch.topics:
            answers: list[FetchPartitionResult] = []
            for asked in partitions:
                yield LOOK_US
                answers.append(found.look(topic, asked)[1])
            topics.append((topic, answers))
        self._pass, self._topics = found, topics

    def _remember(self) -> Generator[int, None, None]:
        """Begin a session, if there is room for it."""
        fetch, broker = self._fetch, self._broker
        if not self._wants_session or not can_be_remembered(fetch.topics):
            return
        now_ms = broker.clock.monotonic_ms()
        named: dict[TopicKey, set[int]] = {}
        for topic, partitions in fetch.topics:
            of_topic = named.setdefault(topic, set())
            for at in range(0, len(partitions), TAKEN_AT_A_TIME):
                yield TAKEN_AT_A_TIME
                of_topic.update([one.partition for one in partitions[at : at + TAKEN_AT_A_TIME]])
        session = broker.fetch_sessions.open(
            now_ms,
            privileged=_is_follower(broker, fetch.replica_id),
            uses_topic_ids=self._context.api_version >= FIRST_VERSION_WITH_TOPIC_IDS,
            size=sum(map(len, named.values())),
        )
        if session is None:
            return
        if self._replica is not None:
            session.replica_id, session.replica_epoch = fetch.replica_id, fetch.replica_epoch
            session.replica = self._replica
            session.forgets = partial(_forgotten, broker, fetch.replica_id, self._replica)
        try:
            for (topic, asked), (_, answers) in zip(fetch.topics, self._topics, strict=True):
                for one, answer in zip(asked, answers, strict=True):
                    yield REMEMBER_US
                    partition = None
                    if answer.error_code == ErrorCode.none:
                        partition = broker.replicas.get_by(topic, one.partition)
                    added = session.add(topic, one)
                    _note_name(broker, added)
                    session.note_sent(PartitionRead(added, partition, answer))
            broker.fetch_sessions.used(session, now_ms)
            self._session_id = session.id
        finally:
            if self._session_id == NO_SESSION:  # the peer has left in the middle of it
                broker.fetch_sessions.close(session.id)

    def _respond(self) -> Steps[Response]:
        hand, left = InHand(self._broker), TAKEN_AT_A_TIME
        for topic, answers in self._topics:
            for n, answer in enumerate(answers):
                left -= 1
                if answer.records:
                    answers[n] = hand.take(topic, answer)
                    left -= TAKEN_IS
                if left < 0:
                    yield TAKEN_AT_A_TIME
                    left = TAKEN_AT_A_TIME
        return (yield from self._encoded(self._topics, self._session_id))


class _IncrementalFetch(_Fetching):
    """The partitions of a session that may have changed."""

    __slots__ = ("_looks", "_session")

    def __init__(
        self, broker: Broker, context: RequestContext, fetch: FetchRequestView, session: FetchSession
    ) -> None:
        super().__init__(broker, context, fetch)
        self._session = session
        self._replica = session.replica if session.replica_id == fetch.replica_id else None
        self._looks: list[PartitionRead] = []

    def _length(self) -> int:
        return len(self._session.dirty)

    def _has_known(self) -> bool:
        return len(self._session.partitions) > self._pass.unknown

    def _watched(self) -> Iterable[Hashable]:
        self._session.watch_for(self._looks)
        return (self._session,)

    def _let_go(self) -> None:
        self._looks = []

    def _look(self, started: Awaited) -> Generator[int, None, None]:
        session = self._session
        session.patrol()
        found = self._new_pass(started)
        looks: list[PartitionRead] = []
        named: set[tuple[TopicKey, int]] = set()
        room = max(found.room, 1)  # the first batch comes to who wants no bytes, too
        if found.is_replica:
            named = {(topic, asked.partition) for topic, some in self._fetch.topics for asked in some}
        for one in tuple(session.dirty):
            if found.size >= room:
                if not found.is_replica or self._wait is not None:
                    break  # the others have their turn in the fetches that follow
                # What a replica says of itself counts at once.
                if (one.topic, one.asked.partition) not in named:
                    continue
            yield LOOK_US
            if one not in session.dirty:
                continue  # forgotten meanwhile
            is_named = (one.topic, one.asked.partition) in named
            partition, answer = found.look(one.topic, one.asked, is_named=is_named)
            _note_name(self._broker, one)
            if answer.error_code == ErrorCode.unknown_topic_id and one.name is not None:
                answer = answer._replace(error_code=_went(self._broker, one.name))
            one.is_held_back = bool(found.held_back) and partition in found.held_back
            look = PartitionRead(one, partition, answer)
            session.note_read(look)
            looks.append(look)
        self._pass, self._looks = found, looks

    def _respond(self) -> Steps[Response]:
        session = self._session
        if session.epoch != next_epoch(self._fetch.session_epoch):
            # The client has sent another fetch of the same session, over another connection.
            return _refusal(self._context, ErrorCode.invalid_fetch_session_epoch, session.id)
        topics: list[AnsweredTopic] = []
        hand, left = InHand(self._broker), TAKEN_AT_A_TIME
        for look in self._looks:
            left -= 1
            if not look.needs_response:
                continue
            topic, answer = look.of.topic, look.result
            if answer.records:
                answer = hand.take(topic, answer)
                left -= TAKEN_IS
            session.note_sent(look)
            if left < 0:
                yield TAKEN_AT_A_TIME
                left = TAKEN_AT_A_TIME
            if topics and topics[-1][0] == topic:
                topics[-1][1].append(answer)
            else:
                topics.append((topic, [answer]))
        return (yield from self._encoded(topics, session.id))


def _note_name(broker: Broker, one: SessionPartition) -> None:
    """Note which name the id of a session's topic stands for, as soon as that is known."""
    if one.name is None and isinstance(one.topic, UUID):
        topic = broker.image.topics_by_id.get(one.topic)
        one.name = None if topic is None else topic.name


def _went(broker: Broker, name: str) -> ErrorCode:
    """The error for a topic that was known by this name when the session began, and by its id is no more.

    UNKNOWN_TOPIC_ID is for ids that no name was known of (Kafka `ReplicaManager.readFromLog`).
    """
    if name in broker.image.topics_by_name:
        return ErrorCode.inconsistent_topic_id
    return ErrorCode.unknown_topic_or_partition


def _as_once_said(answer: FetchPartitionResult) -> FetchPartitionResult:
    """To who does not know KAFKA_STORAGE_ERROR, so that it asks again (Kafka
    `KafkaApis.maybeDownConvertStorageError`)."""
    if answer.error_code != ErrorCode.kafka_storage_error:
        return answer
    return answer._replace(error_code=ErrorCode.not_leader_or_follower)


def _forgotten(broker: Broker, replica_id: int, session: ReplicaSession, one: SessionPartition) -> None:
    """A replica's fetches say nothing of the partition any more."""
    partition = broker.replicas.get_by(one.topic, one.asked.partition)
    if partition is not None and partition.leading is not None:
        partition.leading.detach(replica_id, session)


def _is_follower(broker: Broker, replica_id: int) -> bool:
    """Return whether another broker of this cluster fetches: its sessions go before those of consumers."""
    return replica_id >= 0 and replica_id != broker.config.node_id and replica_id in broker.image.brokers
