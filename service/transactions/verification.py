"""Verification of transactional batches: is a partition part of its transaction? [P]

Before the first batch of a transaction is appended to a partition, the node asks the coordinator of its
transactional id (AddPartitionsToTxn 4 and later): whether the partition is part of it, where the client adds
partitions by itself (TV1), or to add it (TV2). `VerificationQueue` is told what happens and returns effects.
One request at a time is under way to each coordinator; it carries what has come meanwhile. A question to the
coordinator of this node is an effect of its own, without a request.

Of one transactional id one question at most waits for a coordinator, as in Kafka: a newer epoch answers the
waiting one with INVALID_PRODUCER_EPOCH, the same epoch with NETWORK_EXCEPTION (its client has given up the
connection and retries), an older one is itself answered with INVALID_PRODUCER_EPOCH.

While the transaction before is being completed, adds get CONCURRENT_TRANSACTIONS; they are repeated until
`RetrySettings.longest_ms` have passed since the question. (Kafka `AddPartitionsToTxnManager`,
`ReplicaManager.handleProduceAppend`.)

>>> machine = VerificationQueue(lambda transactional_id: 2, own_id=1)
>>> asked = Asked(TransactionQuestion("pay", 7, 3, (("a", 0),), Mode.ADD), 0)
>>> [request] = machine.ask(asked, 0)
>>> request.broker, request.questions == (asked.question,)
(2, True)
>>> [answer] = machine.answered(2, {"pay": {("a", 0): ErrorCode.none}}, 4)
>>> answer.errors
{('a', 0): <ErrorCode.none: 0>}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from service.base.metrics import Histogram

TopicPartition: TypeAlias = tuple[str, int]
CoordinatorOf: TypeAlias = Callable[[str], int | None]
"""Returns the broker that coordinates a transactional id; None: there is none now."""
Errors: TypeAlias = Mapping[TopicPartition, ErrorCode | int]

MOST_PARTITIONS: Final = 1_000
"""Partitions of one request beyond which it takes no further question."""

_NO_COORDINATOR: Final = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
    }
)


class Mode(Enum):
    """The question about a client's partitions (Kafka ``TransactionSupportedOperation``)."""

    VERIFY_OLD = "verify, for a client that does not know TRANSACTION_ABORTABLE"
    VERIFY = "verify"
    ADD = "add"


def mode_of_produce(version: int) -> Mode:
    """Return the mode of a Produce request."""
    return Mode.ADD if version > 11 else Mode.VERIFY if version > 10 else Mode.VERIFY_OLD


def mode_of_txn_offset_commit(version: int) -> Mode:
    """Return the mode of a TxnOffsetCommit request."""
    return Mode.ADD if version > 4 else Mode.VERIFY if version > 3 else Mode.VERIFY_OLD


def produce_error(error: ErrorCode | int, mode: Mode) -> ErrorCode | int:
    """Return the error for a Produce: NOT_ENOUGH_REPLICAS where the question has no answer yet, as every
    client retries that without new metadata (Kafka `ReplicaManager`)."""
    if error in _NO_COORDINATOR:
        return ErrorCode.not_enough_replicas
    if error == ErrorCode.concurrent_transactions and mode is not Mode.ADD:
        return ErrorCode.not_enough_replicas
    return error


class TransactionQuestion(NamedTuple):
    """Partitions of one transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    mode: Mode


class AskBroker(NamedTuple):
    """Effect: send a request with these questions; then call `answered`, `refused`, `lost` or
    `unsupported`."""

    broker: int
    questions: tuple[TransactionQuestion, ...]


class AskHere(NamedTuple):
    """Effect: ask the coordinator of this node; then call `answered_here`."""

    asked: Asked


class Answered(NamedTuple):
    """Effect: `asked` has its answer, an error for each partition."""

    asked: Asked
    errors: Errors


VerificationEffect: TypeAlias = AskBroker | AskHere | Answered


class Asked:
    """A question that is not answered, from `VerificationQueue.ask` on."""

    __slots__ = ("began_ms", "question")

    def __init__(self, question: TransactionQuestion, began_ms: int) -> None:
        self.question = question
        self.began_ms = began_ms


class RetrySettings(NamedTuple):
    """Repetition of adds that get CONCURRENT_TRANSACTIONS; Kafka's keys in brackets."""

    pause_ms: int = 20
    """``add.partitions.to.txn.retry.backoff.ms``"""
    longest_ms: int = 100
    """``add.partitions.to.txn.retry.backoff.max.ms``"""


class VerificationMetrics:
    """Counters of verifications."""

    def __init__(self) -> None:
        self.failures = 0
        """partitions that were answered with an error"""
        self.requests = 0
        """requests sent to coordinators on other nodes"""
        self.seconds = Histogram()
        """from each question to its answer"""


