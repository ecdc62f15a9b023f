"""Markers of decided transactions: which broker gets which, until every partition has its own. [P]

A transaction that is prepared (its decision is committed) gets a marker in each of its partitions; then its
coordinator writes that it is complete. `TransactionMarkers` is told what happens and returns effects from
`advance`, which does a bounded amount of work per call. One request at a time is under way to each broker; it
carries the markers of all transactions that are waiting for that broker, within bounds.

- A partition that refuses for now (`AGAIN`), and those of a lost connection, are asked again after 100 ms to
  1 s, and at once when the image names another leader. Those without a leader wait for one.
- A partition that the image does not have is done: it was deleted. That is safe after an election, too: the
  add was committed under an earlier leader of the coordinator's partition, which had applied the making of
  the topic and not yet its own deposition; so the making is before the election in the metadata log.
- INVALID_PRODUCER_EPOCH counts the partition as done (`MarkerRefused` tells of it): no later attempt could
  succeed. What it leaves open is a hanging transaction.
- TRANSACTION_COORDINATOR_FENCED means that another node coordinates the id: the transaction waits for the
  `deposed` that follows, and nothing of it is sent any more.

So each decision is carried out (invariant X3), and nothing hangs while all brokers are there (X11).
Nothing is sent for a transaction after `deposed`; the answer to a request that was under way then is ignored.
(Kafka `TransactionMarkerChannelManager`, `TransactionMarkerRequestCompletionHandler`.)

>>> machine = TransactionMarkers(lambda topic, partition: 2)
>>> machine.prepared(0, PreparedTransaction("pay", 7, 3, 1, True, 2, frozenset({("a", 0)})), 0)
>>> [sending] = machine.advance(0)
>>> sending.broker, sending.markers[0].topics
(2, (('a', (0,)),))
>>> machine.answered(2, [(7, "a", 0, ErrorCode.none)], 5)
>>> [type(effect).__name__ for effect in machine.advance(5)]
['MarkersWritten']
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from service.base.backoff import doubled
from service.transactions.marker_requests import (
    Disconnect,
    MarkerEffect,
    MarkerMetrics,
    MarkerRefused,
    MarkersOfTransaction,
    MarkersWritten,
    PreparedTransaction,
    SendMarkers,
    TopicPartition,
)

LeaderOf: TypeAlias = Callable[[str, int], int | None]
"""Returns the leader of a partition in the newest image: -1 without one, None where there is no partition."""
MarkerResult: TypeAlias = tuple[int, str, int, ErrorCode | int]
"""Producer id, topic, partition and outcome of one marker."""

NO_BROKER: Final = -1
FIRST_PAUSE_MS: Final = 100
LONGEST_PAUSE_MS: Final = 1_000
MOST_PARTITIONS: Final = 1_000
"""Most markers of one request, and most partitions that one `advance` looks at, or finds the brokers of."""
MOST_BYTES: Final = 256 << 10
"""Most bytes of one request, except that it has one marker in any case."""
_MARKER_BYTES: Final = 32
_TOPIC_BYTES: Final = 8

AGAIN: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.not_enough_replicas,
        ErrorCode.not_enough_replicas_after_append,
        ErrorCode.request_timed_out,
        ErrorCode.kafka_storage_error,
    }
)
"""Refusals that another attempt may overcome."""
DONE: Final = frozenset(
    {ErrorCode.none, ErrorCode.unsupported_for_message_format, ErrorCode.unsupported_version}
)
"""Outcomes that need no further attempt: such a partition took no transactional records either."""


class _Lease:
    """Leadership of one partition of ``__transaction_state``."""

    __slots__ = ("is_over", "pending", "shard")

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.is_over = False
        self.pending: dict[str, _Sending] = {}


class _Sending:
    """One prepared transaction: the partitions that have no marker yet."""

    __slots__ = ("attempts", "is_dropped", "is_fenced", "lease", "left", "transaction")

    def __init__(self, lease: _Lease, transaction: PreparedTransaction) -> None:
        self.lease = lease
        self.transaction = transaction
        self.left = set(transaction.partitions)
        self.attempts: dict[TopicPartition, int] = {}
        """failed attempts, of partitions with some"""
        self.is_fenced = False
        self.is_dropped = False

    @property
    def is_over(self) -> bool:
        """True if nothing of it is to be sent any more."""
        return self.is_dropped or self.is_fenced or self.lease.is_over


_Waiting: TypeAlias = dict[str, dict[tuple["_Sending", int], None]]
"""Markers that wait, by topic; each is a transaction and a partition."""


class _Destination:
    """Markers for one broker."""

    __slots__ = ("failures", "in_flight", "is_cut", "waiting")

    def __init__(self) -> None:
        self.waiting: _Waiting = {}
        self.in_flight: dict[tuple[int, str, int], _Sending] | None = None
        """markers of the request that is under way, by producer id, topic and partition"""
        self.is_cut = False
        """that request is to be lost"""
        self.failures = 0
        """requests in a row that were lost"""


class _Rest(NamedTuple):
    """A marker that waits for its next attempt, or for a leader."""

    due_ms: int
    broker: int
    """leader that it was refused by, or lost at; -1 where there was none"""


class TransactionMarkers:
    """Markers that this node has to have written, as a coordinator."""

    def __init__(self, leader_of: LeaderOf, metrics: MarkerMetrics | None = None) -> None:
        self.metrics = metrics or MarkerMetrics()
        self._leader_of = leader_of
        self._leases: dict[int, _Lease] = {}
        self._destinations: dict[int, _Destination] = {}
        self._ready: dict[int, None] = {}
        """brokers to which a request may be due"""
        self._to_route: deque[tuple[_Sending, list[TopicPartition]]] = deque()
        self._resting: dict[str, dict[tuple[_Sending, int], _Rest]] = {}
        self._due: list[tuple[int, int, _Sending, str, int]] = []
        """heap of the same by time; a marker that no longer rests until then is skipped"""
        self._changed: dict[str, None] = {}
        """topics in which leaders may have changed"""
        self._looking: Iterator[None] | None = None
        self._numbers = 0
        self._completing: dict[tuple[int, str], PreparedTransaction] = {}
        self._to_complete: list[tuple[int, int, int, PreparedTransaction, int]] = []
        """heap of completions that failed: due time, number, shard, transaction, failures"""
        self._failed_completions: dict[tuple[int, str], int] = {}
        self._effects: list[MarkerEffect] = []

    # -- events

    def prepared(self, shard: int, transaction: PreparedTransaction, now_ms: int) -> None:
        """Begin to send the markers of a transaction of this partition of ``__transaction_state``. It
        replaces what is left of an earlier one of the same id."""
        lease = self._leases.get(shard)
        if lease is None:
            lease = self._leases[shard] = _Lease(shard)
        before = lease.pending.get(transaction.transactional_id)
        if before is not None:
            before.is_dropped = True
        sending = lease.pending[transaction.transactional_id] = _Sending(lease, transaction)
        self._forget_completion(shard, transaction.transactional_id)
        if sending.left:
            self._to_route.append((sending, sorted(sending.left, reverse=True)))
        else:
            self._written(sending)

    def deposed(self, shard: int) -> None:
        """Drop the transactions of a partition that this node no longer coordinates, or coordinates anew."""
        lease = self._leases.pop(shard, None)
        if lease is not None:
            lease.is_over = True
        for key in [key for key in self._completing if key[0] == shard]:
            self._forget_completion(*key)

    def answered(self, broker: int, results: Iterable[MarkerResult], now_ms: int) -> None:
        """Take the outcomes of the request that is under way to `broker`; a marker without one is sent
        again."""
        destination, asked = self._take_in_flight(broker)
        if destination is None:
            return
        destination.failures = 0
        for producer_id, topic, partition, error in results:
            sending = asked.pop((producer_id, topic, partition), None)
            if sending is not None and not sending.is_over:
                self._outcome(broker, sending, topic, partition, error, now_ms)
        for (_, topic, partition), sending in asked.items():
            self._rest(broker, sending, topic, partition, now_ms)

    def lost(self, broker: int, now_ms: int) -> None:
        """Send the markers of the request that is under way to `broker` again: nobody knows its outcome."""
        destination, asked = self._take_in_flight(broker)
        if destination is None:
            return
        destination.failures += 1
        for (_, topic, partition), sending in asked.items():
            self._rest(broker, sending, topic, partition, now_ms, destination.failures)

    def image_changed(self, topics: Iterable[str] | None) -> None:
        """Look again at what waits in these topics (None: in all), as their leaders may have changed."""
        for broker, destination in self._destinations.items():
            if topics is None:
                self._changed.update(dict.fromkeys(destination.waiting))
            self._cut_if_deposed(broker, destination)
        self._changed.update(dict.fromkeys(self._resting if topics is None else topics))
        if self._changed and self._looking is None:
            self._looking = self._look_again()

    def is_to_complete(self, shard: int, transaction: PreparedTransaction) -> bool:
        """Return whether the coordinator is still to be told that all markers of this transaction are there:
        not if the next one of the id is decided, which may have the same producer and epoch."""
        return self._completing.get((shard, transaction.transactional_id)) is transaction

    def completed(self, shard: int, transactional_id: str) -> None:
        """Note that a transaction is complete, or that its coordinator is no longer here."""
        self._forget_completion(shard, transactional_id)

    def not_completed(self, shard: int, transaction: PreparedTransaction, now_ms: int) -> None:
        """Tell the coordinator again, some time later, that the markers of this transaction are written."""
        key = (shard, transaction.transactional_id)
        if self._completing.get(key) is not transaction:
            return
        failures = self._failed_completions[key] = self._failed_completions.get(key, 0) + 1
        due_ms = now_ms + doubled(failures, FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
        heappush(self._to_complete, (due_ms, self._number(), shard, transaction, failures))

    # -- work

    def advance(self, now_ms: int) -> list[MarkerEffect]:
        """Do a bounded amount of work and return the effects. Call it after each event, as long as
        `has_work`, and at `due_ms`."""
        self._wake_due(now_ms)
        if self._looking is not None:
            looked_at = sum(1 for _ in islice(self._looking, MOST_PARTITIONS))
            if looked_at < MOST_PARTITIONS:
                self._looking = None
        self._route(now_ms)
        for broker in tuple(self._ready):
            del self._ready[broker]
            self._request(broker)
        effects, self._effects = self._effects, []
        return effects

    @property
    def has_work(self) -> bool:
        """True if `advance` has something to do now."""
        return bool(self._to_route or self._ready or self._effects or self._looking)

    @property
    def due_ms(self) -> int | None:
        """Time at which `advance` has something to do; None while nothing waits for a time."""
        due = [heap[0][0] for heap in (self._due, self._to_complete) if heap]
        return min(due, default=None)

    # -- figures

    @property
    def transactions(self) -> int:
        """Number of transactions whose markers are not all written."""
        return sum(len(lease.pending) for lease in self._leases.values())

    @property
    def waiting(self) -> int:
        """Number of partitions without their marker."""
        return sum(len(one.left) for lease in self._leases.values() for one in lease.pending.values())

    @property
    def without_leader(self) -> int:
        """Number of markers whose partition has no leader (Kafka ``UnknownDestinationQueueSize``)."""
        return sum(
            rest.broker == NO_BROKER and not sending.is_over
            for resting in self._resting.values()
            for (sending, _), rest in resting.items()
        )

    @property
    def completions_to_retry(self) -> int:
        """Number of transactions whose completion could not be written (``LogAppendRetryQueueSize``)."""
        return len(self._failed_completions)

    # -- outcomes

    def _take_in_flight(
        self, broker: int
    ) -> tuple[_Destination | None, dict[tuple[int, str, int], _Sending]]:
        destination = self._destinations.get(broker)
        if destination is None or destination.in_flight is None:
            return None, {}
        asked, destination.in_flight, destination.is_cut = destination.in_flight, None, False
        self._ready[broker] = None
        return destination, asked

    def _outcome(
        self, broker: int, sending: _Sending, topic: str, partition: int, error: ErrorCode | int, now_ms: int
    ) -> None:
        if error in DONE:
            self._partition_done(sending, topic, partition)
        elif error in AGAIN:
            self._rest(broker, sending, topic, partition, now_ms)
        elif error == ErrorCode.transaction_coordinator_fenced:
            sending.is_fenced = True
            self._effects.append(MarkerRefused(sending.transaction, topic, partition, error))
        elif error == ErrorCode.invalid_producer_epoch:
            self.metrics.refused += 1
            self._effects.append(MarkerRefused(sending.transaction, topic, partition, error))
            self._partition_done(sending, topic, partition)
        else:  # what no sound peer answers; that of a partition with a problem passes once it is repaired
            self._effects.append(MarkerRefused(sending.transaction, topic, partition, error))
            self._rest(broker, sending, topic, partition, now_ms)

    def _partition_done(self, sending: _Sending, topic: str, partition: int) -> None:
        sending.left.discard((topic, partition))
        if not sending.left and not sending.is_over:
            self._written(sending)

    def _written(self, sending: _Sending) -> None:
        lease, transaction = sending.lease, sending.transaction
        sending.is_dropped = True
        del lease.pending[transaction.transactional_id]
        self._completing[lease.shard, transaction.transactional_id] = transaction
        self._effects.append(MarkersWritten(lease.shard, transaction))

    def _forget_completion(self, shard: int, transactional_id: str) -> None:
        self._completing.pop((shard, transactional_id), None)
        self._failed_completions.pop((shard, transactional_id), None)

    # -- waiting

    def _rest(
        self,
        broker: int,
        sending: _Sending,
        topic: str,
        partition: int,
        now_ms: int,
        failures: int | None = None,
    ) -> None:
        """Let a marker wait for its next attempt, unless the image names another leader already."""
        if sending.is_over:
            return
        self.metrics.retries += 1
        if broker != NO_BROKER and self._leader_of(topic, partition) != broker:
            self._to_route.append((sending, [(topic, partition)]))
            return
        if failures is None:
            failures = sending.attempts[topic, partition] = sending.attempts.get((topic, partition), 0) + 1
        self._rest_until(
            now_ms + doubled(failures, FIRST_PAUSE_MS, LONGEST_PAUSE_MS), broker, sending, topic, partition
        )

    def _rest_until(self, due_ms: int, broker: int, sending: _Sending, topic: str, partition: int) -> None:
        self._resting.setdefault(topic, {})[sending, partition] = _Rest(due_ms, broker)
        heappush(self._due, (due_ms, self._number(), sending, topic, partition))

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _wake(self, sending: _Sending, topic: str, partition: int) -> None:
        resting = self._resting[topic]
        del resting[sending, partition]
        if not resting:
            del self._resting[topic]
        if not sending.is_over:
            self._to_route.append((sending, [(topic, partition)]))

    def _wake_due(self, now_ms: int) -> None:
        due = self._due
        for _ in range(MOST_PARTITIONS):
            if not due or due[0][0] > now_ms:
                break
            due_ms, _, sending, topic, partition = heappop(due)
            rest = self._resting.get(topic, {}).get((sending, partition))
            if rest is not None and rest.due_ms == due_ms:
                self._wake(sending, topic, partition)
        while self._to_complete and self._to_complete[0][0] <= now_ms:
            _, _, shard, transaction, failures = heappop(self._to_complete)
            key = (shard, transaction.transactional_id)
            if self._completing.get(key) is transaction and self._failed_completions.get(key) == failures:
                self._effects.append(MarkersWritten(shard, transaction))

    # -- brokers

    def _route(self, now_ms: int) -> None:
        """Give markers to the brokers that lead their partitions."""
        left = MOST_PARTITIONS
        while self._to_route and left > 0:
            sending, partitions = self._to_route[0]
            if sending.is_over:
                self._to_route.popleft()
                continue
            some = partitions[-left:]
            del partitions[-left:]
            left -= len(some)
            if not partitions:
                self._to_route.popleft()
            for topic, partition in reversed(some):
                self._route_one(sending, topic, partition, now_ms)

    def _route_one(self, sending: _Sending, topic: str, partition: int, now_ms: int) -> None:
        leader = self._leader_of(topic, partition)
        if leader is None:
            self._partition_done(sending, topic, partition)
        elif leader == NO_BROKER:
            self._rest_until(now_ms + LONGEST_PAUSE_MS, NO_BROKER, sending, topic, partition)
        else:
            destination = self._destinations.get(leader)
            if destination is None:
                destination = self._destinations[leader] = _Destination()
            destination.waiting.setdefault(topic, {})[sending, partition] = None
            self._ready[leader] = None

    def _look_again(self) -> Iterator[None]:
        """Take what waits for brokers that no longer lead its partitions to others, one by one."""
        while self._changed:
            topic = next(iter(self._changed))
            del self._changed[topic]
            for broker, destination in tuple(self._destinations.items()):
                waiting = destination.waiting
                for sending, partition in tuple(waiting.get(topic, ())):
                    yield
                    if (sending, partition) in waiting.get(topic, ()):  # it was not sent meanwhile
                        self._leave(broker, waiting, sending, topic, partition)
            for sending, partition in tuple(self._resting.get(topic, ())):
                yield
                rest = self._resting.get(topic, {}).get((sending, partition))
                if rest is not None and self._leader_of(topic, partition) != rest.broker:
                    self._wake(sending, topic, partition)

    def _leave(self, broker: int, waiting: _Waiting, sending: _Sending, topic: str, partition: int) -> None:
        if self._leader_of(topic, partition) == broker:
            return
        del waiting[topic][sending, partition]
        if not waiting[topic]:
            del waiting[topic]
        if not sending.is_over:
            self._to_route.append((sending, [(topic, partition)]))

    def _cut_if_deposed(self, broker: int, destination: _Destination) -> None:
        """Lose a request if its broker leads none of its partitions any more: it may be gone, and the answer
        would be waited for in vain. A broker that is there answers before long."""
        asked = destination.in_flight
        if not asked or destination.is_cut:
            return
        if all(self._leader_of(topic, partition) != broker for _, topic, partition in asked):
            destination.is_cut = True
            self._effects.append(Disconnect(broker))

    def _request(self, broker: int) -> None:
        """Send what waits for `broker`, within the bounds of a request, unless one is under way."""
        destination = self._destinations[broker]
        if destination.in_flight is not None:
            return
        if not destination.waiting:
            if not destination.failures:
                del self._destinations[broker]
            return
        asked: dict[tuple[int, str, int], _Sending] = {}
        found: dict[_Sending, dict[str, list[int]]] = {}
        size = 0
        for topic, markers in tuple(destination.waiting.items()):
            for sending, partition in tuple(markers):
                if len(asked) >= MOST_PARTITIONS or (asked and size > MOST_BYTES):
                    break
                key = (sending.transaction.producer_id, topic, partition)
                if key in asked:  # a broken log gave two ids one producer: each answer belongs to one
                    continue
                del markers[sending, partition]
                if sending.is_over:
                    continue
                topics = found.get(sending)
                if topics is None:
                    topics = found[sending] = {}
                    size += _MARKER_BYTES
                indexes = topics.get(topic)
                if indexes is None:
                    indexes = topics[topic] = []
                    size += _TOPIC_BYTES + len(topic)
                indexes.append(partition)
                size += 4
                asked[key] = sending
            if not markers:
                del destination.waiting[topic]
            if len(asked) >= MOST_PARTITIONS:
                break
        if not asked:
            return
        destination.in_flight = asked
        self.metrics.requests += 1
        self._effects.append(SendMarkers(broker, tuple(_markers(*one) for one in found.items())))


def _markers(sending: _Sending, topics: dict[str, list[int]]) -> MarkersOfTransaction:
    transaction = sending.transaction
    return MarkersOfTransaction(
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.coordinator_epoch,
        transaction.is_commit,
        transaction.transaction_version,
        tuple((topic, tuple(partitions)) for topic, partitions in topics.items()),
    )
