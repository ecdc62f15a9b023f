"""Shard of one partition of `__transaction_state`: its transactional ids, and all decisions about them. [P]

A state is pending while its record is not committed, or while its transaction is decided and not completed:
Kafka's coordinator has the next state pending then. Whoever asks meanwhile gets CONCURRENT_TRANSACTIONS. One
exception, ours: partitions are added on top of a pending add of the same producer, as the first batches of
a TV2 transaction on several brokers meet; all are answered when the last is committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from math import inf
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.base.timeline import Journal
from service.coordinator.shard import (
    NOTHING,
    CoordinatorRecord,
    CoordinatorResult,
    Effect,
    Outcome,
    Schedule,
)
from service.transactions import records
from service.transactions.adding import add, verify
from service.transactions.config import RETRY_MS, TV2, TransactionSettings
from service.transactions.ending import end_keeping_epoch, end_raising_epoch
from service.transactions.expiry import Deadlines, sweep_ms
from service.transactions.ids import TransactionalIds, record_of
from service.transactions.init import fence, init
from service.transactions.listing import TransactionFilter, listed
from service.transactions.marker_requests import PreparedTransaction
from service.transactions.metadata import Partition, TransactionMetadata
from service.transactions.metrics import TransactionMetrics
from service.transactions.requests import (
    AddPartitions,
    DescribedTransaction,
    EndTransaction,
    InitTransactions,
    ListedTransaction,
    ProducerIdNeeded,
    TransactionalProducer,
)
from service.transactions.states import ONGOING, PREPARE_ABORT, PREPARE_COMMIT, PREPARED

TIMEOUTS: Final = "timeouts"
IDLE: Final = "idle ids"
FOUND_PREPARED: Final = "decided before the load"
COMPLETE: Final = "complete"
AT_ONCE: Final = 100
"""Transactions of one decision that is nobody's request."""
_MOST_BYTES: Final = 64 << 10
"""Bytes of the records of such a decision, where it has more than one."""
_GROWTH: Final = 64
"""Bytes by which the record of an end may be larger than that of the transaction: it has two more fields."""
_LOOKED_AT: Final = 2000
"""Ids at rest that one decision looks at."""
_LISTED_A_STEP: Final = 50


class Prepared(NamedTuple):
    """Event: Prepare states."""

    transactions: tuple[PreparedTransaction, ...]
    timeouts: int = 0


class Completed(NamedTuple):
    """Event: Complete states. The Prepare state of each says which transaction it was: below TV2 the next one
    has the same producer and epoch."""

    transactions: tuple[tuple[str, TransactionMetadata], ...]
    decided_ms: int