class _Coordinator:
    """Questions to one broker."""

    __slots__ = ("in_flight", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[str, Asked] = {}
        """by transactional id, in order of arrival"""
        self.in_flight: dict[str, Asked] | None = None


class VerificationQueue:
    """Questions of this node to the coordinators of transactional ids."""

    def __init__(
        self,
        coordinator_of: CoordinatorOf,
        own_id: int,
        retries: Callable[[], RetrySettings] = RetrySettings,
        metrics: VerificationMetrics | None = None,
    ) -> None:
        self.metrics = metrics or VerificationMetrics()
        self._coordinator_of = coordinator_of
        self._own_id = own_id
        self._retries = retries
        self._coordinators: dict[int, _Coordinator] = {}
        self._paused: list[tuple[int, int, Asked]] = []
        """heap of questions to be repeated: time, number, question"""
        self._numbers = 0

    def ask(self, asked: Asked, now_ms: int) -> list[VerificationEffect]:
        """Ask the coordinator."""
        question = asked.question
        broker = self._coordinator_of(question.transactional_id)
        if broker is None:
            return [self._all(asked, ErrorCode.coordinator_not_available, now_ms)]
        if broker == self._own_id:
            return [AskHere(asked)]
        coordinator = self._coordinators.get(broker)
        if coordinator is None:
            coordinator = self._coordinators[broker] = _Coordinator()
        effects: list[VerificationEffect] = []
        before = coordinator.waiting.pop(question.transactional_id, None)
        if before is not None:
            if before.question.producer_epoch > question.producer_epoch:
                coordinator.waiting[question.transactional_id] = before
                return [self._all(asked, ErrorCode.invalid_producer_epoch, now_ms)]
            is_older = before.question.producer_epoch < question.producer_epoch
            error = ErrorCode.invalid_producer_epoch if is_older else ErrorCode.network_exception
            effects.append(self._all(before, error, now_ms))
        coordinator.waiting[question.transactional_id] = asked
        if coordinator.in_flight is None:
            effects.append(self._request(broker, coordinator))
        return effects

    def answered(self, broker: int, results: Mapping[str, Errors], now_ms: int) -> list[VerificationEffect]:
        """Take the answer to the request that is under way to `broker`, by transactional id. What it lacks
        gets NETWORK_EXCEPTION."""
        effects: list[VerificationEffect] = []
        for transactional_id, asked in self._take_in_flight(broker).items():
            effects += self.answered_here(asked, results.get(transactional_id, {}), now_ms)
        return effects + self._next(broker)

    def answered_here(self, asked: Asked, results: Errors, now_ms: int) -> list[VerificationEffect]:
        """Take the answer of this node's coordinator to `asked`."""
        question, retries = asked.question, self._retries()
        errors = {
            one: _translated(results.get(one, ErrorCode.network_exception), question.mode)
            for one in question.partitions
        }
        if (
            question.mode is Mode.ADD
            and now_ms - asked.began_ms < retries.longest_ms
            and ErrorCode.concurrent_transactions in errors.values()
        ):
            self._numbers += 1
            heappush(self._paused, (now_ms + retries.pause_ms, self._numbers, asked))
            return []
        return [self._answered(asked, errors, now_ms)]

    def refused(self, broker: int, error: ErrorCode | int, now_ms: int) -> list[VerificationEffect]:
        """Take the error of a whole request. A client is not told that this node lacks a right."""
        if error == ErrorCode.cluster_authorization_failed:
            error = ErrorCode.invalid_txn_state
        asked = self._take_in_flight(broker).values()
        return [self._all(one, error, now_ms) for one in asked] + self._next(broker)

    def lost(self, broker: int, now_ms: int) -> list[VerificationEffect]:
        """Answer the questions of a request whose connection was lost, or that had no response in time."""
        return self.refused(broker, ErrorCode.network_exception, now_ms)

    def unsupported(self, broker: int, now_ms: int) -> list[VerificationEffect]:
        """Let the partitions of a request pass: the coordinator is of a release without verification."""
        return self.refused(broker, ErrorCode.none, now_ms)

    def due(self, now_ms: int) -> list[VerificationEffect]:
        """Repeat the questions whose pause is over."""
        effects: list[VerificationEffect] = []
        while self._paused and self._paused[0][0] <= now_ms:
            effects += self.ask(heappop(self._paused)[2], now_ms)
        return effects

    @property
    def due_ms(self) -> int | None:
        """Time at which `due` has something to do; None while no question pauses."""
        return self._paused[0][0] if self._paused else None

    @property
    def waiting(self) -> int:
        """Number of questions without an answer, except those to this node's coordinator."""
        return len(self._paused) + sum(
            len(one.waiting) + len(one.in_flight or ()) for one in self._coordinators.values()
        )

    def _take_in_flight(self, broker: int) -> dict[str, Asked]:
        coordinator = self._coordinators.get(broker)
        if coordinator is None or coordinator.in_flight is None:
            return {}
        asked, coordinator.in_flight = coordinator.in_flight, None
        return asked

    def _next(self, broker: int) -> list[VerificationEffect]:
        coordinator = self._coordinators.get(broker)
        if coordinator is None or coordinator.in_flight is not None:
            return []
        if coordinator.waiting:
            return [self._request(broker, coordinator)]
        del self._coordinators[broker]
        return []

    def _request(self, broker: int, coordinator: _Coordinator) -> AskBroker:
        asked = coordinator.in_flight = {}
        count = 0
        for transactional_id, one in tuple(coordinator.waiting.items()):
            if count >= MOST_PARTITIONS:
                break
            count += len(one.question.partitions)
            asked[transactional_id] = one
            del coordinator.waiting[transactional_id]
        self.metrics.requests += 1
        return AskBroker(broker, tuple(one.question for one in asked.values()))

    def _all(self, asked: Asked, error: ErrorCode | int, now_ms: int) -> Answered:
        return self._answered(asked, dict.fromkeys(asked.question.partitions, error), now_ms)

    def _answered(self, asked: Asked, errors: Errors, now_ms: int) -> Answered:
        metrics = self.metrics
        metrics.failures += sum(error != ErrorCode.none for error in errors.values())
        metrics.seconds.observe((now_ms - asked.began_ms) / 1000)
        return Answered(asked, errors)


def _translated(error: ErrorCode | int, mode: Mode) -> ErrorCode | int:
    """Return the coordinator's error as the clients of a partition's leader know it."""
    if error == ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if error == ErrorCode.transaction_abortable and mode is Mode.VERIFY_OLD:
        return ErrorCode.invalid_txn_state
    return error
