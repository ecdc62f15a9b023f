"""State of idempotent producers, and the checks that their batches must pass. [P]

Kafka `ProducerStateManager`, `ProducerAppendInfo`, `ProducerStateEntry`:

- The last five batches of each producer are kept. A batch with the same epoch and the same first and last
  sequence as one of them is a duplicate: the answer has the offsets of the first append, and nothing is
  appended.
- An older epoch than the last one seen: INVALID_PRODUCER_EPOCH.
- A newer epoch must begin at sequence 0, the same epoch must go on where it stopped (2^31-1 is followed
  by 0): else OUT_OF_ORDER_SEQUENCE_NUMBER.
- An unknown producer (never seen, expired, or all its records deleted) may begin at any sequence;
  UNKNOWN_PRODUCER_ID is therefore never answered, as in Kafka since KIP-360.
- Inside an open transaction a batch must be transactional: INVALID_TXN_STATE. Outside of one a transactional
  batch must have been verified (`verification`).

A producer expires when it has not written for long. Kafka measures that by record timestamps, and so forgets
a producer that writes old records while it is active; here the time of writing counts if it is later.

`check` changes nothing; `update` is called once the batch is written, and for every batch read back in
recovery.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.base.types import NO_EPOCH, NO_OFFSET, NO_SEQUENCE, NO_TIMESTAMP
from service.hot.transactions import OpenTransactions
from service.hot.verification import VerificationGuard, VerificationGuards
from service.records.batch import TRANSACTIONAL_FLAG, BatchHeader
from service.records.markers import EndMarker
from service.records.txn_rows import AbortedEntry

REMEMBERED_BATCHES: Final = 5
_EXPIRED_A_STEP: Final = 500
_SEQUENCE_MASK: Final = 0x7FFFFFFF


class BatchMemory(NamedTuple):
    """One of the last batches; offsets and sequences inclusive, timestamp = its max timestamp (ms)."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class ProducerEntry:
    """State of one producer id in one partition."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "generation", "last_timestamp", "txn_first_offset")
    # last_timestamp: of its newest record, or when that was written if that is later (ms)
    # generation: of the states that may change it; others keep it as it is

    def __init__(
        self,
        epoch: int = NO_EPOCH,
        last_timestamp: int = NO_TIMESTAMP,
        *,
        coordinator_epoch: int = -1,
        txn_first_offset: int = NO_OFFSET,
        batches: Iterable[BatchMemory] = (),
    ) -> None:
        self.epoch = epoch
        self.generation = 0
        self.last_timestamp = last_timestamp
        self.coordinator_epoch = coordinator_epoch
        self.txn_first_offset = txn_first_offset
        self.batches: list[BatchMemory] = list(batches)

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def next_sequence(self) -> int:
        return (self.last_sequence + 1) & _SEQUENCE_MASK

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def original(self, header: BatchHeader) -> BatchMemory | None:
        """Return the batch that `header`, of the same epoch, repeats."""
        first = header.base_sequence
        last = (first + header.last_offset_delta) & _SEQUENCE_MASK
        for batch in self.batches:
            if batch[0] == first and batch[1] == last:
                return batch
        return None

    @property
    def last_offset_delta(self) -> int:
        return self.batches[-1].last_offset - self.batches[-1].first_offset if self.batches else 0

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch


class ProducerStates:
    """Producer id to `ProducerEntry` for one partition. Owned by the loop (by recovery's thread while it
    runs).

    ``end_offset``: state up to, and not including, this offset. ``transactions``: the open ones, None until
    there is the first; ``guards``: the verifications under way, likewise. ``high_watermark``: markers below
    it are replicated.
    """

    def __init__(self, expiration_ms: int, high_watermark: int = 0) -> None:
        self.expiration_ms = expiration_ms
        self.end_offset = 0
        self.high_watermark = high_watermark
        self.transactions: OpenTransactions | None = None
        self.guards: VerificationGuards | None = None
        self.has_expired = False
        """an idle producer was forgotten; a cut of the log may bring back that it had a transaction open"""
        self._entries: dict[int, ProducerEntry] = {}
        self._generation = 0

    def freeze(self) -> dict[int, ProducerEntry]:
        """Return the current entries for another thread; they do not change any more.

        Copies the dict; an entry is copied at its next change.
        """
        self._generation += 1
        return self._entries.copy()

    def _own(self, producer_id: int) -> ProducerEntry:
        """Replace the producer's entry by a copy that may be changed, and return it."""
        old = self._entries.get(producer_id)
        entry = self._entries[producer_id] = ProducerEntry()
        entry.generation = self._generation
        if old is not None:
            entry.epoch = old.epoch
            entry.last_timestamp = old.last_timestamp
            entry.coordinator_epoch = old.coordinator_epoch
            entry.txn_first_offset = old.txn_first_offset
            entry.batches = old.batches.copy()
        return entry

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[tuple[int, ProducerEntry]]:
        return iter(self._entries.items())

    def ids(self) -> tuple[int, ...]:
        """Return the ids of the producers, for work in steps: they may come and go meanwhile."""
        return tuple(self._entries)

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def original(self, header: BatchHeader) -> BatchMemory | None:
        """Return the batch that this one repeats, None if it repeats none."""
        entry = self._entries.get(header.producer_id)
        return None if entry is None or entry.epoch != header.producer_epoch else entry.original(header)

    # Transactions

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest transaction that is open, or not known to be replicated to its end."""
        transactions = self.transactions
        return None if transactions is None else transactions.first_unstable_offset

    def high_watermark_moved(self, mark: int) -> None:
        """Note that the high watermark is at `mark`."""
        self.high_watermark = mark
        if self.transactions is not None:
            self.transactions.high_watermark_moved(mark)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether the producer has an open transaction of this epoch."""
        entry = self._entries.get(producer_id)
        return entry is not None and entry.txn_first_offset >= 0 and entry.epoch == epoch

    def begin_verification(
        self, producer_id: int, epoch: int, base_sequence: int, is_tv2: bool
    ) -> VerificationGuard | None:
        """Return the guard with which a batch is to be appended once its transaction is verified; None if it
        is open here at this epoch, so that nobody needs to be asked.

        `RequestError` INVALID_PRODUCER_EPOCH if a newer epoch was seen.
        """
        entry = self._entries.get(producer_id)
        if entry is not None:
            if epoch < entry.epoch:
                raise _old_epoch(producer_id, epoch, entry)
            if entry.txn_first_offset >= 0 and entry.epoch == epoch:
                return None
        if self.guards is None:
            self.guards = VerificationGuards()
        return self.guards.begin(producer_id, epoch, base_sequence, is_tv2=is_tv2)

    def check(
        self,
        header: BatchHeader,
        offset: int,
        has_sequence: bool = True,
        guard: VerificationGuard | None = None,
    ) -> BatchMemory | None:
        """Check a batch that is to be appended at `offset`; returns the original of a duplicate, else None.

        `RequestError`: see the head of this file. Changes nothing. A coordinator's own batches have no
        sequence. `guard`: of a transactional batch whose transaction was verified.
        """
        entry = self._entries.get(header.producer_id)
        if header.attributes & TRANSACTIONAL_FLAG:
            self._check_verified(entry, header, has_sequence, guard)
        if entry is None:
            return None
        if header.producer_epoch < entry.epoch:
            raise _old_epoch(header.producer_id, header.producer_epoch, entry)
        if has_sequence:
            original = _in_sequence(entry, header, offset)
            if original is not None:
                return original
        if entry.txn_first_offset >= 0 and not header.is_transactional:
            raise RequestError(
                ErrorCode.invalid_txn_state, f"producer {header.producer_id} is inside a transaction"
            )
        return None

    def _check_verified(
        self,
        entry: ProducerEntry | None,
        header: BatchHeader,
        has_sequence: bool,
        guard: VerificationGuard | None,
    ) -> None:
        """Check that the batch is part of a transaction that is open here, or was verified; a duplicate need
        not be."""
        if entry is not None:
            if header.producer_epoch < entry.epoch:
                raise _old_epoch(header.producer_id, header.producer_epoch, entry)
            if header.producer_epoch == entry.epoch and (
                entry.txn_first_offset >= 0 or (has_sequence and entry.original(header) is not None)
            ):
                return
        guards = self.guards or _NO_GUARDS
        is_known = entry is not None and bool(entry.batches)
        guards.check(header, guard, has_sequence=has_sequence, is_known=is_known)

    def update(
        self, header: BatchHeader, base_offset: int, last_offset: int, written_ms: int = NO_TIMESTAMP
    ) -> None:
        """Account for a data batch that was appended at these offsets, at `written_ms` if that is known."""
        entry = self._entries.get(header.producer_id)
        if entry is None or entry.generation != self._generation:
            entry = self._own(header.producer_id)
        entry.set_epoch(header.producer_epoch)
        batches = entry.batches
        if len(batches) == REMEMBERED_BATCHES:
            del batches[0]
        last_sequence = header.last_sequence
        first_sequence = (last_sequence - (last_offset - base_offset)) & _SEQUENCE_MASK
        if last_sequence < 0:
            first_sequence = last_sequence
        batches.append(
            BatchMemory(first_sequence, last_sequence, base_offset, last_offset, header.max_timestamp)
        )
        entry.last_timestamp = max(header.max_timestamp, written_ms)
        if header.attributes & TRANSACTIONAL_FLAG:
            if entry.txn_first_offset < 0:
                entry.txn_first_offset = base_offset
                self._open().begin(header.producer_id, base_offset)
            if self.guards is not None:
                self.guards.appended(header.producer_id)

    def _open(self) -> OpenTransactions:
        if self.transactions is None:
            self.transactions = OpenTransactions(self.high_watermark)
        return self.transactions

    def doubt_from(self, offset: int) -> None:
        """Take all from `offset` on as unstable until the high watermark has reached the present end: the one
        of before is lost, and with it which of the completed transactions it has passed."""
        if offset < self.end_offset and any(entry.coordinator_epoch >= 0 for _, entry in self):
            self._open().doubt(offset, self.end_offset)

    def end_transaction(self, header: BatchHeader, marker: EndMarker) -> AbortedEntry | None:
        """Account for a transaction marker that was appended: it ends the producer's open transaction.

        Returns the row for the transaction index, if it has aborted one.
        """
        entry = self._own(header.producer_id)
        entry.set_epoch(header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = marker.timestamp
        entry.txn_first_offset = NO_OFFSET
        if self.guards is not None:
            self.guards.marked(header.producer_id, header.producer_epoch)
        if self.transactions is None:
            return None
        return self.transactions.complete(header.producer_id, header.base_offset, is_commit=marker.is_commit)

    def load(self, entries: Iterable[tuple[int, ProducerEntry]], end_offset: int, now_ms: int) -> None:
        """Replace the state by a snapshot's at `end_offset`, without expired producers.

        Of completed transactions a snapshot says nothing: those that count stay.
        """
        self._entries = {}
        for producer_id, entry in entries:
            if self._expired(entry, now_ms):
                self.has_expired = True
            else:
                self._entries[producer_id] = entry
        self.end_offset = end_offset
        spans = [
            (pid, entry.txn_first_offset)
            for pid, entry in self._entries.items()
            if entry.txn_first_offset >= 0
        ]
        if spans or self.transactions is not None:
            self._open().load(spans, end_offset)

    def clear(self, end_offset: int) -> None:
        """Forget all producers; what was forgotten lies below `end_offset`."""
        self._entries.clear()
        self.end_offset = end_offset
        if self.transactions is not None:
            self.transactions.load((), end_offset)

    def expire(self, now_ms: int) -> Steps[int]:
        """Forget producers that have been idle for ``expiration_ms``, in steps; returns how many."""
        gone = 0
        for number, producer_id in enumerate(self.ids()):
            if not number % _EXPIRED_A_STEP:
                yield
            entry = self._entries.get(producer_id)
            if entry is not None and self._expired(entry, now_ms):
                del self._entries[producer_id]
                self.has_expired = True
                gone += 1
        if self.guards is not None:
            yield from self.guards.expire(now_ms, self.expiration_ms)
        return gone

    def _expired(self, entry: ProducerEntry, now_ms: int) -> bool:
        return entry.txn_first_offset < 0 and now_ms - entry.last_timestamp >= self.expiration_ms


_NO_GUARDS: Final = VerificationGuards()


def _old_epoch(producer_id: int, epoch: int, entry: ProducerEntry) -> RequestError:
    return RequestError(
        ErrorCode.invalid_producer_epoch,
        f"epoch {epoch} of producer {producer_id} is older than {entry.epoch}",
    )


def _in_sequence(entry: ProducerEntry, header: BatchHeader, offset: int) -> BatchMemory | None:
    """Return the batch that this one repeats; OUT_OF_ORDER_SEQUENCE_NUMBER unless it follows the last one."""
    first = header.base_sequence
    if header.producer_epoch > entry.epoch:
        if first != 0:
            raise _out_of_order(header, offset, f"a new epoch after {entry.epoch} begins at 0")
        return None
    original = entry.original(header)
    if original is None and first != entry.next_sequence:
        raise _out_of_order(header, offset, f"the sequence before it is {entry.last_sequence}")
    return original


def _out_of_order(header: BatchHeader, offset: int, why: str) -> RequestError:
    return RequestError(
        ErrorCode.out_of_order_sequence_number,
        f"sequence {header.base_sequence} of producer {header.producer_id} epoch {header.producer_epoch} "
        f"at offset {offset} is out of order: {why}",
    )