class TransactionShard:
    """A `Shard`. Calls `settings` at each use, as they change while the node runs. Its requests are checked
    (`requests.check_id`, `init.check_init`) before they come here.

    `on_prepared` is told each decision once it is committed, and those that were found in the log: markers
    are to be written for it, then `markers_written` called. `on_id_needed` is told an id whose transaction is
    timed out and takes a new producer id with it: `abort_timed_out` is to be called. `warn` logs a message
    for the operator. `on_unloaded` is called when the shard is dropped.
    """

    def __init__(
        self,
        partition: int,
        coordinator_epoch: int,
        settings: Callable[[], TransactionSettings],
        metrics: TransactionMetrics,
        on_prepared: Callable[[PreparedTransaction], None],
        on_id_needed: Callable[[str], None],
        warn: Callable[[str], None],
        on_unloaded: Callable[[], None],
    ) -> None:
        self.partition = partition
        self.coordinator_epoch = coordinator_epoch
        self.settings = settings
        self.metrics = metrics
        self.on_prepared = on_prepared
        self.on_id_needed = on_id_needed
        self._warn = warn
        self._on_unloaded = on_unloaded
        self._journal = Journal()
        self.ids = TransactionalIds(self._journal)
        self._deadlines = Deadlines()
        self._timeouts_ms: float = inf
        """time for which the timer is set"""
        self._waits_for_idle = False
        self._found: deque[str] = deque()
        self._skipped: set[str] = set()
        self._next_offset = 0
        self._is_cleaned = False

    @property
    def journal(self) -> Journal:
        return self._journal

    # Replay.

    def replay(
        self, offset: int, key: bytes, value: bytes | None, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        if offset > self._next_offset:
            # A replica that was away has what it fetched before, and behind it what compaction has left:
            # records between a state and a later one of the same id may be missing in it for good.
            self._is_cleaned = True
        self._next_offset = offset + 1
        transactional_id = records.decode_key(key)
        if isinstance(transactional_id, int):
            self._skip(f"keys of type {transactional_id}", f", from offset {offset} on,")
            return
        if value is None:
            self.ids.forget(transactional_id)
            self._deadlines.discard(transactional_id)
            return
        after = self.ids.replay(transactional_id, value, is_cleaned=self._is_cleaned)
        if isinstance(after, int):
            self._skip(f"values of version {after}", f", from offset {offset} on,")
            return
        self._waits_for_idle = True  # one with a transaction will be at rest
        if after.state is ONGOING:
            due_ms = self._sweep_ms(after)
            self._deadlines.set(transactional_id, due_ms)
            self._timeouts_ms = min(self._timeouts_ms, due_ms)
        else:
            self._deadlines.discard(transactional_id)

    def _skip(self, kind: str, where: str = "") -> None:
        if kind not in self._skipped:
            self._skipped.add(kind)
            self._warn(f"__transaction_state-{self.partition}: {kind}{where} are unknown and skipped")

    def replay_marker(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        # States are no part of transactions: somebody has written it there, and it means nothing.
        self._skip("markers")

    # Requests.

    def init_producer_id(
        self, request: InitTransactions, fresh_id: int | None, now_ms: int
    ) -> CoordinatorResult[TransactionalProducer]:
        """Give the id's next producer. Raises `RequestError`, also if the answer is to ask again, and
        `ProducerIdNeeded`."""
        transactional_id = request.transactional_id
        if self.ids.is_pending(transactional_id):
            raise RequestError(ErrorCode.concurrent_transactions)
        after = init(request, self.ids.newest(transactional_id), self.settings(), fresh_id, now_ms)
        if after.state is PREPARE_ABORT:
            # The client asks again, and gets an epoch of its own then.
            response: Any = RequestError(ErrorCode.concurrent_transactions)
            return self._prepare(transactional_id, after, response)
        effects = () if self._waits_for_idle else (self._wait_for_idle(now_ms),)
        response = TransactionalProducer(after.producer_id, after.producer_epoch)
        return CoordinatorResult(
            response, (self._record(transactional_id, after),), effects, patience_ms=after.timeout_ms
        )

    def add_partitions(self, request: AddPartitions, now_ms: int) -> CoordinatorResult[None]:
        """Add partitions to a transaction. Raises `RequestError`."""
        transactional_id = request.transactional_id
        there = self.ids.newest(transactional_id)
        if self.ids.is_pending(transactional_id) and not _is_add_of(request, there):
            raise RequestError(ErrorCode.concurrent_transactions)
        after = add(request, there, now_ms)
        if after is None:
            return CoordinatorResult(None)
        self._check_version(request.client_version)
        due_ms = self._sweep_ms(after)
        effects = (Schedule(TIMEOUTS, due_ms),) if due_ms < self._timeouts_ms else ()
        return CoordinatorResult(
            None,
            (self._record(transactional_id, after),),
            effects,
            patience_ms=after.timeout_ms,
            spare_bytes=_GROWTH,  # or it could neither be ended nor time out
        )

    def verify_partitions(self, request: AddPartitions) -> dict[Partition, ErrorCode]:
        """Return for each partition whether it is part of the transaction. Raises `RequestError`."""
        transactional_id = request.transactional_id
        return verify(self.ids.committed(transactional_id), request.producer, request.partitions)

    def end_transaction(
        self, request: EndTransaction, fresh_id: int | None, now_ms: int
    ) -> CoordinatorResult[TransactionalProducer]:
        """Decide to commit or to abort. Raises `RequestError` and `ProducerIdNeeded`."""
        transactional_id = request.transactional_id
        committed, is_pending = self.ids.committed(transactional_id), self.ids.is_pending(transactional_id)
        if request.client_version >= TV2:
            end = end_raising_epoch(request, committed, is_pending, fresh_id, now_ms)
        else:
            end = end_keeping_epoch(request, committed, is_pending, now_ms)
        if end.metadata is None:
            return CoordinatorResult(end.producer)
        self._check_version(request.client_version)
        return self._prepare(transactional_id, end.metadata, end.producer)

    def _check_version(self, client_version: int) -> None:
        """Raise `RequestError` UNSUPPORTED_VERSION if the records have no place for what the client does."""
        if client_version >= TV2 and not self.settings().value_version:
            raise RequestError(ErrorCode.unsupported_version)

    # Decisions about transactions that are decided.

    def markers_written(
        self, transactional_id: str, producer_id: int, producer_epoch: int, now_ms: int
    ) -> Outcome:
        """Complete a transaction: all its markers are written. Decides nothing if it is completed already."""
        there = self.ids.open.get(transactional_id)
        if there is None or (there.producer_id, there.producer_epoch) != (producer_id, producer_epoch):
            return NOTHING
        return self._complete(((transactional_id, there),), now_ms)

    def _complete(self, ended: Iterable[tuple[str, TransactionMetadata]], now_ms: int) -> Outcome:
        done, written = [], []
        decided_ms = now_ms
        for transactional_id, there in ended:
            if (
                there.state not in PREPARED
                or self.ids.open.get(transactional_id) is not there
                or self.ids.is_uncommitted(transactional_id)
            ):
                continue
            done.append((transactional_id, there))
            written.append(self._record(transactional_id, there.completed(now_ms)))
            decided_ms = min(decided_ms, there.updated_ms)
        if not done:
            return NOTHING
        event = Completed(tuple(done), decided_ms)
        return CoordinatorResult(None, tuple(written), event=event, divisible=True)

    def abort_timed_out(self, transactional_id: str, fresh_id: int | None, now_ms: int) -> Outcome:
        """Abort a transaction that is open for too long. Raises `ProducerIdNeeded`."""
        there = self.ids.open.get(transactional_id)
        if there is None or there.state is not ONGOING or there.due_ms >= now_ms:
            return NOTHING
        if self.ids.is_uncommitted(transactional_id):
            return NOTHING
        after = fence(there, self.settings(), fresh_id, now_ms)
        event = Prepared((self._to_mark(transactional_id, after),), timeouts=1)
        return CoordinatorResult(None, (self._record(transactional_id, after),), event=event)

    # Administration.

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """Read the committed state of an id. Raises `RequestError` TRANSACTIONAL_ID_NOT_FOUND."""
        there = self.ids.committed(transactional_id)
        if there is None:
            raise RequestError(ErrorCode.transactional_id_not_found)
        producer = TransactionalProducer(there.producer_id, there.producer_epoch)
        return DescribedTransaction(
            there.state.word, there.timeout_ms, there.start_ms, producer, there.partitions
        )

    def list_transactions(self, wanted: TransactionFilter, now_ms: int) -> Steps[list[ListedTransaction]]:
        """Read the committed ids that match. Ids may come and go between the steps."""
        found = []
        for count, transactional_id in enumerate(self.ids.names()):
            if count % _LISTED_A_STEP == 0:
                yield
            there = self.ids.committed(transactional_id)
            if there is not None and wanted.matches(transactional_id, there, now_ms):
                found.append(listed(transactional_id, there))
        return found

    # Events.

    def loaded(self, now_ms: int) -> Iterator[Effect]:
        """Yield the timers. What is decided already is told when all before it is committed."""
        self._found.extend(name for name, there in self.ids.open.items() if there.state in PREPARED)
        if self._found:
            yield Schedule(FOUND_PREPARED, now_ms)
        self._timeouts_ms = inf
        next_ms = self._deadlines.next_ms
        self._timeouts_ms = inf  # replay has noted what is ended, too, and no timer is set for that
        if next_ms is not None:
            yield self._wake_at(next_ms)
        if self._waits_for_idle:
            yield self._wait_for_idle(now_ms)

    def expired(self, name: Hashable, now_ms: int) -> Outcome:
        if name == TIMEOUTS:
            return self._abort_timed_out(now_ms)
        if name == IDLE:
            return self._remove_idle(now_ms)
        if name == FOUND_PREPARED:
            return self._tell_found(now_ms)
        if isinstance(name, tuple) and name[0] == COMPLETE:
            return self._complete(name[1], now_ms)
        return NOTHING

    def worked(self, name: Hashable, result: object, now_ms: int) -> Outcome:
        return NOTHING

    def written(self, event: Hashable, error: ErrorCode | None, now_ms: int) -> Outcome:
        if isinstance(event, Prepared):
            return self._told(event, now_ms) if error is None else self._still_open(event, now_ms)
        if isinstance(event, Completed):
            if error is not None:
                retry = Schedule((COMPLETE, event.transactions), now_ms + RETRY_MS)
                return CoordinatorResult(None, effects=(retry,))
            self.metrics.end.observe(max(now_ms - event.decided_ms, 0) / 1000)
        return NOTHING

    def topics_changed(self, names: tuple[str, ...], deleted: tuple[UUID, ...], now_ms: int) -> Outcome:
        return NOTHING

    def unloaded(self) -> None:
        self._found.clear()
        self._on_unloaded()

    def _told(self, event: Prepared, now_ms: int) -> Outcome:
        """Tell decisions that are committed; one without partitions is completed at once."""
        self.metrics.timeouts += event.timeouts
        without = []
        for one in event.transactions:
            there = self.ids.open.get(one.transactional_id)
            if one.partitions:
                self.on_prepared(one)
            elif there is not None:
                without.append((one.transactional_id, there))
        return self._complete(without, now_ms)

    def _still_open(self, event: Prepared, now_ms: int) -> Outcome:
        """Watch transactions again whose decisions have failed."""
        for one in event.transactions:
            there = self.ids.open.get(one.transactional_id)
            if there is not None and there.state is ONGOING:
                self._deadlines.set(one.transactional_id, max(self._sweep_ms(there), now_ms + RETRY_MS))
        next_ms = self._deadlines.next_ms
        return NOTHING if next_ms is None else CoordinatorResult(None, effects=(self._wake_at(next_ms),))

    def _tell_found(self, now_ms: int) -> Outcome:
        found: list[PreparedTransaction] = []
        while self._found and len(found) < AT_ONCE:
            transactional_id = self._found.popleft()
            there = self.ids.open.get(transactional_id)
            if there is not None and there.state in PREPARED:
                found.append(self._to_mark(transactional_id, there))
        more = (Schedule(FOUND_PREPARED, now_ms),) if self._found else ()
        return CoordinatorResult(None, effects=more, event=Prepared(tuple(found)))

    def _abort_timed_out(self, now_ms: int) -> Outcome:
        """Abort some of what is due. What is pending is looked at by the next sweep."""
        written: list[CoordinatorRecord] = []
        told: list[PreparedTransaction] = []
        size = 0
        for transactional_id in self._deadlines.due(now_ms, AT_ONCE):
            outcome: Outcome = NOTHING
            try:
                outcome = self.abort_timed_out(transactional_id, None, now_ms)
            except ProducerIdNeeded:
                self.on_id_needed(transactional_id)
            size += sum(len(key) + len(value or b"") for key, value in outcome.records)
            if written and size > _MOST_BYTES:
                break  # a batch takes any one of them, but not all
            self._look_again(transactional_id, now_ms)
            written += outcome.records
            if isinstance(outcome.event, Prepared):
                told += outcome.event.transactions
        next_ms = self._deadlines.next_ms
        self._timeouts_ms = inf
        effects = () if next_ms is None else (self._wake_at(next_ms),)
        event = Prepared(tuple(told), len(told)) if told else None
        return CoordinatorResult(None, tuple(written), effects, event)

    def _wake_at(self, at_ms: int) -> Effect:
        self._timeouts_ms = at_ms
        return Schedule(TIMEOUTS, at_ms)

    def _look_again(self, transactional_id: str, now_ms: int) -> None:
        """Leave what is due to a later sweep, unless its transaction is gone."""
        if transactional_id in self.ids.open:
            interval_ms = self.settings().transaction_abort_timed_out_transaction_cleanup_interval_ms
            self._deadlines.set(transactional_id, sweep_ms(now_ms, interval_ms))
        else:
            self._deadlines.discard(transactional_id)

    def _remove_idle(self, now_ms: int) -> Outcome:
        """Remove ids that nobody has used for long, the oldest first; the rest is removed next."""
        settings = self.settings()
        gone: list[CoordinatorRecord] = []
        next_ms = None
        for transactional_id, updated_ms in self.ids.resting(_LOOKED_AT):
            due_ms = updated_ms + settings.transactional_id_expiration_ms
            if due_ms > now_ms or len(gone) == AT_ONCE:
                next_ms = due_ms
                break
            if not self.ids.is_uncommitted(transactional_id):
                gone.append(CoordinatorRecord(records.encode_key(transactional_id), None))
        if next_ms is None:
            self._waits_for_idle = len(self.ids) > len(gone)
            next_ms = now_ms
        if not self._waits_for_idle:
            return CoordinatorResult(None, tuple(gone), divisible=True)
        if next_ms > now_ms or not gone:
            interval_ms = settings.transaction_remove_expired_transaction_cleanup_interval_ms
            next_ms = max(next_ms, now_ms + interval_ms)
        return CoordinatorResult(None, tuple(gone), (Schedule(IDLE, next_ms),), divisible=True)

    def _wait_for_idle(self, now_ms: int) -> Effect:
        """Return the timer of the first id that may be removed."""
        oldest_ms = now_ms
        for _, updated_ms in self.ids.resting(1):
            oldest_ms = min(oldest_ms, updated_ms)
        return Schedule(IDLE, max(now_ms, oldest_ms + self.settings().transactional_id_expiration_ms))

    # Parts of decisions.

    def _record(self, transactional_id: str, after: TransactionMetadata) -> CoordinatorRecord:
        return record_of(transactional_id, after, self.settings().value_version)

    def _prepare(
        self, transactional_id: str, after: TransactionMetadata, response: Any
    ) -> CoordinatorResult[Any]:
        event = Prepared((self._to_mark(transactional_id, after),))
        return CoordinatorResult(
            response,
            (self._record(transactional_id, after),),
            event=event,
            patience_ms=after.timeout_ms,
        )

    def _to_mark(self, transactional_id: str, there: TransactionMetadata) -> PreparedTransaction:
        return PreparedTransaction(
            transactional_id,
            there.producer_id,
            there.producer_epoch,
            self.coordinator_epoch,
            there.state is PREPARE_COMMIT,
            there.client_version,
            there.partitions,
        )

    def _sweep_ms(self, there: TransactionMetadata) -> int:
        interval_ms = self.settings().transaction_abort_timed_out_transaction_cleanup_interval_ms
        return sweep_ms(there.due_ms, interval_ms)


def _is_add_of(request: AddPartitions, there: TransactionMetadata | None) -> bool:
    """Return whether what is pending is an add of the same producer."""
    return (
        there is not None
        and there.state is ONGOING
        and (there.producer_id, there.producer_epoch) == request.producer
    )
